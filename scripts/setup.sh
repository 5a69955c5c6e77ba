#!/bin/sh
# Make this clone ready to work, with uv. Quick when all is there.
#
#   scripts/setup.sh             .venv: an environment with exactly what requirements.lock says, and pillarbox (editable);
#                                .venv/java_home: where the Java is that the Makefile hands to Spark
#   scripts/setup.sh spark 4.1   .venvs/spark-4.1: nothing but another PySpark, to go before .venv's on PYTHONPATH
#   scripts/setup.sh worker      .venvs/worker: an environment with only what Spark's stateful Python API needs
#   scripts/setup.sh docs        .venvs/docs: what makes the site, to go before .venv's on PYTHONPATH
#   scripts/setup.sh see         .venvs/see: what drives a browser, and the browser and the Prometheus that the tests look at
#   scripts/setup.sh redis       a Redis server, for the tests that talk to a real one
#   scripts/setup.sh s3          .venvs/versitygw-VERSION: an S3 gateway, which Go builds, for the tests with an object store
#   scripts/setup.sh uv ...      calls uv as the above do
# Knobs, all optional, besides uv's own:
#   PYTHON=...         the Python to build .venv from (3.10 to 3.14)
#   JAVA_HOME=...      the Java to use (17 or newer)
#   JAVA_DIRS=...      where to look for other Javas, instead of the usual places
#   SETUP_INSTALL=no   install no system packages
set -eu
cd "$(dirname "$0")/.."

say() { printf '[setup] %s\n' "$*" >&2; }
die() { say "ERROR: $*"; exit 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; elif [ -t 0 ]; then sudo "$@"; else sudo -n "$@"; fi; }

# install APT DNF BREW: one package, by its names in this system's package manager, best first.
install() {
    [ "${SETUP_INSTALL:-yes}" != no ] || return 1
    if command -v apt-get >/dev/null; then
        names=$1 command="as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
        as_root mkdir -p /usr/share/man/man1 || return 1    # slim images lack it, and Java's package stumbles over that
        as_root apt-get update >/dev/null || say "apt-get update failed; apt may know of older packages only"
    elif command -v dnf >/dev/null; then
        names=$2 command="as_root dnf install -y"
    else
        names=$3 command="brew install --quiet"
    fi
    for name in $names; do
        say "installing $name"
        if $command "$name" >/dev/null; then return; fi
    done
    return 1
}

# The uv on PATH, else one that pip puts into .venvs/uv; it takes packages from where pip does, unless it is told otherwise.
find_uv() {
    python=${PYTHON:-python3}
    if ! uv=$(command -v uv) && uv=.venvs/uv/bin/uv && ! "$uv" --version >/dev/null 2>&1; then
        say "installing uv into .venvs/uv"
        # With a pip that is there; else with one of an environment, which takes seconds to make.
        rm -rf .venvs/uv
        set -- install --quiet --require-hashes -r requirements-build.lock
        "$python" -m pip "$@" --target .venvs/uv 2>/dev/null || {
            "$python" -c 'import ensurepip, venv' 2>/dev/null || install python3-venv python3 python3 || true
            "$python" -m venv .venvs/uv && .venvs/uv/bin/python -m pip "$@"
        } || die "$python cannot install uv (see above): please install uv, or a Python 3.10 to 3.14 with its venv module."
    fi
    pip_settings=$({ PATH="$PATH:.venvs/uv/bin" pip config list || "$python" -m pip config list; } 2>/dev/null || true)
    for pair in UV_DEFAULT_INDEX=index-url UV_HTTP_TIMEOUT=default-timeout SSL_CERT_FILE=cert; do
        value=$(printf '%s\n' "$pip_settings" | sed -n "s/^[^.]*\.${pair#*=}='\(.*\)'\$/\1/p" | head -n 1)
        printenv "${pair%=*}" >/dev/null || [ -z "$value" ] || export "${pair%=*}=$value"
    done
    export UV_BUILD_CONSTRAINT=requirements-build.lock    # pyspark comes as source only
}

