"""What waits at a node for its values, and what it does with each: reads, binds, calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conformance.surface.graph import CallUse, Guard, ImportUse, Node, Value
from conformance.surface.program import Class, Function

if TYPE_CHECKING:
    from conformance.surface.solver import Solver


class Reader:
    """Reads an attribute of each value that comes, and calls the getters of properties."""

    __slots__ = ("function", "getters", "guard", "into", "line", "name", "solver")

    def __init__(
        self, solver: Solver, name: str, into: Node, function: Function, line: int, guard: Guard
    ) -> None:
        self.solver = solver
        self.name = name
        self.into = into
        self.function = function
        self.line = line
        self.guard = guard
        self.getters: CallUse | None = None

    def __call__(self, value: Value, mask: int) -> None:
        """A value came, or is there in more worlds."""
        solver = self.solver
        if self.getters is None:
            if value.cls is None or not _has_property(value, self.name):
                solver.read(value, mask, self.name, self.into)
                return
            self.getters = CallUse(
                solver, self.function, Node(), [], {}, [], self.into, self.line, self.guard
            )
            self.function.calls.append(self.getters)
            solver.use(self.getters.callee, self.getters)
            solver.use(self.getters.callee, self._pass_on)
        solver.read(value, mask, self.name, self.getters.callee)

    def _pass_on(self, value: Value, mask: int) -> None:
        if value.kind != "property":
            self.solver.add(self.into, value, mask)


def _has_property(value: Value, name: str) -> bool:
    cls = value.cls
    if cls is None or value.kind in ("class", "own class"):
        return False
    if value.kind == "super" and value.receiver is not None and value.receiver.cls is not None:
        cls = value.receiver.cls
    for base in cls.mro:
        found = base.methods.get(name)
        if found is not None and found.kind == "property":
            return True
    return False


class Binder:
    """Binds what a class's attribute holds to the object it is read from."""

    __slots__ = ("cls", "into", "mask", "receiver", "solver")

    def __init__(
        self, solver: Solver, receiver: Value, cls: Class | None, mask: int, into: Node
    ) -> None:
        self.solver = solver
        self.receiver = receiver
        self.cls = cls
        self.mask = mask
        self.into = into

    def __call__(self, value: Value, mask: int) -> None:
        """A value came, or is there in more worlds."""
        mask &= self.mask
        if not mask:
            return
        solver = self.solver
        function = value.function
        if value.kind != "function" or function is None:
            solver.add(self.into, value, mask)
            return
        of_class = self.cls is not None
        if function.kind == "static" or (of_class and function.kind == "function"):
            solver.add(self.into, value, mask)
        elif function.kind == "class":
            owner = self.receiver
            if owner.kind == "instance" and owner.cls is not None:
                owner = solver.class_value(owner.cls)
            solver.add(self.into, solver.bound(function, owner), mask)
        elif function.kind == "property" and not of_class:
            solver.add(
                self.into, solver._value("property", "", None, function, self.receiver), mask
            )
        else:
            solver.add(self.into, solver.bound(function, self.receiver), mask)


class Special:
    """Calls a special method of each object that comes, and passes on what has none."""

    __slots__ = ("callee", "function", "guard", "line", "method", "result", "solver")

    def __init__(
        self,
        solver: Solver,
        method: str,
        function: Function,
        line: int,
        guard: Guard,
        result: Node,
    ) -> None:
        self.solver = solver
        self.method = method
        self.function = function
        self.line = line
        self.guard = guard
        self.result = result
        self.callee: Node | None = None

    def __call__(self, value: Value, mask: int) -> None:
        """A value came, or is there in more worlds."""
        solver, cls = self.solver, value.cls
        mask &= self.guard.mask
        if value.kind == "class" and cls is not None and cls.is_enum:
            solver.members(cls, self.result, mask)
            return
        if value.kind == "instance" and cls is not None and solver.method(cls, self.method):
            if self.callee is None:
                self.callee = Node()
                call = CallUse(
                    solver,
                    self.function,
                    self.callee,
                    [],
                    {},
                    [],
                    self.result,
                    self.line,
                    self.guard,
                    implicit=True,
                )
                self.function.calls.append(call)
                solver.use(self.callee, call)
            solver.read(value, mask, self.method, self.callee)
            if self.method != "__enter__":
                return
        solver.add(self.result, value, mask)


class Within:
    """Makes a call in some worlds only."""

    __slots__ = ("call", "mask")

    def __init__(self, call: CallUse, mask: int) -> None:
        self.call, self.mask = call, mask

    def __call__(self, value: Value, mask: int) -> None:
        """A value came, or is there in more worlds."""
        self.call(value, mask & self.mask)


class Method:
    """Links a call of an instance to the methods that calling it means."""

    __slots__ = ("call",)

    def __init__(self, call: CallUse) -> None:
        self.call = call

    def __call__(self, value: Value, mask: int) -> None:
        """A value came, or is there in more worlds."""
        if value.kind in ("function", "bound"):
            self.call(value, mask)


class ClassOf:
    """Gives the class of each object that comes."""

    __slots__ = ("into", "mask", "solver")

    def __init__(self, solver: Solver, into: Node, mask: int) -> None:
        self.solver, self.into, self.mask = solver, into, mask

    def __call__(self, value: Value, mask: int) -> None:
        """A value came, or is there in more worlds."""
        if value.kind == "instance" and value.cls is not None:
            self.solver.add(self.into, self.solver.own_class(value.cls), mask & self.mask)


