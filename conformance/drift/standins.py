"""Stand-ins: what a package binds in place of names of torch and vLLM, read from its source.

An assignment to ``torch.cuda.Stream``, a ``setattr``, a ``mock.patch``: each gives a target, what
stands there afterwards, and for how long. Nothing is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance.drift.shapes import Shape

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class StandIn:
    """One name that is bound anew.

    ``shape`` is what it takes when it is called, None where the source does not show it.
    ``members`` are those of a class that stands in for a class, None where it may have any.
    """

    target: str
    where: str
    """``module:line`` of the binding."""
    shape: Shape | None = None
    members: Mapping[str, Shape | None] | None = None
    scoped: bool = False
    """Whether it is taken back soon: it is bound in a context manager that restores."""

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary; what is unknown is left out."""
        data: dict[str, Any] = {"target": self.target, "where": self.where}
        if self.shape is not None:
            data["shape"] = self.shape.to_json()
        if self.members is not None:
            data["members"] = {
                name: None if shape is None else shape.to_json()
                for name, shape in sorted(self.members.items())
            }
        if self.scoped:
            data["scoped"] = True
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StandIn:
        """Read what `to_json` gave."""
        members = data.get("members")
        return cls(
            data["target"],
            data["where"],
            None if "shape" not in data else Shape.from_json(data["shape"]),
            None
            if members is None
            else {n: None if s is None else Shape.from_json(s) for n, s in members.items()},
            data.get("scoped", False),
        )


@dataclass(slots=True)
class Source:
    """Modules of one package, parsed when they are asked for."""

    texts: Mapping[str, Any]
    """By module: its source, as text or bytes, or a function that reads it."""
    packages: frozenset[str] = frozenset()
    """Modules that are packages: relative imports start there."""
    _parsed: dict[str, Module | None] = field(default_factory=dict)

    def module(self, name: str) -> Module | None:
        """A module, None if there is none, or if it is no Python that is understood here."""
        if name not in self._parsed:
            text = self.texts.get(name)
            try:
                tree = None if text is None else ast.parse(text() if callable(text) else text)
            except (SyntaxError, ValueError, RecursionError):
                tree = None
            self._parsed[name] = (
                None if tree is None else Module(name, tree, name in self.packages, self)
            )
        return self._parsed[name]


class Module:
    """One module: its names, and what they are bound to."""

    def __init__(self, name: str, tree: ast.Module, is_package: bool, source: Source) -> None:
        self.name = name
        self.tree = tree
        self.source = source
        self._is_package = is_package
        self.imports: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bound = alias.asname or alias.name.partition(".")[0]
                    self.imports[bound] = alias.name if alias.asname else bound
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                for alias in node.names:
                    self.imports[alias.asname or alias.name] = f"{base}.{alias.name}".lstrip(".")
        self.top: dict[str, ast.AST] = {}
        for statement in _flat(tree.body):
            for bound_name, value in _bindings(statement):
                self.top[bound_name] = value

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        keep = len(parts) - node.level + (1 if self._is_package else 0)
        return ".".join([*parts[: max(0, keep)], *([node.module] if node.module else [])])

    def dotted(self, node: ast.AST) -> str | None:
        """The dotted name of an expression, by the module's imports; None if it has none."""
        match node:
            case ast.Name(id=name):
                if name in self.imports:
                    return self.imports[name]
                return f"{self.name}.{name}" if name in self.top else None
            case ast.Attribute(value=value, attr=attribute):
                owner = self.dotted(value)
                return None if owner is None else f"{owner}.{attribute}"
            case _:
                return None

    def find(self, dotted: str) -> tuple[Module, ast.AST] | None:
        """The definition that a dotted name of this source leads to, through re-exports."""
        seen = set()
        while dotted not in seen:
            seen.add(dotted)
            parts = dotted.split(".")
            for count in range(len(parts) - 1, 0, -1):
                module = self.source.module(".".join(parts[:count]))
                if module is None:
                    continue
                name, rest = parts[count], parts[count + 1 :]
                if name in module.top and not rest:
                    return module, module.top[name]
                if name in module.top:
                    inner = _member(module.top[name], rest)
                    return None if inner is None else (module, inner)
                if name in module.imports:
                    dotted = ".".join([module.imports[name], *rest])
                break
            else:
                return None
        return None