# make_place DIRECTORY: unless it was made here of the same files. Their contents count, as a git checkout changes times.
make_place() {
    wanted=$(pwd; echo "${PYTHON:-}"; cksum scripts/setup.sh pyproject.toml ./*.lock tests/versions/*.lock)
    if [ "$(cat "$1/.stamp" 2>/dev/null)" = "$wanted" ] && .venv/bin/python -c '' 2>/dev/null; then return; fi
    find_uv
    say "making $1 (the first time takes minutes where PySpark is in it, which is some 450 MB)"
    rm -rf "$1"
    case $1 in
        .venv)
            "$uv" -q venv --python "${PYTHON:->=3.10,<3.15}" .venv &&
                "$uv" -q pip sync --python .venv --require-hashes requirements.lock &&
                "$uv" -q pip install --python .venv --no-deps --editable . ;;
        .venvs/worker)
            "$uv" -q venv --python .venv/bin/python "$1" &&
                "$uv" -q pip install --python "$1" --constraints requirements.lock pandas protobuf pyarrow ;;
        .venvs/docs | .venvs/see)
            "$uv" -q pip install --python .venv --target "$1" --require-hashes -r "requirements-${1#.venvs/}.lock" ;;
        *)  "$uv" -q pip install --python .venv --target "$1" --no-deps -r "tests/versions/${1#.venvs/}.lock" ;;
    esac || die "uv could not make $1 (see above)."
    echo "$wanted" >"$1/.stamp"
}

# The gateway's go.mod needs Go 1.25. An older one, from 1.21 on, brings that itself, unless GOTOOLCHAIN=local is set.
make_gateway() {
    version=1.8.0    # as tests/s3/gateway.py has it
    place=$(pwd)/.venvs/versitygw-$version
    [ ! -x "$place/versitygw" ] || return 0
    command -v go >/dev/null ||
        install "golang-1.26-go golang-1.25-go golang-go" golang go || die "no Go could be installed: please install one."
    # Debian keeps those with a version in their names off PATH.
    for go in "$(command -v go || true)" /usr/lib/go-1.2[5-9]/bin/go; do [ ! -x "$go" ] || break; done
    say "building $place (the first time takes minutes)"
    GOBIN=$place "$go" install "github.com/versity/versitygw/cmd/versitygw@v$version" ||
        die "Go could not build the gateway (see above): it needs Go 1.25 or newer."
}

# java_facts BINARY: prints "VERSION HOME" of a Java 17 or newer. Java itself knows, as `java` may be a link or a script.
java_facts() {
    "$1" -XshowSettings:properties -version 2>&1 </dev/null | awk -F ' = ' '
        / java.specification.version = / { version = $2 }
        / java.home = / { home = $2 }
        END { if (version >= 17) print version, home }'
}

# Prints the home of the Java to use: your JAVA_HOME; else the first that Spark is known to run on; else any newer one.
find_java() {
    spare=$(java_facts "${JAVA_HOME:-/none}/bin/java")
    [ -z "$spare" ] || { echo "${spare#* }"; return; }
    [ -z "${JAVA_HOME:-}" ] || say "JAVA_HOME=$JAVA_HOME holds no Java 17 or newer; looking elsewhere"
    usual="/usr/lib/jvm/* /opt/java/* /opt/homebrew/opt/openjdk* /usr/local/opt/openjdk* $HOME/.sdkman/candidates/java/*
        $HOME/.jdks/* /Library/Java/JavaVirtualMachines/*/Contents/Home"
    for java in $(command -v java) ${JAVA_DIRS-$usual}; do
        [ ! -d "$java" ] || java=$java/bin/java
        found=$(java_facts "$java")
        case $found in "17 "* | "21 "* | "25 "*) echo "${found#* }"; return ;; esac
        spare=${spare:-$found}
    done
    [ -n "$spare" ] && say "found only Java ${spare%% *}, which Spark may not run on; trying it" && echo "${spare#* }"
}

case ${1:-all} in
    all)
        java=$(find_java) || {
            install "openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless" \
                "java-17-openjdk-headless java-21-openjdk-headless java-latest-openjdk-headless" "openjdk@17 openjdk@21" &&
                java=$(find_java)
        } || die "Spark needs Java 17 or newer: please install one, or set JAVA_HOME to where one is."
        make_place .venv    # after Java: without it nothing works in the end, so that is said before a long download
        echo "$java" >.venv/java_home ;;
    spark) shift && for version in "$@"; do make_place ".venvs/spark-$version"; done ;;
    worker | docs) make_place ".venvs/$1" ;;
    see)
        make_place .venvs/see
        command -v chromium >/dev/null || install chromium chromium chromium || die "no Chromium could be installed."
        command -v prometheus >/dev/null || install prometheus golang-github-prometheus prometheus ||
            die "no Prometheus could be installed." ;;
    redis) command -v redis-server >/dev/null || install redis-server redis redis || die "no Redis could be installed." ;;
    s3) make_gateway ;;
    uv) shift && find_uv && exec "$uv" "$@" ;;
    *) die "unknown: $1" ;;
esac