class Imported:
    """Imports a module by its name."""

    __slots__ = ("call", "mask", "solver")

    def __init__(self, solver: Solver, call: CallUse, mask: int) -> None:
        self.solver, self.call, self.mask = solver, call, mask

    def __call__(self, value: Value, mask: int) -> None:
        """A value came, or is there in more worlds."""
        mask &= self.mask
        if mask and value.kind == "text" and self.solver.program.has(value.name):
            use = ImportUse(
                self.solver, self.call.function, value.name, self.call.line, self.call.guard
            )
            use.again(mask)
            self.solver.add(self.call.result, self.solver.module_value(value.name), mask)


class CalledBack:
    """A function handed to code outside the tree: it may be called."""

    __slots__ = ("call", "mask", "solver")

    def __init__(self, solver: Solver, call: CallUse, mask: int) -> None:
        self.solver, self.call, self.mask = solver, call, mask

    def __call__(self, value: Value, mask: int) -> None:
        """A value came, or is there in more worlds."""
        mask &= self.mask
        if not mask or value.kind not in ("function", "bound"):
            return
        assert value.function is not None
        self.solver.call(self.call.function, value.function, self.call.line, self.call.guard, mask)
        if value.receiver is not None:
            for first in value.function.parameters[:1]:
                self.solver.add(self.solver.parameter(value.function, first), value.receiver, mask)


class CalledUnseen:
    """A function that may be called elsewhere, with arguments that are not known."""

    __slots__ = ("mask",)

    def __init__(self, mask: int) -> None:
        self.mask = mask

    def __call__(self, value: Value, mask: int) -> None:
        """A value came, or is there in more worlds."""
        if value.kind in ("function", "bound") and value.function is not None:
            value.function.unseen |= mask & self.mask


class Store:
    """Stores into a field of each object that comes."""

    __slots__ = ("mask", "name", "solver", "source")

    def __init__(self, solver: Solver, name: str, source: Node, mask: int) -> None:
        self.solver, self.name, self.source, self.mask = solver, name, source, mask

    def __call__(self, value: Value, mask: int) -> None:
        """A value came, or is there in more worlds."""
        if value.kind == "instance" and value.cls is not None:
            self.solver.edge(self.source, self.solver.field(value.cls, self.name), mask & self.mask)
        elif value.kind == "class" and value.cls is not None:
            node = value.cls.attributes.get(self.name)
            if node is None:
                node = value.cls.attributes[self.name] = Node()
            self.solver.edge(self.source, node, mask & self.mask)
        elif value.kind == "module":
            module = self.solver.program.module(value.name)
            if module is not None:
                self.solver.edge(
                    self.source, self.solver.global_node(module, self.name), mask & self.mask
                )


class Fill:
    """Puts into the container that a field of each object is: its own, or the one of its class."""

    __slots__ = ("mask", "name", "solver", "source", "store")

    def __init__(self, solver: Solver, name: str, source: Node, mask: int) -> None:
        self.store = Store(solver, name, source, mask)
        self.solver, self.name, self.source, self.mask = solver, name, source, mask

    def __call__(self, value: Value, mask: int) -> None:
        """A value came, or is there in more worlds."""
        self.store(value, mask)
        if value.kind in ("instance", "class") and value.cls is not None:
            for base in value.cls.mro:
                if self.name in base.methods:
                    return
                node = base.attributes.get(self.name)
                if node is not None:
                    self.solver.edge(self.source, node, mask & self.mask)
                    return


class Super:
    """Gives what ``super()`` is for each object that comes."""

    __slots__ = ("cls", "result", "solver")

    def __init__(self, solver: Solver, cls: Class, result: Node) -> None:
        self.solver, self.cls, self.result = solver, cls, result

    def __call__(self, value: Value, mask: int) -> None:
        """A value came, or is there in more worlds."""
        if value.kind in ("instance", "class", "member"):
            self.solver.add(self.result, self.solver.parent_of(self.cls, value), mask)


class Decorated:
    """What a decorator gives takes the function's place beside it."""

    __slots__ = ("function", "solver", "target")

    def __init__(self, solver: Solver, target: Node, function: Value) -> None:
        self.solver, self.target, self.function = solver, target, function

    def __call__(self, value: Value, mask: int) -> None:
        """A value came, or is there in more worlds."""
        # A decorator that gives back what it takes gives back all that it decorates elsewhere too.
        wraps = value.function is not None and value.function.parent is not None
        if value is not self.function and (wraps or value.kind == "instance"):
            self.solver.add(self.target, value, mask)


class NotClasses:
    """Passes on all that is no class."""

    __slots__ = ("into", "solver")

    def __init__(self, solver: Solver, into: Node) -> None:
        self.solver, self.into = solver, into

    def __call__(self, value: Value, mask: int) -> None:
        """A value came, or is there in more worlds."""
        if value.kind != "class":
            self.solver.add(self.into, value, mask)


class ByString:
    """Loads what a dotted name stands for."""

    __slots__ = ("call", "solver")

    def __init__(self, solver: Solver, call: CallUse) -> None:
        self.solver, self.call = solver, call

    def __call__(self, value: Value, mask: int) -> None:
        """A value came, or is there in more worlds."""
        mask &= self.call.guard.mask
        if mask and value.kind == "text":
            self.solver.by_string(self.call, value.name, self.call.result, mask)
