#!/bin/sh
# Make this clone ready to work: Python packages in .venv, and a Java for Spark. Quick when all is there.
#
#   .venv/             a virtual environment with exactly what the lock files say, and pillarbox itself (editable)
#   .venv/java_home    where the Java is that the Makefile hands to Spark
#
# `scripts/setup.sh redis` does nothing but see to a Redis server, for the tests that talk to a real one.
# `scripts/setup.sh spark 4.1` (after the above) puts another PySpark into .venvs/spark-4.1, as tests/versions/spark-4.1.lock
# says: nothing but it, to go before .venv's own on PYTHONPATH. `scripts/setup.sh worker` makes .venvs/worker: an
# environment with only what Spark's stateful Python API needs.
#
# Knobs, all optional:
#   PYTHON=...         the Python to build .venv from (3.10 to 3.14)
#   JAVA_HOME=...      the Java to use (17 or newer)
#   JAVA_DIRS=...      where to look for other Javas, instead of the usual places
#   SETUP_INSTALL=no   install no system packages, say which ones are missing
#   SETUP_HASHES=no    do not check the packages' hashes (for a package index with locally built wheels)
set -eu
cd "$(dirname "$0")/.."

LOCKS="requirements-build.lock requirements.lock"
JAVA_FIT="17 21 25"     # what Spark 4.3 runs on: any of these goes before any other

say() { printf '[setup] %s\n' "$*" >&2; }
die() { printf '[setup] ERROR: %s\n' "$*" >&2; exit 1; }


# ---- the system's package manager ------------------------------------------------------------------------------------

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null 2>&1; then
        if [ -t 0 ]; then sudo "$@"; else sudo -n "$@"; fi
    else
        echo "only root may install packages, and there is no sudo"
        return 1
    fi
}

package_manager() {
    [ "${SETUP_INSTALL:-yes}" != no ] || return 0
    for manager in apt-get dnf microdnf yum zypper apk brew; do
        if command -v "$manager" >/dev/null 2>&1; then
            echo "$manager"
            return 0
        fi
    done
}

# install_packages PACKAGE...: all of them or none. Chatter goes to a log, which is shown when it failed.
install_packages() {
    log=$(mktemp)
    if [ "$manager" = apt-get ]; then
        if [ -z "${apt_updated:-}" ]; then
            say "asking apt what there is"
            as_root apt-get update >"$log" 2>&1 || say "apt-get update failed; going on with what apt knows"
            apt_updated=yes
        fi
        # Which Java or Python a release has differs: what it does not know is no failure to make a noise about.
        for package in "$@"; do
            apt-cache policy "$package" 2>/dev/null | grep -q 'Candidate: [^(]' || { rm -f "$log"; return 1; }
        done
    fi
    say "installing $* (with $manager)"
    status=0
    case $manager in
        apt-get)
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" ;;
        apk)    as_root apk add --no-cache "$@" ;;
        brew)   brew install --quiet "$@" ;;
        zypper) as_root zypper --non-interactive install "$@" ;;
        *)      as_root "$manager" install -y "$@" ;;
    esac >>"$log" 2>&1 || status=$?
    if [ "$status" != 0 ]; then
        say "that did not work:"
        tail -n 5 "$log" | sed 's/^/[setup]     /' >&2
    fi
    rm -f "$log"
    return "$status"
}


# ---- Python ----------------------------------------------------------------------------------------------------------

python_is_fit() {
    "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        python_is_fit "$PYTHON" || die "PYTHON=$PYTHON is no Python 3.10 to 3.14."
        echo "$PYTHON"
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python3.10 python3.14 python; do
        if python_is_fit "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    die "no Python 3.10 or newer found: please install one (Debian, Ubuntu: apt-get install python3 python3-venv; macOS: brew install python@3.13), or say where it is with PYTHON=..."
}

# Debian and Ubuntu ship Python without what makes virtual environments.
need_venv_module() {
    if "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; then return; fi
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    manager=$(package_manager)
    if [ "$manager" = apt-get ]; then
        install_packages "python$version-venv" || install_packages python3-venv || true
    fi
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1 ||
        die "this Python ($version) cannot make virtual environments: please install its venv module (Debian, Ubuntu: apt-get install python$version-venv)."
}

# A directory of wheels that somebody put up for pip may hold a pyspark that was built there (it is released as source
# only), whose hash cannot be in our lock file. Versions stay exact, hashes then go unchecked.
hashes_can_be_checked() {
    [ "${SETUP_HASHES:-yes}" != no ] || return 1
    for place in ${PIP_FIND_LINKS:-}; do
        for wheel in "${place#file://}"/pyspark-*.whl; do
            if [ -e "$wheel" ]; then return 1; fi
        done
    done
}

# What .venv was made from. Contents, not times: a git checkout changes the latter. And the place, as a virtual
# environment cannot be moved.
python_stamp() {
    pwd
    echo "${PYTHON:-}"
    cksum scripts/setup.sh pyproject.toml $LOCKS
}

