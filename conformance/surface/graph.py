"""What a walk is made of: values, the nodes that hold them, conditions, calls and sites. Plain.

What is done with them is the solver's business, and that of its reactions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from conformance.surface import torch_api
from conformance.surface.program import Class, Function
from conformance.surface.worlds import EVERYWHERE

if TYPE_CHECKING:
    from conformance.surface.solver import Solver


class Value:
    """Something that a node can hold; one object for each, compared by identity."""

    __slots__ = ("cls", "function", "kind", "name", "receiver")

    def __init__(
        self,
        kind: str,
        name: str = "",
        cls: Class | None = None,
        function: Function | None = None,
        receiver: Value | None = None,
    ) -> None:
        self.kind = kind
        self.name = name
        self.cls = cls
        self.function = function
        self.receiver = receiver

    def __repr__(self) -> str:
        what = self.cls.name if self.cls else self.function or self.name
        return f"<{self.kind} {what}>"


NO_VALUES: dict[Value, int] = {}
NO_EDGES: dict[Node, int] = {}
NO_USES: list[Callable[[Value, int], None]] = []

MOST = 50
"""More values than this say little of a place; measured: at 40 a backend's builders are lost, at 80
a walk takes a quarter longer, mostly for rows that only such a place leads to."""


class Node:
    """A place that holds values, each with its worlds.

    One that is ``full`` has seen more than ``MOST`` values: what it holds says little, and more is
    not taken; calls on it are linked by name too.
    """

    __slots__ = ("attributes", "edges", "full", "uses", "values")

    def __init__(self) -> None:
        # There are half a million nodes, and most lack one of these: what is empty is shared.
        self.full = False
        self.values: dict[Value, int] = NO_VALUES
        self.edges: dict[Node, int] = NO_EDGES
        self.uses: list[Callable[[Value, int], None]] = NO_USES
        self.attributes: dict[tuple[str, int], Node] | None = None

    @property
    def is_unknown(self) -> bool:
        """Whether nothing is known of what is here, or only that it comes from outside."""
        values = self.values
        return not values or (len(values) == 1 and next(iter(values)).name == torch_api.OUTSIDE)


class Guard:
    """Conditions in force at a place, the innermost first.

    ``own`` is what the innermost leaves of the worlds, ``mask`` what all of them leave.
    """

    __slots__ = ("condition", "holds", "in_stream", "mask", "outer", "own")

    def __init__(
        self,
        outer: Guard | None,
        condition: ast.expr | None,
        holds: bool,
        mask: int,
        own: int = EVERYWHERE,
        in_stream: bool = False,
    ) -> None:
        self.outer = outer
        self.condition = condition
        self.holds = holds
        self.mask = mask
        self.own = own
        self.in_stream = in_stream


FREE = Guard(None, None, True, EVERYWHERE)


class Occurrence:
    """An attribute read, a call or an argument that may turn out to be a site.

    ``base`` holds what the attribute is read from; ``callee`` what is called, which can be an
    attribute of the device under another name.
    """

    __slots__ = (
        "attribute",
        "base",
        "call",
        "callee",
        "end_line",
        "guard",
        "kind",
        "line",
        "owner",
    )

    def __init__(
        self,
        base: Node | None,
        attribute: str,
        kind: str,
        line: int,
        end_line: int,
        guard: Guard,
        call: ast.Call | None,
        owner: str,
        callee: Node | None = None,
    ) -> None:
        self.base = base
        self.callee = callee
        self.attribute = attribute
        self.kind = kind
        self.line = line
        self.end_line = end_line
        self.guard = guard
        self.call = call
        self.owner = owner


class Assigned:
    """An assignment to an attribute or a global.

    ``owner`` is the class whose method or body does it for its own instances, ``call`` what is
    called for the value, ``read`` the object and the name of the attribute that the value is. A
    field's default ``is_default``: it is what a constructor is not given.
    """

    __slots__ = ("call", "empties", "function", "guard", "is_default", "is_none", "owner", "read")

    def __init__(
        self,
        function: Function,
        guard: Guard,
        value: ast.expr | None,
        owner: Class | None,
        call: CallUse | None = None,
        read: tuple[Node, str] | None = None,
    ) -> None:
        self.call = call
        self.read = read
        self.function = function
        self.guard = guard
        self.is_default = False
        self.empties = isinstance(value, ast.Constant) and not value.value
        self.is_none = isinstance(value, ast.Constant) and value.value is None
        self.owner = owner


Given = tuple[tuple[str, ...], tuple[tuple[str, str], ...], bool]
"""What a call passes, in words (see ``handed``): by position, by name, and whether any more."""
NOTHING: Given = ((), (), False)


class CallUse:
    """A call in a function; it links each callee as it comes."""

    __slots__ = (
        "attribute",
        "base",
        "callee",
        "decorated",
        "function",
        "given",
        "guard",
        "guessed",
        "implicit",
        "keywords",
        "line",
        "named",
        "positional",
        "result",
        "solver",
        "stars",
    )

    def __init__(
        self,
        solver: Solver,
        function: Function,
        callee: Node,
        positional: list[Node | None],
        keywords: dict[str, Node],
        stars: list[Node],
        result: Node,
        line: int,
        guard: Guard,
        attribute: str = "",
        base: Node | None = None,
        implicit: bool = False,
        decorated: Function | Class | None = None,
        named: tuple[str, ...] = (),
        given: Given = NOTHING,
    ) -> None:
        self.decorated = decorated
        self.named = named
        self.given = given
        self.solver = solver
        self.function = function
        self.callee = callee
        self.positional = positional
        self.keywords = keywords
        self.stars = stars
        self.result = result
        self.line = line
        self.guard = guard
        self.attribute = attribute
        self.base = base
        self.implicit = implicit
        self.guessed = 0

    def __call__(self, value: Value, mask: int) -> None:
        """A callee came, or is there in more worlds."""
        effective = mask & self.function.mask & self.guard.mask
        if effective:
            self.solver.link(self, value, effective)

    def again(self, mask: int) -> None:
        """The calling function is reached in more worlds."""
        for value, worlds in list(self.callee.values.items()):
            self(value, worlds & mask)


class ImportUse:
    """An import statement in a function or a module's body."""

    __slots__ = ("function", "guard", "line", "module", "solver")

    def __init__(
        self, solver: Solver, function: Function, module: str, line: int, guard: Guard
    ) -> None:
        self.solver = solver
        self.function = function
        self.module = module
        self.line = line
        self.guard = guard

    def again(self, mask: int) -> None:
        """The importing function is reached in more worlds."""
        effective = mask & self.function.mask & self.guard.mask
        if effective:
            for module in self.solver.program.with_packages(self.module):
                self.solver.call(self.function, module.body, self.line, self.guard, effective)