def stand_ins(source: Source, modules: Iterator[str]) -> Iterator[StandIn]:
    """Every name of torch or vLLM that the modules bind anew, in their order."""
    for name in modules:
        module = source.module(name)
        if module is not None:
            yield from _Reader(module).read()


class _Reader:
    def __init__(self, module: Module) -> None:
        self.module = module

    def read(self) -> Iterator[StandIn]:
        yield from self._block(self.module.tree.body, (), restored=False)

    def _block(
        self, body: list[ast.stmt], around: tuple[FunctionNode, ...], *, restored: bool
    ) -> Iterator[StandIn]:
        for statement in body:
            match statement:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield from self._block(statement.body, (*around, statement), restored=False)
                case ast.ClassDef(body=inner):
                    yield from self._block(inner, around, restored=False)
                case ast.Try(body=inner, handlers=handlers, orelse=orelse, finalbody=final):
                    # What a `finally` binds is what was there before.
                    yield from self._block(
                        [*inner, *orelse, *(s for h in handlers for s in h.body)],
                        around,
                        restored=restored or bool(final),
                    )
                case ast.If(body=inner, orelse=orelse) | ast.For(body=inner, orelse=orelse):
                    yield from self._block([*inner, *orelse], around, restored=restored)
                case ast.With(body=inner):
                    yield from self._block(inner, around, restored=restored)
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        if isinstance(target, ast.Attribute):
                            owner = self._owner(target.value, around)
                            dotted = f"{owner}.{target.attr}" if owner is not None else None
                            yield from self._bound(dotted, value, statement, around, restored)
                case ast.Expr(value=ast.Call() as call):
                    yield from self._called(call, around, restored)
                case _:
                    pass

    def _called(
        self, call: ast.Call, around: tuple[FunctionNode, ...], restored: bool
    ) -> Iterator[StandIn]:
        function = ast.unparse(call.func)
        match call.args:
            case [owner, name, value] if function in ("setattr", "builtins.setattr"):
                text = self._constant(name, around)
                dotted = self._owner(owner, around)
                if text is not None and dotted is not None:
                    yield from self._bound(f"{dotted}.{text}", value, call, around, restored)
            case [ast.Constant(value=str(target)), value, *_] if function.endswith("patch"):
                yield from self._bound(target, value, call, around, restored)
            case [ast.Dict(keys=keys, values=values)] if function == "register_kernels":
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        yield from self._bound(key.value, value, call, around, restored)

    def _owner(self, node: ast.expr, around: tuple[FunctionNode, ...]) -> str | None:
        """The dotted name of what an attribute is set on; a module may be looked up by its name."""
        dotted = self.module.dotted(node)
        if dotted is not None or not isinstance(node, ast.Name):
            return dotted
        for function in reversed(around):
            for inner in _flat(function.body):
                for bound, value in _bindings(inner):
                    if bound == node.id:
                        return _looked_up(value)
        return None

    def _constant(self, node: ast.expr, around: tuple[FunctionNode, ...]) -> str | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.Name):
            for function in reversed(around):
                for inner in ast.walk(function):
                    match inner:
                        case ast.Assign(
                            targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))
                        ) if name == node.id:
                            return text
        return None

    def _bound(
        self,
        target: str | None,
        value: ast.expr,
        node: ast.stmt | ast.expr,
        around: tuple[FunctionNode, ...],
        restored: bool,
    ) -> Iterator[StandIn]:
        if target is None or not target.startswith(("torch.", "vllm.")):
            return
        if not _is_replacement(value):
            return
        shape, members = value_of(self.module, value, around)
        scoped = restored and any(
            "contextmanager" in ast.unparse(decorator)
            for function in around
            for decorator in function.decorator_list
        )
        yield StandIn(target, f"{self.module.name}:{node.lineno}", shape, members, scoped)


def _looked_up(value: ast.AST) -> str | None:
    """The module that ``sys.modules`` or ``import_module`` is asked for."""
    match value:
        case ast.Call(func=func, args=[ast.Constant(value=str(name)), *_]) if ast.unparse(func) in (
            "sys.modules.get",
            "importlib.import_module",
            "import_module",
        ):
            return name
        case ast.Subscript(value=owner, slice=ast.Constant(value=str(name))) if (
            ast.unparse(owner) == "sys.modules"
        ):
            return name
        case _:
            return None