# as_checked LOCK...: puts copies of lock files into .venv/locks, without hashes if these cannot be checked.
as_checked() {
    mkdir -p .venv/locks
    for lock in "$@"; do
        if hashes_can_be_checked; then
            cp "$lock" .venv/locks/
        else
            sed -e '/^ *--hash=/d' -e 's/ *\\$//' "$lock" >".venv/locks/$(basename "$lock")"
        fi
    done
}

pip_install() {
    .venv/bin/python -m pip install --disable-pip-version-check --no-input --quiet "$@" ||
        die "pip could not install the packages (see above)."
}

set_up_python() {
    wanted=$(python_stamp)
    if [ "$(cat .venv/.python-stamp 2>/dev/null)" = "$wanted" ] && .venv/bin/python -c '' 2>/dev/null; then
        return
    fi
    rm -f .venv/.python-stamp

    # An environment that is broken, was moved here, or has another Python than asked for is made anew.
    if ! { [ "$(cat .venv/.place 2>/dev/null)" = "$(pwd) ${PYTHON:-}" ] &&
           .venv/bin/python -m pip --version >/dev/null 2>&1; }; then
        python=$(find_python)
        need_venv_module "$python"
        say "making .venv with $("$python" --version 2>&1) ($(command -v "$python"))"
        "$python" -m venv --clear .venv || die "could not make .venv (see above)."
        echo "$(pwd) ${PYTHON:-}" >.venv/.place
    fi

    as_checked $LOCKS
    hashes_can_be_checked || say "not checking hashes; versions are exact all the same"
    say "installing Python packages from the lock files (PySpark is some 450 MB: the first time takes minutes)"
    pip_install -r .venv/locks/requirements-build.lock
    # With the build tools locked and in place, nothing unlocked is fetched to build pyspark, or us.
    pip_install --no-build-isolation --no-deps -r .venv/locks/requirements.lock
    pip_install --no-build-isolation --no-deps --editable .
    say "Python packages are there: $(.venv/bin/python -c 'import pyspark; print("PySpark", pyspark.__version__)')"
    echo "$wanted" >.venv/.python-stamp
}


# ---- other environments, for tests -----------------------------------------------------------------------------------

# What an environment in .venvs was made from.
place_stamp() {
    pwd
    cat .venv/.place
    cksum scripts/setup.sh "$1"
}

set_up_spark() {
    spark_lock=tests/versions/spark-$1.lock
    made=.venvs/spark-$1
    [ -e "$spark_lock" ] || die "there is no $spark_lock."
    wanted=$(place_stamp "$spark_lock")
    if [ "$(cat "$made/.stamp" 2>/dev/null)" = "$wanted" ]; then return; fi
    say "installing $(sed -n 's/^\(pyspark==[^ ]*\).*/\1/p' "$spark_lock") into $made"
    as_checked "$spark_lock"
    rm -rf "$made"
    mkdir -p .venvs
    pip_install --no-build-isolation --no-deps --target "$made" -r ".venv/locks/$(basename "$spark_lock")"
    echo "$wanted" >"$made/.stamp"
}

# What transformWithStateInPandas needs in a worker (and what that needs), as in requirements.lock.
WORKER_PACKAGES="numpy pandas protobuf pyarrow python-dateutil pytz six tzdata"

set_up_worker() {
    made=.venvs/worker
    wanted=$(place_stamp requirements.lock)
    if [ "$(cat "$made/.stamp" 2>/dev/null)" = "$wanted" ]; then return; fi
    say "making $made"
    as_checked requirements.lock
    awk -v "names=$WORKER_PACKAGES" '
        BEGIN { count = split(names, list, " "); for (i = 1; i <= count; i++) wanted[list[i]] = 1 }
        /^[A-Za-z0-9]/ { name = $1; sub(/==.*/, "", name); keep = name in wanted }
        keep' .venv/locks/requirements.lock >.venv/locks/worker.lock
    .venv/bin/python -m venv --clear "$made" || die "could not make $made (see above)."
    "$made/bin/python" -m pip install --disable-pip-version-check --no-input --quiet --no-deps \
        -r .venv/locks/worker.lock || die "pip could not install the packages of $made (see above)."
    echo "$wanted" >"$made/.stamp"
}


# ---- Java ------------------------------------------------------------------------------------------------------------

# describe_java BINARY: prints "VERSION HOME", for example "17 /usr/lib/jvm/java-17-openjdk-amd64"; fails if it is none.
# Java itself is asked for its home: `java` may be a link, or a script of a version manager.
describe_java() {
    facts=$("$1" -XshowSettings:properties -version 2>&1) || return 1
    version=$(printf '%s\n' "$facts" | sed -n 's/^ *java\.specification\.version = //p' | head -n 1)
    home=$(printf '%s\n' "$facts" | sed -n 's/^ *java\.home = //p' | head -n 1)
    [ -n "$version" ] && [ -x "$home/bin/java" ] || return 1
    case $version in 1.*) version=${version#1.} ;; esac     # "1.8" is 8
    case $version in *[!0-9]*) return 1 ;; esac
    echo "$version $home"
}

