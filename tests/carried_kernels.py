"""Compiles a carried kernel for a GPU, without one: ``python -m tests.carried_kernels HEAD...``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64", "bool": "i1"}


def compiled(head: Path) -> int:
    """The size of the machine code, in bytes, for compute capability 9.0."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from conformance.kernels.carried import loaded
    from conformance.kernels.example import View
    from conformance.kernels.store import read

    kernel = loaded(head.with_suffix(".py"), head.stem.rpartition(".")[2])
    arguments: dict[str, Any] = dict(read(head).examples[0].arguments)
    while hasattr(kernel, "values"):  # heuristics
        arguments |= {name: value(arguments) for name, value in kernel.values.items()}
        kernel = kernel.fn
    signature, constants = {}, {}
    for parameter in kernel.params:
        value = arguments[parameter.name]
        if parameter.is_constexpr or value is None:
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        elif isinstance(value, View):
            integer = value.dtype.replace("uint", "u").replace("int", "i")
            signature[parameter.name] = f"*{_TYPES.get(value.dtype, integer)}"
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
        else:
            wide = "i32" if -(2**31) <= value < 2**31 else "i64"
            signature[parameter.name] = "i1" if isinstance(value, bool) else wide
    done = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32))
    return len(done.asm["cubin"])


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(Path(argument).stem, compiled(Path(argument)))