def _is_replacement(value: ast.expr) -> bool:
    """Whether a value can stand in for a function, a class or a module; settings cannot."""
    return isinstance(value, ast.Name | ast.Attribute | ast.Lambda | ast.Call)


def value_of(
    module: Module, value: ast.AST, around: tuple[FunctionNode, ...] = (), depth: int = 0
) -> tuple[Shape | None, dict[str, Shape | None] | None]:
    """Return what a value takes when it is called, and its members if it is a class."""
    if depth > 6:
        return None, None
    match value:
        case ast.Lambda():
            return Shape.of(value, bound=False), None
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return Shape.of(value, bound=False), None
        case ast.ClassDef():
            return _class(module, value, around)
        case ast.Name(id=name):
            for function in reversed(around):
                for inner in _flat(function.body):
                    for bound, found in _bindings(inner):
                        if bound == name and found is not value:
                            return value_of(module, found, around, depth + 1)
            if name in module.top:
                return value_of(module, module.top[name], (), depth + 1)
        case ast.Call(func=func, args=[first, *_]) if _wraps(func):
            return value_of(module, first, around, depth + 1)
        case _:
            pass
    dotted = module.dotted(value)
    found_at = module.find(dotted) if dotted is not None else None
    if found_at is not None and found_at[1] is not value:
        return value_of(found_at[0], found_at[1], (), depth + 1)
    return None, None


def _wraps(func: ast.expr) -> bool:
    """Whether a call gives something that is called like what it was given."""
    name = ast.unparse(func).rpartition(".")[2].lower()
    return "wrap" in name or "override" in name or name in ("partial", "staticmethod")


def _class(
    module: Module, node: ast.ClassDef, around: tuple[FunctionNode, ...]
) -> tuple[Shape | None, dict[str, Shape | None] | None]:
    shape: Shape | None = Shape()
    members: dict[str, Shape | None] = {}
    for base in node.bases:
        dotted = module.dotted(base)
        found = module.find(dotted) if dotted is not None else None
        if found is None or not isinstance(found[1], ast.ClassDef):
            return None, None  # what it inherits is not shown here
        base_shape, inherited = _class(found[0], found[1], ())
        if inherited is None:
            return None, None
        members |= inherited
        shape = base_shape
    for statement in node.body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                decorators = {ast.unparse(decorator) for decorator in statement.decorator_list}
                taken = Shape.of(statement, bound="staticmethod" not in decorators)
                is_value = any(text.endswith("property") for text in decorators)
                members[statement.name] = None if is_value else taken
                if statement.name == "__init__":
                    shape = taken
                    members |= _own(module, statement, around)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                members[name] = value_of(module, value, around)[0]
            case ast.AnnAssign(target=ast.Name(id=name)):
                members[name] = None
            case _:
                pass
    return shape, members


def _own(
    module: Module, init: FunctionNode, around: tuple[FunctionNode, ...]
) -> Iterator[tuple[str, Shape | None]]:
    """Attributes that a constructor gives its instance."""
    owner = init.args.args[0].arg if init.args.args else "self"
    for node in ast.walk(init):
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            match target:
                case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == owner:
                    assert isinstance(node, ast.Assign)
                    yield attribute, value_of(module, node.value, around)[0]


def _member(node: ast.AST, rest: list[str]) -> ast.AST | None:
    for name in rest:
        if not isinstance(node, ast.ClassDef):
            return None
        for statement in node.body:
            found = dict(_bindings(statement)).get(name)
            if found is not None:
                node = found
                break
        else:
            return None
    return node


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a block, and those under its conditions."""
    for statement in body:
        yield statement
        match statement:
            case ast.If(body=inner, orelse=orelse):
                yield from _flat([*inner, *orelse])
            case ast.Try(body=inner, handlers=handlers, orelse=orelse, finalbody=final):
                yield from _flat([*inner, *orelse, *final])
                for handler in handlers:
                    yield from _flat(handler.body)
            case ast.With(body=inner):
                yield from _flat(inner)
            case _:
                pass


def _bindings(statement: ast.stmt) -> Iterator[tuple[str, ast.AST]]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name, statement
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id, value
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
            yield name, value
        case _:
            pass
