"""The code of a source tree: modules, classes and functions, parsed when they are first asked for.

Nothing is imported. Names are resolved statically (imports, definitions, aliases at the top of a
module) where the order of classes depends on it; what flows where is the solver's business.
"""

from __future__ import annotations

import ast
import re
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from conformance.surface import outline
from conformance.surface.sources import SourceTree, decode
from conformance.target import WrongUse

if TYPE_CHECKING:
    from conformance.surface.graph import (
        CallUse,
        Given,
        Guard,
        ImportUse,
        Node,
        Occurrence,
        Value,
    )

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_DEVICE_PARTS = (
    *("pin_memory", "non_blocking", "torch.accelerator", "record_stream", "torch.Event"),
    *("torch.Stream", "@triton.jit"),
)
"""A source that holds a site holds one of these, or one of the next two."""
_CUDA = re.compile(r"cuda\b")
_PLATFORM = re.compile(r"current_platform\.(is_|has_|support)")
_FIELD_STORE = re.compile(r"\b(?:self|cls)\.(\w+)\s*(?:[=:,)]|[-+*/|&]=)")
_GLOBAL = re.compile(r"^[ \t]+global[ \t]+([\w, \t]+)", re.MULTILINE)
_CLASS_DECORATORS = {"dataclass", "dataclasses.dataclass", "config", "define"}


class Symbol(NamedTuple):
    """What a name stands for: a module or class of the tree, or a dotted name outside of it."""

    kind: str
    """``module``, ``class``, ``function``, ``expression`` or ``external``."""
    name: str
    definition: Class | Function | ast.expr | None = None
    module: Module | None = None


def speaks_of_device(text: str) -> bool:
    """Whether a source can hold a site."""
    if any(part in text for part in _DEVICE_PARTS) or _PLATFORM.search(text) is not None:
        return True
    # A pattern that begins with a text is found faster than one with a word's boundary.
    return any(not _in_word(text, match.start()) for match in _CUDA.finditer(text))


def _in_word(text: str, position: int) -> bool:
    before = text[position - 1 : position]
    return before.isalnum() or before == "_"


