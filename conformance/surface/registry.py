"""Tables that name modules by string: what they name can be reached, and nothing says when.

A module that builds a module's name from a package and a piece of text (``f"pkg.models.{name}"``)
and holds strings that are modules of that package, names all of them. Of such modules only what
speaks of the device is walked; of the others, what they import is taken as used.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from conformance.surface.program import Module, Program
from conformance.surface.sources import decode

_PATTERN = re.compile(r'f"(vllm(?:\.\w+)+)\.\{')
_IMPORT = re.compile(
    r"^[ \t]*from[ \t]+([\w.]+)[ \t]+import[ \t]+(?:\(([^)]*)\)|([^\n#(]+))", re.MULTILINE
)
_COMMENT = re.compile(r"#[^\n]*")


def named_modules(program: Program, read: set[str]) -> Iterator[str]:
    """The modules that tables name in modules that are reached.

    ``read`` has the modules whose tables were read before.
    """
    for module in list(program.parsed):
        if not module.body.mask or module.name in read:
            continue
        read.add(module.name)
        for package in sorted(set(_PATTERN.findall(module.text))):
            yield from sorted(_named(module, package, program.tree.files))


def source(program: Program, name: str) -> str:
    """A module's text, without parsing it."""
    return decode(program.tree.read(name), program.tree.files[name].path)


def imported_names(program: Program, name: str, text: str) -> Iterator[tuple[str, str]]:
    """Modules and names that a source imports from the tree, read without parsing it."""
    is_package = program.tree.files[name].is_package
    for match in _IMPORT.finditer(text):
        module = _absolute(name, is_package, match[1])
        if not program.has(module):
            continue
        for part in _COMMENT.sub("", match[2] or match[3]).split(","):
            original = part.split(" as ")[0].strip()
            if original.isidentifier():
                yield module, original


def _absolute(name: str, is_package: bool, module: str) -> str:
    level = len(module) - len(module.lstrip("."))
    if not level:
        return module
    parts = name.split(".")
    kept = parts[: len(parts) - level + (1 if is_package else 0)]
    return ".".join((*kept, *filter(None, (module[level:],))))


def _named(module: Module, package: str, files: Mapping[str, object]) -> set[str]:
    names = set()
    node = module.body.node
    assert isinstance(node, ast.Module)
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            full = f"{package}.{part.value}"
            if part.value and full in files:
                names.add(full)
    return names
