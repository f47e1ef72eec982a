#!/usr/bin/env bash
# Compiles the locks of requirements/versions.toml anew, for CPython 3.11 on x86_64 Linux: `tox run -e lock`.
# What a lock pins stays as it is where it still fits; `tox run -e lock -- --upgrade` takes the newest of
# everything.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() { # LOCK REQUIREMENT BUILD OVERRIDE "EXCLUDE..." [OPTION...]
    local lock=requirements/$1 requirement=$2 build=$3 override=$4 names=$5 excludes="" name
    shift 5
    for name in $names; do excludes+=" requirements/$name"; done
    export UV_EXCLUDE=${excludes# }
    if [ "$override" != - ]; then export UV_OVERRIDE=requirements/$override; fi
    if [ "$build" = cuda ]; then unset UV_FIND_LINKS UV_TORCH_BACKEND; fi # where the CPU build is
    echo "$requirement" | uv pip compile --quiet --python-version 3.11 \
        --python-platform x86_64-manylinux_2_28 --no-annotate --no-header \
        --no-emit-find-links --no-emit-index-url --extra real --extra dev \
        pyproject.toml - --output-file "$lock" "$@"
    echo "$lock"
}
python requirements/versions.py locks | while read -r lock requirement build override excludes; do
    # In a shell of its own: what it exports is for this lock only.
    (compile "$lock" "$requirement" "$build" "$override" "$excludes" "$@")
done