class Module:
    """A parsed module. ``bindings`` has each name bound at its top level, in source order."""

    __slots__ = (
        "_field_stores",
        "_restored",
        "_set_by_functions",
        "_spans",
        "_speaks",
        "_starts",
        "bindings",
        "body",
        "classes",
        "evaluates_annotations",
        "file",
        "globals",
        "is_package",
        "name",
        "program",
        "stars",
        "text",
    )

    def __init__(
        self,
        program: Program,
        name: str,
        tree: ast.Module,
        text: str,
        spans: dict[int, outline.Span],
    ) -> None:
        self.program = program
        self.name = name
        self.file = program.tree.files[name].path
        self.is_package = program.tree.files[name].is_package
        self.text = text
        self._starts: array[int] | None = None
        self._spans = spans
        self._restored: dict[int, outline.Span] = {}
        self._speaks: bool | None = None
        self._field_stores: dict[str, list[int]] | None = None
        self._set_by_functions: frozenset[str] | None = None
        self.bindings: dict[str, list[tuple[str, ast.AST, str]]] = {}
        self.classes: dict[str, Class] = {}
        self.globals: dict[str, Node] = {}
        self.stars: list[str] = []
        self.evaluates_annotations = True
        self.body = Function(self, "<module>", tree, None, None)
        self._bind(tree.body)

    @property
    def speaks_of_device(self) -> bool:
        """Whether its text can hold a site."""
        if self._speaks is None:
            self._speaks = speaks_of_device(self.text)
        return self._speaks

    def _lines(self, first: int, last: int) -> str:
        """The text of some of its lines, counted from 1; empty where there are none."""
        if self._starts is None:  # lists of lines would take more memory than the text
            lengths = map(len, self.text.splitlines(keepends=True))
            self._starts = array("L", accumulate(lengths, initial=0))
        starts = self._starts
        return self.text[starts[first - 1] : starts[last]] if 0 < last < len(starts) else ""

    def restore(self, node: FunctionNode) -> None:
        """Give a function of this module its body, if it was left out when the module was parsed.

        Raises:
            WrongUse: the body cannot be parsed.
        """
        span = self._spans.pop(node.lineno, None) if self._spans else None
        if span is not None and not isinstance(node, ast.Lambda):
            with parsing(self.file):
                node.body = outline.parse_body(self._lines(*span), span[0], self.file)
            node.end_lineno = span[1]
            self._restored[node.lineno] = span

    def release(self, node: FunctionNode) -> None:
        """Take the body away again, once it was walked: it is most of what a walk holds."""
        span = self._restored.pop(node.lineno, None)
        if span is not None and not isinstance(node, ast.Lambda):
            node.body = []
            self._spans[node.lineno] = span

    def computed(self, name: str) -> ast.expr | None:
        """What the module's ``__getattr__`` returns under ``if name == <the name>``."""
        for _, node, _ in self.bindings.get("__getattr__", ()):
            if not isinstance(node, ast.FunctionDef):
                continue
            self.restore(node)
            for statement in node.body:
                match statement:
                    case ast.If(
                        test=ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant(value=found)]),
                        body=[ast.Return(value=ast.expr() as value)],
                    ) if found == name:
                        return value
                    case _:
                        pass
        return None

    def extent(self, node: ast.stmt) -> tuple[int, int]:
        """First and last line of a statement; of a function, with a body that was left out."""
        _, last = self._spans.get(node.lineno, (0, node.end_lineno or node.lineno))
        return node.lineno, last

    def segment(self, node: ast.stmt) -> str:
        """The lines of a statement."""
        return self._lines(*self.extent(node))

    def text_of(self, node: ast.expr) -> str:
        """The source of an expression, roughly: enough to look for words in it."""
        last = getattr(node, "end_lineno", None) or 0
        text = self._lines(node.lineno, last) if last else ""
        if not text:
            return ast.unparse(node)  # not from this source
        return text[node.col_offset : node.end_col_offset] if last == node.lineno else text

    @property
    def field_stores(self) -> dict[str, list[int]]:
        """Lines where ``self.<name>`` may be assigned, by name."""
        if self._field_stores is None:
            self._field_stores = {}
            for number, line in enumerate(self.text.splitlines(), 1):
                if "self." in line or "cls." in line:
                    for name in _FIELD_STORE.findall(line):
                        self._field_stores.setdefault(name, []).append(number)
        return self._field_stores

    @property
    def set_by_functions(self) -> frozenset[str]:
        """Names that functions assign too: what the module's body binds says little of them."""
        if self._set_by_functions is None:
            found = _GLOBAL.findall(self.text) if "global " in self.text else ()
            self._set_by_functions = frozenset(
                name.strip() for names in found for name in names.split(",")
            )
        return self._set_by_functions

    def absolute(self, module: str | None, level: int) -> str:
        """The absolute name of ``from <level dots><module> import``."""
        if not level:
            return module or ""
        parts = self.name.split(".")
        keep = len(parts) - level + (1 if self.is_package else 0)
        base = ".".join(parts[: max(keep, 0)])
        return f"{base}.{module}" if module and base else (module or base)

    def _bind(self, body: list[ast.stmt]) -> None:
        for statement in body:
            match statement:
                case ast.ClassDef():
                    self.classes[statement.name] = Class(self, statement.name, statement, None)
                    self._add(statement.name, "class", statement)
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self._add(statement.name, "function", statement)
                case ast.Import():
                    for alias in statement.names:
                        name = alias.asname or alias.name.partition(".")[0]
                        target = alias.name if alias.asname else name
                        self._add(name, "module", statement, target)
                case ast.ImportFrom():
                    source = self.absolute(statement.module, statement.level)
                    if source == "__future__":
                        names = {alias.name for alias in statement.names}
                        self.evaluates_annotations = "annotations" not in names
                        continue
                    for alias in statement.names:
                        if alias.name == "*":
                            self.stars.append(source)
                        else:
                            target = f"{source}:{alias.name}"
                            self._add(alias.asname or alias.name, "from", statement, target)
                case ast.Assign(targets=targets, value=value):
                    for assigned in targets:
                        if isinstance(assigned, ast.Name):
                            self._add(assigned.id, "expression", value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                    self._add(name, "expression", value)
                case ast.If(body=then, orelse=otherwise):
                    self._bind(then)
                    self._bind(otherwise)
                case ast.Try() | ast.TryStar():
                    for block in (
                        statement.body,
                        *(handler.body for handler in statement.handlers),
                        statement.orelse,
                        statement.finalbody,
                    ):
                        self._bind(block)
                case ast.With(body=inner) | ast.For(body=inner) | ast.While(body=inner):
                    self._bind(inner)
                case _:
                    pass

    def _add(self, name: str, kind: str, node: ast.AST, target: str = "") -> None:
        self.bindings.setdefault(name, []).append((kind, node, target))


class Class:
    """A class of the tree.

    ``attributes`` are the nodes of what its body binds, ``mask`` has the worlds in which it has
    instances.
    """

    def __init__(
        self, module: Module, qualname: str, node: ast.ClassDef, scope: Function | None
    ) -> None:
        self.module = module
        self.qualname = qualname
        self.node = node
        self.scope = scope
        self.attributes: dict[str, Node] = {}
        self.methods: dict[str, Function] = {}
        self.fields: dict[str, Node] = {}
        self.factories: dict[str, Node] = {}
        self.annotations: dict[str, tuple[Module, ast.expr]] = {}
        self.is_live = False
        self.mask = 0

    @property
    def name(self) -> str:
        """``module.Class``."""
        return f"{self.module.name}.{self.qualname}"

    @cached_property
    def own_functions(self) -> dict[str, ast.FunctionDef]:
        """The functions of its body, the first of each name."""
        functions = [s for s in self.node.body if isinstance(s, ast.FunctionDef)]
        return {function.name: function for function in reversed(functions)}

    @cached_property
    def own_names(self) -> frozenset[str]:
        """The names of the functions of its body, and those that it assigns."""
        return frozenset(name for statement in self.node.body for name in bound_by(statement))

    @cached_property
    def mro(self) -> tuple[Class, ...]:
        """The classes of the tree in its method resolution order, itself first."""
        self.mro = (self,)  # a class that inherits from itself ends here
        return self._linearize()

    @cached_property
    def external_bases(self) -> tuple[str, ...]:
        """Dotted names of the bases from outside the tree, of all classes in the MRO."""
        resolve = self.module.program.resolve
        symbols = (resolve(cls.module, base) for cls in self.mro for base in cls.node.bases)
        return tuple(s.name for s in symbols if s is not None and s.kind == "external")

    @cached_property
    def is_enum(self) -> bool:
        """Whether its members are enum members."""
        return any(base.split(".")[-1].endswith(("Enum", "Flag")) for base in self.external_bases)

    @cached_property
    def is_dataclass(self) -> bool:
        """Whether its constructor takes its annotated fields (dataclass, NamedTuple, pydantic)."""
        if any(
            base.split(".")[-1] in ("NamedTuple", "BaseModel", "Struct")
            for base in self.external_bases
        ):
            return True
        return any(
            ast.unparse(d.func if isinstance(d, ast.Call) else d) in _CLASS_DECORATORS
            for cls in self.mro
            for d in cls.node.decorator_list
        )

    def _linearize(self) -> tuple[Class, ...]:
        bases: list[Class] = []
        for base in self.node.bases:
            symbol = self.module.program.resolve(self.module, base)
            if symbol is not None and isinstance(symbol.definition, Class):
                bases.append(symbol.definition)
        sequences = [list(base.mro) for base in bases] + [list(bases)]
        order: list[Class] = [self]
        while sequences := [sequence for sequence in sequences if sequence]:
            head = next(
                (
                    sequence[0]
                    for sequence in sequences
                    if not any(sequence[0] in other[1:] for other in sequences)
                ),
                sequences[0][0],  # an order that Python would refuse: any will do
            )
            order.append(head)
            sequences = [[c for c in sequence if c is not head] for sequence in sequences]
        return tuple(order)


class Function:
    """A function, method, lambda or module body, with all that the solver knows of it.

    ``mask`` has the worlds in which it is reached (see ``solver``); it ``is_proven`` if calls whose
    target is known lead to it. ``driven_as`` is the name of the entry point that it is, which what
    a decorator made of one does not have itself. ``returned`` has the guards of its ``return``
    statements, and whether it is None that they return. ``entered`` has what known calls pass, who
    calls, whether an object comes first, and the worlds; in those of ``unseen`` others may call.
    """

    __slots__ = (
        "_place",
        "arguments",
        "calls",
        "cls",
        "decorated_with",
        "decorators",
        "driven_as",
        "edges",
        "entered",
        "is_module",
        "is_proven",
        "is_visited",
        "kind",
        "line",
        "mask",
        "module",
        "names",
        "node",
        "occurrences",
        "own_contexts",
        "parameters",
        "parent",
        "qualname",
        "result",
        "returned",
        "seeds",
        "stored",
        "unseen",
    )

    def __init__(
        self,
        module: Module,
        qualname: str,
        node: ast.Module | FunctionNode,
        cls: Class | None,
        parent: Function | None,
    ) -> None:
        self.module = module
        self.qualname = qualname
        self.node: ast.Module | FunctionNode | None = node
        self.is_module = qualname == "<module>"
        self.arguments = node.args if not isinstance(node, ast.Module) else None
        self.parameters = _positional(self.arguments)
        self.decorators = (
            node.decorator_list if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else []
        )
        self.line: int = getattr(node, "lineno", 1)
        self.cls = cls
        self.parent = parent
        self.kind = "kernel" if _is_kernel(self.decorators) else _kind(self.decorators)
        self.mask = 0
        self.is_visited = False
        self.is_proven = False
        self.names: dict[str, Node] = {}
        self.stored: set[str] = set()
        self.seeds: list[tuple[Node, Value, int]] = []
        self.calls: list[CallUse | ImportUse] = []
        self.occurrences: list[Occurrence] = []
        self.edges: dict[tuple[Function, int, bool, bool], tuple[int, Guard | None]] = {}
        self.entered: dict[tuple[Given, Function, bool], int] = {}
        self.unseen = 0
        self._place: Place | None = None
        self.decorated_with: list[Node] = []
        self.returned: list[tuple[Guard, bool]] = []
        self.own_contexts: int | None = None
        self.driven_as: str | None = None
        self.result: Node | None = None

    @property
    def name(self) -> str:
        """Its own name, without what it is nested in."""
        return self.qualname.rpartition(".")[2]

    @property
    def key(self) -> str:
        """``module:qualname``."""
        return f"{self.module.name}:{self.qualname}"

    @property
    def place(self) -> Place:
        """Where its statements stand."""
        if self._place is None:
            functions: list[FunctionNode] = []
            inner: Function | None = self
            while inner is not None:
                if inner.node is not None and not isinstance(inner.node, ast.Module):
                    functions.append(inner.node)
                inner = inner.parent
            self._place = Place(self.module, self.cls, tuple(functions))
        return self._place

    def __repr__(self) -> str:
        return self.key


class Place(NamedTuple):
    """Where an expression stands: its module, class, and the functions around it, inside first."""

    module: Module
    cls: Class | None = None
    functions: tuple[FunctionNode, ...] = ()


class Program:
    """The modules of a tree, each parsed once, when it is first asked for."""

    def __init__(self, tree: SourceTree, package: str = "vllm") -> None:
        self.tree = tree
        self.package = package
        self._modules: dict[str, Module | None] = {}
        self._resolving: set[tuple[str, str]] = set()
        self._found: dict[tuple[str, str], Symbol | None] = {}
        self._with_packages: dict[str, tuple[Module, ...]] = {}

    @property
    def parsed(self) -> Iterator[Module]:
        """The modules parsed so far."""
        return (module for module in list(self._modules.values()) if module is not None)

    def has(self, name: str) -> bool:
        """Whether the tree has a module of this name."""
        return name in self.tree.files

    def with_packages(self, name: str) -> tuple[Module, ...]:
        """What importing a module runs: the packages that it is in, outermost first, and itself."""
        found = self._with_packages.get(name)
        if found is None:
            parts = name.split(".")
            names = (".".join(parts[:count]) for count in range(1, len(parts) + 1))
            modules = (self.module(one) for one in names)
            found = tuple(module for module in modules if module is not None)
            self._with_packages[name] = found
        return found

    def module(self, name: str) -> Module | None:
        """The module, or None if the tree has none of this name.

        Raises:
            WrongUse: it cannot be parsed; the message has its path and line.
        """
        if name not in self._modules:
            self._modules[name] = self._parse(name) if self.has(name) else None
        return self._modules[name]

    def _parse(self, name: str) -> Module:
        path = self.tree.files[name].path
        text = decode(self.tree.read(name), path)
        with parsing(path):
            tree, spans = outline.parse(text, path)
        return Module(self, name, tree, text, spans)

    def resolve(self, module: Module, expression: ast.expr) -> Symbol | None:
        """What an expression of names and attributes at a module's top level stands for."""
        match expression:
            case ast.Name(id=name):
                return self.lookup(module, name)
            case ast.Attribute(value=value, attr=name):
                base = self.resolve(module, value)
                return None if base is None else self.member(base, name)
            case ast.Subscript(value=value):  # Generic[T]
                return self.resolve(module, value)
            case ast.Constant(value=str(text)):
                try:
                    return self.resolve(module, ast.parse(text, mode="eval").body)
                except (SyntaxError, ValueError):
                    return None
            case _:
                return None

    def member(self, base: Symbol, name: str) -> Symbol | None:
        """What an attribute of a resolved name stands for."""
        if base.kind == "external":
            return Symbol("external", f"{base.name}.{name}")
        if base.kind == "module":
            module = self.module(base.name)
            found = self.lookup(module, name) if module else None
            if found is None and self.has(f"{base.name}.{name}"):
                return Symbol("module", f"{base.name}.{name}")
            return found
        if isinstance(base.definition, Class):
            for cls in base.definition.mro:
                for statement in cls.node.body:
                    if isinstance(statement, ast.ClassDef) and statement.name == name:
                        return None
        return None

    def lookup(self, module: Module, name: str) -> Symbol | None:
        """What a global name of a module stands for, through imports and aliases."""
        key = (module.name, name)
        if key in self._found:
            return self._found[key]
        if key in self._resolving:
            return None
        self._resolving.add(key)
        try:
            found = self._lookup(module, name)
        finally:
            self._resolving.discard(key)
        if not self._resolving:  # else a name may be left out on which this one rests
            self._found[key] = found
        return found

    def _lookup(self, module: Module, name: str) -> Symbol | None:
        bindings = module.bindings.get(name, ())
        for kind, node, target in bindings:
            if kind == "class":
                cls = module.classes[name]
                return Symbol("class", cls.name, cls, module)
            if kind == "function":
                return Symbol("function", f"{module.name}.{name}", None, module)
            if kind == "module":
                kind = "module" if self.has(target) else "external"
                return Symbol(kind, target)
            if kind == "from":
                found = self.imported(target)
                if found is not None:
                    return found
            if kind == "expression" and isinstance(node, ast.Name | ast.Attribute):
                found = self.resolve(module, node)
                if found is not None:
                    return found
        for kind, node, _ in bindings:
            if kind == "expression" and isinstance(node, ast.expr):
                return Symbol("expression", f"{module.name}.{name}", node, module)
        for source in module.stars:
            star = self.module(source)
            found = self.lookup(star, name) if star else None
            if found is not None:
                return found
        computed = None if bindings else module.computed(name)
        if computed is not None:
            return Symbol("expression", f"{module.name}.{name}", computed, module)
        return None

    def imported(self, target: str) -> Symbol | None:
        """What ``module:name`` of a from-import stands for."""
        source, _, name = target.partition(":")
        if not self.has(source):
            inside = source.partition(".")[0] == self.package
            return None if inside else Symbol("external", f"{source}.{name}")
        module = self.module(source)
        found = self.lookup(module, name) if module else None
        if found is None and self.has(f"{source}.{name}"):
            return Symbol("module", f"{source}.{name}")
        return found


def bound_by(statement: ast.stmt) -> Iterator[str]:
    """The names that a simple statement binds."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Assign(targets=targets):
            for target in targets:
                if isinstance(target, ast.Name):
                    yield target.id
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            yield name
        case ast.ImportFrom(names=names):
            for alias in names:
                yield alias.asname or alias.name
        case _:
            pass


def _positional(arguments: ast.arguments | None) -> tuple[str, ...]:
    """The names of the parameters that an argument's position can mean."""
    if arguments is None:
        return ()
    return tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args))


