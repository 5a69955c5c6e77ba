#!/bin/sh
# Write the lock files anew: exact versions and hashes, and no word of where packages come from.
# What is locked already stays as it is, unless pyproject.toml forbids it: for newer versions call
# `make lock ARGS=--upgrade`, or `make lock ARGS='--upgrade-package ruff'`.
set -eu
cd "$(dirname "$0")/.."

if command -v uv >/dev/null 2>&1; then
    uv=uv
else
    # The tool that resolves for all Pythons at once; only this script needs it.
    [ -x build/lock-tool/bin/uv ] || {
        .venv/bin/python -m venv build/lock-tool
        build/lock-tool/bin/python -m pip install --quiet uv
    }
    uv=build/lock-tool/bin/uv
fi

lock() {
    out=$1
    shift
    "$uv" pip compile --quiet --universal --python-version 3.10 --generate-hashes \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links "$@" -o "$out"
    if grep -n '://\|^-[-if]' "$out"; then
        echo "lock: $out names a place (see above)" >&2
        exit 1
    fi
    echo "lock: $out: $(grep -c '==' "$out") pins"
}

lock requirements-build.lock --group build "$@"
for version in 4.1 4.2; do
    echo "pyspark~=$version.0" | lock "tests/versions/spark-$version.lock" - --no-deps "$@"
done
lock requirements.lock pyproject.toml --extra cli --extra demo --group dev "$@"