is_fit() {
    case " $JAVA_FIT " in *" $1 "*) return 0 ;; *) return 1 ;; esac
}

# All Javas worth a look, best known first, one binary a line.
java_candidates() {
    command -v java || true
    if [ -n "${JAVA_DIRS+set}" ]; then
        set -- ${JAVA_DIRS}
    else
        set -- /usr/lib/jvm/* /usr/java/* /opt/java/* /opt/jdk* \
            /Library/Java/JavaVirtualMachines/*/Contents/Home "$HOME"/Library/Java/JavaVirtualMachines/*/Contents/Home \
            /opt/homebrew/opt/openjdk* /usr/local/opt/openjdk* /home/linuxbrew/.linuxbrew/opt/openjdk* \
            "$HOME"/.sdkman/candidates/java/* "$HOME"/.jdks/*
    fi
    for home in "$@"; do
        if [ -x "$home/bin/java" ]; then echo "$home/bin/java"; fi
    done
}

# Prints "VERSION HOME" of the Java to use. Your JAVA_HOME if it is new enough; else the first that Spark is known to
# run on, PATH before the rest; else any that is newer.
find_java() {
    if [ -n "${JAVA_HOME:-}" ]; then
        if found=$(describe_java "$JAVA_HOME/bin/java") && [ "${found%% *}" -ge 17 ]; then
            echo "$found"
            return 0
        fi
        say "JAVA_HOME=$JAVA_HOME holds no Java 17 or newer; looking elsewhere"
    fi
    spare=
    candidates=$(java_candidates)
    # (No pipe into `while`: that would be a subshell, whose variables are lost.)
    while IFS= read -r binary; do
        found=$(describe_java "$binary" </dev/null) || continue
        if is_fit "${found%% *}"; then
            echo "$found"
            return 0
        fi
        if [ "${found%% *}" -ge 17 ] && [ -z "$spare" ]; then spare=$found; fi
    done <<EOF
$candidates
EOF
    [ -n "$spare" ] || return 1
    say "found only Java ${spare%% *}, which Spark may not run on; trying it"
    echo "$spare"
}

install_java() {
    manager=$(package_manager)
    case $manager in
        apt-get)
            # In slim images the manual pages' directory is missing, and Java's package stumbles over that.
            [ -d /usr/share/man/man1 ] || as_root mkdir -p /usr/share/man/man1 || true
            set -- openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless ;;
        dnf | microdnf | yum)
            set -- java-17-openjdk-headless java-21-openjdk-headless java-25-openjdk-headless java-latest-openjdk-headless ;;
        zypper)
            set -- java-17-openjdk-headless java-21-openjdk-headless ;;
        apk)
            install_packages bash coreutils procps || true       # Spark's start scripts are bash
            set -- openjdk17-jre-headless openjdk21-jre-headless ;;
        brew)
            set -- openjdk@17 openjdk@21 ;;
        *)
            return 1 ;;
    esac
    for package in "$@"; do
        if install_packages "$package"; then return 0; fi
    done
    return 1
}

# What the choice depends on: it holds until somebody sets another JAVA_HOME or PATH, or removes that Java.
java_stamp() {
    echo "JAVA_HOME=${JAVA_HOME:-} java=$(command -v java || true) JAVA_DIRS=${JAVA_DIRS-usual}"
}

choose_java() {
    java_home=$(cat .venv/java_home 2>/dev/null || true)
    if [ "$(cat .venv/.java-stamp 2>/dev/null)" = "$(java_stamp)" ] && [ -x "$java_home/bin/java" ]; then
        return
    fi
    if ! chosen=$(find_java); then
        say "no Java 17 or newer found"
        install_java || true
        chosen=$(find_java) || die "$NO_JAVA"
    fi
    java_home=${chosen#* }
    say "Java ${chosen%% *} for Spark: $java_home"
}

NO_JAVA="Spark needs Java 17 or newer, and there is none: please install one (Debian, Ubuntu: apt-get install \
openjdk-17-jre-headless; Fedora, RHEL: dnf install java-21-openjdk-headless; macOS: brew install openjdk@17), or set \
JAVA_HOME to where one is."


# ---- Redis, for tests ------------------------------------------------------------------------------------------------

install_redis() {
    if command -v redis-server >/dev/null 2>&1; then return; fi
    manager=$(package_manager)
    case $manager in
        apt-get) install_packages redis-server ;;
        "")      return 1 ;;
        *)       install_packages redis ;;
    esac
}


# ---- all of it -------------------------------------------------------------------------------------------------------

case ${1:-} in
    redis)
        install_redis || die "there is no Redis server, and none could be installed."
        exit ;;
    spark)
        shift
        for version in "$@"; do set_up_spark "$version"; done
        exit ;;
    worker)
        set_up_worker
        exit ;;
esac

choose_java         # first: without Java nothing works in the end, so say so before the long download
set_up_python       # this may make .venv anew, so what was chosen is written down only now
printf '%s\n' "$java_home" >.venv/java_home
java_stamp >.venv/.java-stamp
