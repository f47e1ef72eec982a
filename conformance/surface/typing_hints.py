"""Types from annotations, for what nothing came to: parameters, results, variables and fields."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice

from conformance.surface import torch_api
from conformance.surface.graph import Node, Value
from conformance.surface.program import Class, Function, Module, Symbol
from conformance.surface.solver import Solver
from conformance.surface.worlds import EVERYWHERE, WITHOUT_PROOF

_MOST_HEIRS = 60
"""A base class with more live subclasses than this says too little."""

_CONTAINERS = frozenset({"dict", "defaultdict", "deque", "list", "set", "Dict", "List", "Set"})

_Atom = Class | tuple[Class] | Value
"""A class whose instances are meant, a class that is meant itself (in a tuple), or a value."""


class Hints:
    """Seeds nodes from annotations, when the solver has come to rest."""

    def __init__(self, solver: Solver) -> None:
        self._solver = solver
        self._atoms: dict[int, tuple[_Atom, ...]] = {}
        self._aliases: set[str] = set()
        self._seeded: dict[Node, tuple[int, int]] = {}
        """Nodes with an annotation's values, what had been made by then, and the worlds."""
        self._known: set[Node] = set()
        self._open: list[tuple[Node, tuple[Module, ast.expr, Function]]] = []
        self._looked_at = 0
        self._fields: dict[Class, tuple[int, list[tuple[str, Node]]]] = {}
        self._annotations: dict[Class, tuple[int, dict[str, tuple[Module, ast.expr]]]] = {}

    def apply(self) -> bool:
        """Seed every annotated node that has no value; whether anything was new.

        Containers in fields come last: what is known by then may be put into them.
        """
        return self._apply(containers=False) or self._apply(containers=True)

    def _apply(self, *, containers: bool) -> bool:
        changed = False
        solver = self._solver
        if not containers:
            changed = self._apply_to_annotated()
        for cls in list(solver.live):
            annotations = self._annotations_of(cls)
            for name, node in self._open_fields(cls) if annotations else ():
                found = annotations.get(name)
                if (
                    found is not None
                    and self._is_open(node, EVERYWHERE)
                    and _is_container(found[1]) is containers
                ):
                    changed |= self._seed(node, found[0], found[1], EVERYWHERE)
        return changed

    def _annotations_of(self, cls: Class) -> dict[str, tuple[Module, ast.expr]]:
        """The annotations of a class and its bases, the first of each name."""
        count = sum(len(base.annotations) for base in cls.mro)
        seen, found = self._annotations.get(cls, (0, {}))
        if count > seen:
            found = {n: a for base in reversed(cls.mro) for n, a in base.annotations.items()}
            self._annotations[cls] = count, found
        return found

    def _apply_to_annotated(self) -> bool:
        changed = False
        annotated = self._solver.annotated
        new = islice(annotated.items(), self._looked_at, None)
        self._looked_at = len(annotated)
        still_open = []
        for item in (*self._open, *new):
            node, (module, annotation, function) = item
            mask = EVERYWHERE if function.is_module else function.mask
            if self._is_open(node, mask) and (node.uses or node.edges):
                changed |= self._seed(node, module, annotation, mask)
            if node not in self._known:
                still_open.append(item)
        self._open = still_open
        return changed

    def _open_fields(self, cls: Class) -> list[tuple[str, Node]]:
        """The fields of a class that an annotation can add to, in the order in which they came."""
        seen, fields = self._fields.get(cls, (0, []))
        count = len(cls.fields)
        if count > seen:
            fields = fields + list(islice(cls.fields.items(), seen, None))
        if fields:
            fields = [item for item in fields if item[1] not in self._known]
        self._fields[cls] = (count, fields)
        return fields

    def _is_open(self, node: Node, mask: int) -> bool:
        """Whether an annotation can add to what is known of a node."""
        if not node.values:  # it was not seeded
            return True
        seeded = self._seeded.get(node)
        if seeded is not None:
            return seeded != (self._solver.made, mask)
        if node.is_unknown:
            return True
        self._known.add(node)
        return False

    def _seed(self, node: Node, module: Module, annotation: ast.expr, mask: int) -> bool:
        atoms = self._atoms.get(id(annotation))
        if atoms is None:
            atoms = tuple(self._read(module, annotation))
            self._atoms[id(annotation)] = atoms
        if not atoms or node.full:
            self._known.add(node)
            return False
        changed = False
        for atom in atoms:
            for value in self._values(atom):
                worlds = mask
                if value.kind == "instance" and value.cls is not None and value.cls.is_live:
                    worlds &= value.cls.mask  # where nobody makes one, none is at hand
                elif value.kind == "class" and value.cls is not None:
                    worlds &= value.cls.mask | WITHOUT_PROOF  # one that makes none may be meant
                if worlds & ~node.values.get(value, 0):
                    self._solver.add(node, value, worlds)
                    changed = True
        if changed or node in self._seeded:
            self._seeded[node] = (self._solver.made, mask)
        return changed

    def _values(self, atom: _Atom) -> Iterator[Value]:
        """The class and the live ones that inherit from it."""
        if isinstance(atom, Value):
            yield atom
            return
        cls = atom[0] if isinstance(atom, tuple) else atom
        make = self._solver.class_value if isinstance(atom, tuple) else self._solver.instance
        heirs = self._solver.heirs.get(cls, ())
        if cls.is_live or not heirs:
            yield make(cls)
        if len(heirs) <= _MOST_HEIRS:
            for heir in heirs:
                yield make(heir)

    def _read(self, module: Module, annotation: ast.expr) -> Iterator[_Atom]:
        """What an annotation speaks of; a union or container speaks of all that is in it."""
        program = self._solver.program
        match annotation:
            case ast.Constant(value=str(text)):
                try:
                    parsed = ast.parse(text, mode="eval").body
                except (SyntaxError, ValueError):
                    return
                yield from self._read(module, parsed)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                yield from self._read(module, left)
                yield from self._read(module, right)
            case ast.Subscript(value=value, slice=index):
                name = value.attr if isinstance(value, ast.Attribute) else getattr(value, "id", "")
                if name in ("Callable", "Literal"):
                    return
                parts = index.elts if isinstance(index, ast.Tuple) else [index]
                found = [atom for part in parts for atom in self._read(module, part)]
                if name in ("type", "Type"):
                    yield from ((atom,) for atom in found if isinstance(atom, Class))
                    return
                yield from self._read(module, value)
                yield from found
            case ast.Name() | ast.Attribute():
                symbol = program.resolve(module, annotation)
                if symbol is not None:
                    yield from self._named(symbol)
            case _:
                return

    def _named(self, symbol: Symbol) -> Iterator[_Atom]:
        definition = symbol.definition
        if isinstance(definition, Class):
            # A platform is the current one, whatever an annotation says.
            if not any(base.qualname == "Platform" for base in definition.mro):
                yield definition
        elif symbol.kind == "external":
            name = torch_api.canonical(symbol.name)
            if name in torch_api.CLASSES:
                yield self._solver.instance_of(name)
        elif (
            isinstance(definition, ast.expr)
            and symbol.module is not None
            and symbol.name not in self._aliases  # an alias can speak of itself
        ):
            self._aliases.add(symbol.name)
            yield from self._read(symbol.module, definition)
            self._aliases.discard(symbol.name)


def _is_container(annotation: ast.expr) -> bool:
    match annotation:
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in _CONTAINERS
        case _:
            return False
