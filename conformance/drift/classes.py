"""Which methods of vLLM's runner and worker a class replaces, and what the replaced ones take."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from conformance.drift.shapes import Shape
from conformance.drift.side import Override
from conformance.drift.standins import Module, Source
from conformance.surface.model import Call

_ATTRIBUTE = re.compile(r"(?<!super\(\))\.([A-Za-z_]\w*)")
_QUOTED = re.compile(r"['\"]([A-Za-z_]\w*)['\"]")

Method = tuple[Module, ast.FunctionDef | ast.AsyncFunctionDef]


def overrides_of(
    source: Source,
    classes: Iterable[tuple[str, str, str]],
    base: Source | None = None,
) -> dict[str, dict[str, Override]]:
    """Read the overrides of classes, each given as module, name and role.

    ``base`` is where the base classes are looked for that ``source`` does not have; without it
    nothing is said of what is replaced.
    """
    found: dict[str, dict[str, Override]] = {}
    for module_name, name, role in classes:
        module = source.module(module_name)
        node = module.top.get(name) if module is not None else None
        if module is None or not isinstance(node, ast.ClassDef):
            continue
        replaced = dict(methods(module, node, base, skip_own=True))
        for method, (where, function) in own_methods(module, node):
            shape = Shape.of(function, bound=True)
            original = replaced.get(method)
            found.setdefault(role, {})[method] = Override(
                where=f"{where.name}:{function.lineno}",
                shape=shape,
                calls_super=calls_super(function),
                base=None if original is None else Shape.of(original[1], bound=True),
                base_where="" if original is None else f"{original[0].name}:{original[1].lineno}",
                refused=tuple(_super_refused(function, original)),
            )
    return found


def own_methods(module: Module, node: ast.ClassDef) -> Iterator[tuple[str, Method]]:
    """The methods that a class itself defines; properties are none."""
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = {ast.unparse(decorator) for decorator in statement.decorator_list}
            if not decorators & {"staticmethod", "property", "classmethod"}:
                yield statement.name, (module, statement)


def methods(
    module: Module, node: ast.ClassDef, base: Source | None = None, *, skip_own: bool = False
) -> Iterator[tuple[str, Method]]:
    """All methods of a class, farthest base first, so that a mapping keeps the nearest."""
    for parent in reversed(node.bases):
        found = resolve(module, parent, base)
        if found is not None:
            yield from methods(*found, base)
    if not skip_own:
        yield from own_methods(module, node)


def resolve(
    module: Module, node: ast.expr, base: Source | None
) -> tuple[Module, ast.ClassDef] | None:
    """The class that an expression names, in its own source or in another."""
    dotted = module.dotted(node)
    if dotted is None:
        return None
    found = module.find(dotted)
    if found is None and base is not None:
        found = lookup(base, dotted)
    if found is None or not isinstance(found[1], ast.ClassDef):
        return None
    return found[0], found[1]


def lookup(source: Source, dotted: str) -> tuple[Module, ast.AST] | None:
    """What a dotted name of a source leads to."""
    parts = dotted.split(".")
    for count in range(len(parts) - 1, 0, -1):
        module = source.module(".".join(parts[:count]))
        if module is not None:
            return module.find(dotted)
    return None


def refusals_of(
    source: Source, classes: Iterable[tuple[str, str, str]]
) -> dict[str, tuple[str, ...]]:
    """By role, attributes that a constructor asserts to be None or false."""
    found: dict[str, tuple[str, ...]] = {}
    for module_name, name, role in classes:
        module = source.module(module_name)
        node = module.top.get(name) if module is not None else None
        if module is None or not isinstance(node, ast.ClassDef):
            continue
        init = dict(own_methods(module, node)).get("__init__")
        names = [n for s in (init[1].body if init else ()) if (n := _refused(s)) is not None]
        if names:
            found[role] = tuple(names)
    return found


def _refused(statement: ast.stmt) -> str | None:
    match statement:
        case ast.Assert(
            test=ast.Compare(
                left=ast.Attribute(value=ast.Name(id="self"), attr=name),
                ops=[ast.Is()],
                comparators=[ast.Constant(value=None)],
            )
            | ast.UnaryOp(op=ast.Not(), operand=ast.Attribute(value=ast.Name(id="self"), attr=name))
        ):
            return name
        case _:
            return None


def calls_super(function: ast.AST) -> bool:
    """Whether a method calls the one that it replaces."""
    return any(True for _ in _super_calls(function))


def calls_of(module: str, text: str, methods: set[str]) -> Iterator[tuple[str, str, Call]]:
    """Calls of methods by name on ``self``, a runner or a worker: name, ``module:line``, call."""
    if not any(f".{method}(" in text for method in methods):
        return
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in methods:
                if re.fullmatch(r"self(\.(model_runner|runner|worker))?", ast.unparse(owner)):
                    yield name, f"{module}:{node.lineno}", call_of(node)


def call_of(node: ast.Call) -> Call:
    """A call's arguments as source text."""
    return Call(
        tuple(ast.unparse(argument) for argument in node.args),
        tuple(
            f"{k.arg}={ast.unparse(k.value)}" if k.arg else f"**{ast.unparse(k.value)}"
            for k in node.keywords
        ),
    )


def called_names(texts: Mapping[str, str]) -> set[str]:
    """Names that any of the texts reads as an attribute, or names for a call by name."""
    found: set[str] = set()
    for text in texts.values():
        found.update(_ATTRIBUTE.findall(text))
        found.update(_QUOTED.findall(text))
    return found


def _super_calls(function: ast.AST) -> Iterator[ast.Call]:
    name = getattr(function, "name", "")
    for node in ast.walk(function):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=method)
            ) if method == name:
                yield node


def _super_refused(function: ast.AST, original: Method | None) -> Iterator[str]:
    if original is None:
        return
    shape = Shape.of(original[1], bound=True)
    for node in _super_calls(function):
        refused = shape.refuses(call_of(node))
        if refused is not None:
            yield f"it calls the replaced method, and {refused}"