def _is_kernel(decorators: list[ast.expr]) -> bool:
    """Whether a function is compiled for the device, by Triton's or Gluon's decorator."""
    for decorator in decorators:
        node = decorator.func if isinstance(decorator, ast.Call) else decorator
        text = ast.unparse(node)
        if text.endswith("jit") and ("triton" in text or "gluon" in text):
            return True
    return False


def _kind(decorators: list[ast.expr]) -> str:
    for decorator in decorators:
        node = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        if name in ("property", "cached_property", "abstractproperty"):
            return "property"
        if name == "staticmethod":
            return "static"
        if name in ("classmethod", "abstractclassmethod"):
            return "class"
    return "function"


@contextmanager
def parsing(path: str) -> Iterator[None]:
    """Turn what ast.parse raises into a sentence."""
    try:
        yield
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or "?"
        what = getattr(error, "msg", None) or type(error).__name__
        raise WrongUse(
            f"{path}, line {line}, is not Python that this interpreter can parse ({what}): "
            "mend the source, or use a newer Python."
        ) from error


def only_return(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.expr | None:
    """The value of a function that does nothing but return one."""
    body = [
        s
        for s in function.body
        if not isinstance(s, ast.Import | ast.ImportFrom)
        and not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
    ]
    if len(body) == 1 and isinstance(body[0], ast.Return):
        return body[0].value
    return None
