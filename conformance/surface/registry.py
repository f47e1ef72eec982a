"""Tables that name modules by string: what they name can be reached, and nothing says when.

A module that builds a module's name from a package and a piece of text (``f"pkg.models.{name}"``)
and holds strings that are modules of that package, names all of them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from conformance.surface.program import Module
from conformance.surface.solver import Solver

_PATTERN = re.compile(r'f"(vllm(?:\.\w+)+)\.\{')
_DEVICE_WORDS = re.compile(
    r"\bcuda\b|\baccelerator\b|pin_memory|record_stream|non_blocking|torch\.Event|torch\.Stream"
    r"|@triton\.jit|current_platform\.|\w\[[^\]\n]*\]\("
)


def read_tables(solver: Solver, read: set[str]) -> Iterator[Module]:
    """The modules that tables in reached modules name, and that speak of the device.

    ``read`` has the modules whose tables were read before.
    """
    program = solver.program
    for module in list(program.parsed):
        if not module.body.mask or module.name in read:
            continue
        read.add(module.name)
        for package in sorted(set(_PATTERN.findall(module.text))):
            for name in sorted(_named(module, package, program.tree.files)):
                found = program.module(name)
                if found is not None and _DEVICE_WORDS.search(found.text):
                    yield found


def _named(module: Module, package: str, files: object) -> set[str]:
    names = set()
    node = module.body.node
    assert isinstance(node, ast.Module)
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            full = f"{package}.{part.value}"
            if part.value and full in files:  # type: ignore[operator]
                names.add(full)
    return names
