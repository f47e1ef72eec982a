"""What flows where: values, the nodes that hold them, and calls that are linked as values come.

A flow-insensitive analysis in the manner of Andersen. Each local, parameter, result, field, class
attribute and global is a node; assignments are edges between nodes; attribute reads and calls wait
at a node for its values. Containers are one with their elements. Every value in a node carries the
worlds (``worlds``) in which it can be there, and a function the worlds in which it is reached, so
one run answers for both generations, on a GPU and on a CPU.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable

from conformance.surface import torch_api
from conformance.surface.program import Class, Function, Module, Program
from conformance.surface.worlds import EVERYWHERE, ON_CPU


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


_NO_VALUES: dict[Value, int] = {}
_NO_EDGES: dict[Node, int] = {}
_NO_USES: list[Callable[[Value, int], None]] = []

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
        self.values: dict[Value, int] = _NO_VALUES
        self.edges: dict[Node, int] = _NO_EDGES
        self.uses: list[Callable[[Value, int], None]] = _NO_USES
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


class CallUse:
    """A call in a function; it links each callee as it comes."""

    __slots__ = (
        "attribute",
        "base",
        "callee",
        "decorates",
        "function",
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
        decorates: bool = False,
        named: tuple[str, ...] = (),
    ) -> None:
        self.decorates = decorates
        self.named = named
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


class Solver:
    """Reaches functions, and follows values through them, until nothing new comes."""

    def __init__(self, program: Program, visit: Callable[[Solver, Function], None]) -> None:
        self.program = program
        self._visit = visit
        self._queue: deque[tuple[Node, Value, int]] = deque()
        self._unvisited: deque[Function] = deque()
        self._interned: dict[tuple[object, ...], Value] = {}
        self.functions: list[Function] = []
        self.annotated: dict[Node, tuple[Module, ast.expr, Function]] = {}
        self.method_calls: list[CallUse] = []
        self.container_reads: list[CallUse] = []
        self.container_writes: list[tuple[CallUse, Callable[[Node, int], None]]] = []
        self.made = 0
        """Counts up when a class has its first instance in some world."""
        self.live: list[Class] = []
        self.heirs: dict[Class, list[Class]] = {}
        self.by_method: dict[str, list[Class]] = {}
        self.platforms: tuple[tuple[Value, int], ...] = ()

    # --- values ------------------------------------------------------------------------------

    def external(self, name: str) -> Value:
        """A name from outside the tree."""
        return self._value("external", torch_api.followed(name))

    def instance_of(self, name: str) -> Value:
        """An instance of a class from outside the tree."""
        return self._value("external instance", name)

    def text(self, text: str) -> Value:
        """A string that is a dotted name of the tree."""
        return self._value("text", text)

    def module_value(self, name: str) -> Value:
        """A module of the tree."""
        return self._value("module", name)

    def class_value(self, cls: Class) -> Value:
        """A class of the tree."""
        return self._value("class", "", cls=cls)

    def own_class(self, cls: Class) -> Value:
        """The class of an object at hand, ``type(x)``.

        Calling it makes another such object. Who does so is a helper that is given all kinds of
        objects, so which constructor runs for which caller is not known, and none is linked.
        """
        return self._value("own class", "", cls=cls)

    def instance(self, cls: Class) -> Value:
        """An instance of a class of the tree."""
        return self._value("instance", "", cls=cls)

    def member(self, cls: Class, name: str) -> Value:
        """A member of an enum."""
        return self._value("member", name, cls=cls)

    def function_value(self, function: Function) -> Value:
        """A function of the tree."""
        return self._value("function", "", function=function)

    def bound(self, function: Function, receiver: Value) -> Value:
        """A method bound to a receiver."""
        return self._value("bound", "", function=function, receiver=receiver)

    def parent_of(self, cls: Class, receiver: Value) -> Value:
        """What ``super()`` gives in a method of a class."""
        return self._value("super", "", cls=cls, receiver=receiver)

    def _value(
        self,
        kind: str,
        name: str,
        cls: Class | None = None,
        function: Function | None = None,
        receiver: Value | None = None,
    ) -> Value:
        key = (kind, name, cls, function, receiver)
        value = self._interned.get(key)
        if value is None:
            value = self._interned[key] = Value(kind, name, cls, function, receiver)
        return value

    # --- flow --------------------------------------------------------------------------------

    def add(self, node: Node, value: Value, mask: int) -> None:
        """Put a value into a node, in some worlds."""
        known = node.values.get(value, 0)
        new = mask & ~known
        if new:
            if not known and len(node.values) >= MOST:
                node.full = True
                return
            if node.values is _NO_VALUES:
                node.values = {}
            node.values[value] = known | new
            self._queue.append((node, value, new))

    def edge(self, source: Node, target: Node, mask: int = EVERYWHERE) -> None:
        """Whatever comes to ``source`` comes to ``target``, in some worlds."""
        if source is target:
            return
        known = source.edges.get(target, 0)
        new = mask & ~known
        if new:
            if source.edges is _NO_EDGES:
                source.edges = {}
            source.edges[target] = known | new
            for value, worlds in list(source.values.items()):
                self.add(target, value, worlds & new)

    def use(self, node: Node, use: Callable[[Value, int], None]) -> None:
        """Call ``use`` for each value of the node, now and later."""
        if node.uses is _NO_USES:
            node.uses = []
        node.uses.append(use)
        for value, worlds in list(node.values.items()):
            use(value, worlds)

    def run(self) -> None:
        """Go on until nothing new comes."""
        queue, unvisited = self._queue, self._unvisited
        while queue or unvisited:
            while queue:
                node, value, new = queue.popleft()
                for target, mask in node.edges.items():
                    # As ``add``, without a call: this is where most of the time goes.
                    values = target.values
                    known = values.get(value, 0)
                    fresh = new & mask & ~known
                    if fresh:
                        if not known and len(values) >= MOST:
                            target.full = True
                        else:
                            if values is _NO_VALUES:
                                values = target.values = {}
                            values[value] = known | fresh
                            queue.append((target, value, fresh))
                uses = node.uses
                for index in range(len(uses)):  # those that come meanwhile are told by ``use``
                    uses[index](value, new)
            if unvisited:
                self._visit(self, unvisited.popleft())

    # --- reach -------------------------------------------------------------------------------

    def reach(self, function: Function, mask: int, proven: bool = True) -> None:
        """The function runs in some worlds.

        Without a proof that it does on a CPU, only modules that speak of the device are followed.
        """
        if function.kind == "kernel":  # a kernel is launched, its body is the device's
            return
        new = mask & ~function.mask
        function.mask |= mask
        newly_proven = proven and not function.is_proven
        function.is_proven |= proven
        if function.kind == "hub" or not (new or newly_proven):
            return
        if not function.is_visited:
            matters = (function.is_proven and function.mask & ON_CPU) or function.is_module
            if matters or function.module.speaks_of_device:
                function.is_visited = True
                self.functions.append(function)
                self._unvisited.append(function)
            return
        if newly_proven:
            for (callee, _, _, by_name), (worlds, _) in list(function.edges.items()):
                if not by_name:
                    self.reach(callee, worlds)
        if new:
            for node, value, guard_mask in function.seeds:
                self.add(node, value, new & guard_mask)
            for call in function.calls:
                call.again(new)

    def call(
        self,
        caller: Function,
        callee: Function,
        line: int,
        guard: Guard,
        mask: int,
        by_name: bool = False,
    ) -> None:
        """Note an edge of the call graph, and reach the callee."""
        key = (callee, line, guard.in_stream, by_name)
        known, where = caller.edges.get(key, (0, None))
        if mask & ~known:
            better = where is None or guard.mask & ~where.mask
            caller.edges[key] = (known | mask, guard if better else where)
        self.reach(callee, mask, caller.is_proven and not by_name)

    def link(self, call: CallUse, value: Value, mask: int) -> None:
        """Link a call to one value that is called, in some worlds."""
        match value.kind:
            case "function":
                assert value.function is not None
                self._enter(call, value.function, None, mask)
            case "bound":
                assert value.function is not None and value.receiver is not None
                self._enter(call, value.function, value.receiver, mask)
                if value.receiver.kind == "member":
                    self._enum_result(call, value, mask)
            case "class":
                assert value.cls is not None
                self.construct(call, value.cls, mask)
            case "own class":
                assert value.cls is not None
                self.add(call.result, self.instance(value.cls), mask)
            case "instance":
                assert value.cls is not None
                names = ("__call__", "forward") if not call.implicit else ()
                for name in names:
                    if self._has_method(value.cls, name):
                        into = Node()
                        self.read(value, mask, name, into)
                        self.use(into, _Method(call))
                        break
            case "property":
                assert value.function is not None and value.receiver is not None
                if call.callee is not call.result and not call.positional:
                    self._enter(call, value.function, value.receiver, mask)
            case "external":
                self._outside(call, value.name, mask)
            case _:
                pass

    def _has_method(self, cls: Class, name: str) -> bool:
        return any(name in base.attributes for base in cls.mro)

    def _enum_result(self, call: CallUse, value: Value, mask: int) -> None:
        """A method of an enum member, when the member's value is a dotted name of the tree.

        Without this the method would give the values of all members.
        """
        assert value.receiver is not None and value.function is not None
        assert value.receiver.cls is not None
        node = value.receiver.cls.attributes.get(value.receiver.name)
        if node is None or not any(v.kind == "text" for v in node.values):
            return
        for text in [v for v in node.values if v.kind == "text"]:
            if "path" in value.function.name or "name" in value.function.name:
                self.add(call.result, text, mask)
            else:
                self.by_string(call, text.name, call.result, mask)

    def _enter(
        self,
        call: CallUse,
        function: Function,
        receiver: Value | None,
        mask: int,
    ) -> None:
        if function.kind == "kernel" or not _takes(function, call):
            return
        self.call(call.function, function, call.line, call.guard, mask)
        if function.arguments is None:
            return
        if not function.is_visited:  # it is not followed, and may call what it is given
            for argument in (*call.positional, *call.keywords.values()):
                if argument is not None:
                    self.use(argument, _CalledBack(self, call, mask))
        parameters = [a.arg for a in (*function.arguments.posonlyargs, *function.arguments.args)]
        if receiver is not None and parameters:
            self.add(self.parameter(function, parameters[0]), receiver, mask)
            parameters = parameters[1:]
        if receiver is None or receiver.kind != "member" or not self._is_enum_text(receiver):
            self.edge(self.result(function), call.result, mask)
        for index, argument in enumerate(call.positional):
            if argument is None:
                continue
            if index < len(parameters):
                self.edge(argument, self.parameter(function, parameters[index]), mask)
        names = {*parameters, *(a.arg for a in function.arguments.kwonlyargs)}
        for name, argument in call.keywords.items():
            if name in names:
                self.edge(argument, self.parameter(function, name), mask)
        # What goes into *args and **kwargs is not followed: it would join everything with all.

    def _is_enum_text(self, receiver: Value) -> bool:
        assert receiver.cls is not None
        node = receiver.cls.attributes.get(receiver.name)
        return node is not None and any(v.kind == "text" for v in node.values)

    def parameter(self, function: Function, name: str) -> Node:
        """The node of a parameter."""
        node = function.names.get(name)
        if node is None:
            node = function.names[name] = Node()
        function.stored.add(name)
        return node

    def make_live(self, cls: Class, mask: int) -> None:
        """An instance of the class exists, in some worlds."""
        if mask & ~cls.mask:
            self.made += 1
            cls.mask |= mask
        if not cls.is_live:
            cls.is_live = True
            self.live.append(cls)
            for base in cls.mro[1:]:
                self.heirs.setdefault(base, []).append(cls)
            for base in cls.mro:
                for name in base.methods:
                    self.by_method.setdefault(name, []).append(cls)

    def construct(self, call: CallUse, cls: Class, mask: int) -> None:
        """Calling a class: its instance, its constructor, its fields."""
        if cls.is_enum:
            self.members(cls, call.result, mask)
            return
        self.make_live(cls, mask)
        instance = self.instance(cls)
        self.add(call.result, instance, mask)
        for name in ("__new__", "__init__", "__post_init__"):
            found = self.method(cls, name)
            if found is not None:
                self._into(call, found, instance, mask)
        if cls.is_dataclass and self.method(cls, "__init__") is None:
            order = [name for base in reversed(cls.mro) for name in base.annotations]
            for index, argument in enumerate(call.positional):
                if argument is not None and index < len(order):
                    self.edge(argument, self.field(cls, order[index]), mask)
            for name, argument in call.keywords.items():
                self.edge(argument, self.field(cls, name), mask)
        for base in cls.mro:
            for name, factory in base.factories.items():
                use = CallUse(
                    self,
                    call.function,
                    factory,
                    [],
                    {},
                    [],
                    self.field(cls, name),
                    call.line,
                    call.guard,
                )
                self.use(factory, _Within(use, mask))

    def _into(self, call: CallUse, function: Function, instance: Value, mask: int) -> None:
        quiet = CallUse(
            self,
            call.function,
            call.callee,
            call.positional,
            call.keywords,
            call.stars,
            Node(),
            call.line,
            call.guard,
            named=call.named,
        )  # what __init__ returns is not what the call gives
        self._enter(quiet, function, instance, mask)

    def method(self, cls: Class, name: str) -> Function | None:
        """The method of a name along a class's MRO."""
        for base in cls.mro:
            if name in base.methods:
                return base.methods[name]
        return None

    def field(self, cls: Class, name: str) -> Node:
        """The node of a field of a class's instances."""
        node = cls.fields.get(name)
        if node is None:
            node = cls.fields[name] = Node()
        return node

    def global_node(self, module: Module, name: str) -> Node:
        """The node of a module's global."""
        node = module.globals.get(name)
        if node is None:
            node = module.globals[name] = Node()
            if module.name == "vllm.platforms" and name == "current_platform":
                for value, mask in self.platforms:
                    self.add(node, value, mask)
            if name not in module.bindings:
                for star in module.stars:
                    source = self.program.module(star)
                    if source is not None:
                        self.edge(self.global_node(source, name), node)
        return node

    # --- attributes --------------------------------------------------------------------------

    def attribute(self, base: Node, name: str, function: Function, line: int, guard: Guard) -> Node:
        """The node of an attribute of whatever a node holds, read by a function.

        Nodes of names belong to one function, so a read's place is that of the first one.
        """
        if base.attributes is None:
            base.attributes = {}
        key = (name, guard.mask)
        node = base.attributes.get(key)
        if node is None:
            node = base.attributes[key] = Node()
            self.use(base, _Reader(self, name, node, function, line, guard))
        return node

    def read(self, value: Value, mask: int, name: str, into: Node) -> None:
        """Put into a node what an attribute of one value is; a property as such."""
        match value.kind:
            case "external":
                if torch_api.is_leaf(value.name):
                    self.add(into, self.external(torch_api.OUTSIDE), mask)
                elif not torch_api.is_constant(value.name, name):
                    self.add(into, self.external(f"{value.name}.{name}"), mask)
            case "external instance":
                if torch_api.is_leaf(value.name):
                    self.add(into, self.external(torch_api.OUTSIDE), mask)
                else:
                    self.add(into, self.external(f"{value.name}.{name}"), mask)
            case "module":
                module = self.program.module(value.name)
                if module is None:
                    return
                if name not in module.bindings and self.program.has(f"{value.name}.{name}"):
                    self.add(into, self.module_value(f"{value.name}.{name}"), mask)
                self.edge(self.global_node(module, name), into, mask)
            case "instance":
                assert value.cls is not None
                self._read_instance(value.cls, value, mask, name, into)
            case "class" | "own class":
                assert value.cls is not None
                self._read_class(value.cls.mro, value, value.cls, mask, name, into)
            case "member":
                assert value.cls is not None
                if name == "value" and value.name in value.cls.attributes:
                    self.edge(value.cls.attributes[value.name], into, mask)
                else:
                    self._read_class(value.cls.mro, value, None, mask, name, into)
            case "super":
                assert value.cls is not None and value.receiver is not None
                owner = value.receiver.cls or value.cls
                order = owner.mro
                after = order[order.index(value.cls) + 1 :] if value.cls in order else ()
                self._read_class(after, value.receiver, None, mask, name, into)
            case _:
                pass

    def _read_instance(self, cls: Class, receiver: Value, mask: int, name: str, into: Node) -> None:
        if name == "__class__":
            self.add(into, self.class_value(cls), mask)
            return
        for base in cls.mro:
            node = base.attributes.get(name)
            if node is not None:
                self.use(node, _Binder(self, receiver, None, mask, into))
                if name in base.methods:
                    return
                break
        else:
            missing = self.method(cls, "__getattr__")
            if missing is not None and name not in cls.fields and not name.startswith("__"):
                self.edge(self.result(missing), into, mask)
        self.edge(self.field(cls, name), into, mask)

    def result(self, function: Function) -> Node:
        """The node of what a function returns or yields."""
        if function.result is None:
            function.result = Node()
        return function.result

    def _read_class(
        self,
        order: tuple[Class, ...],
        receiver: Value,
        cls: Class | None,
        mask: int,
        name: str,
        into: Node,
    ) -> bool:
        """Read a class's attribute through an order of classes; whether it is there."""
        for base in order:
            node = base.attributes.get(name)
            if node is None:
                continue
            if cls is not None and cls.is_enum and name not in base.methods:
                self.add(into, self.member(base, name), mask)
            else:
                self.use(node, _Binder(self, receiver, cls, mask, into))
            return True
        return False

    # --- the world outside -------------------------------------------------------------------

    def _outside(self, call: CallUse, name: str, mask: int) -> None:
        gives = torch_api.given(name)
        if gives is not None:
            self.add(call.result, self.instance_of(gives), mask)
        elif name == torch_api.OUTSIDE:
            self.add(call.result, self.external(name), mask)
        elif name == "functools.wraps":  # gives a decorator that gives back what it takes
            self.add(call.result, self.external("functools.wrapped"), mask)
            return
        arguments = [n for n in (*call.positional, *call.keywords.values(), *call.stars) if n]
        if name == "builtins.type":
            for argument in arguments[:1]:
                self.use(argument, _ClassOf(self, call.result, mask))
            return
        if name in torch_api.SPECIAL_METHODS and arguments:
            self.implicit(call, arguments[0], torch_api.SPECIAL_METHODS[name], mask)
        if name in torch_api.NEVER_CALLS_BACK:
            return
        if call.decorates or torch_api.calls_later(name):  # a decorator calls nothing yet
            for argument in arguments:
                self.edge(argument, call.result, mask)
            return
        if name == "importlib.import_module":
            for argument in arguments:
                self.use(argument, _Imported(self, call, mask))
            return
        everything = name in torch_api.PASSES_ON
        for argument in arguments:
            if everything:
                self.edge(argument, call.result, mask)
            if not everything or name in ("builtins.map", "builtins.filter", "builtins.sorted"):
                self.use(argument, _CalledBack(self, call, mask))

    def implicit(self, call: CallUse, base: Node, method: str, mask: int) -> None:
        """Call a special method of what a node holds, on behalf of a call."""
        into = self.attribute(base, method, call.function, call.line, call.guard)
        use = CallUse(
            self,
            call.function,
            into,
            [],
            {},
            [],
            call.result,
            call.line,
            call.guard,
            implicit=True,
        )
        self.use(into, _Within(use, mask))

    def special(self, base: Node, method: str, function: Function, line: int, guard: Guard) -> Node:
        """The node of what a special method gives, called on whatever a node holds.

        Containers are one with their elements: what has no such method gives itself.
        """
        result = Node()
        self.use(base, _Special(self, method, function, line, guard, result))
        return result

    def members(self, cls: Class, into: Node, mask: int) -> None:
        """All members of an enum."""
        for name in cls.attributes:
            if name not in cls.methods and not name.startswith("_"):
                self.add(into, self.member(cls, name), mask)

    def by_string(self, call: CallUse, text: str, into: Node, mask: int) -> None:
        """Put what a dotted name of the tree names into a node, and import its module."""
        module_name, _, name = text.replace(":", ".").rpartition(".")
        module = self.program.module(module_name)
        if module is None:
            return
        for imported in self.program.with_packages(module_name):
            self.call(call.function, imported.body, call.line, call.guard, mask)
        self.edge(self.global_node(module, name), into, mask)


def _takes(function: Function, call: CallUse) -> bool:
    """Whether a function has the parameters that a call names; a decorator can give it others."""
    arguments = function.arguments
    if not call.named or arguments is None or arguments.kwarg is not None:
        return True
    if any(not _keeps_signature(decorator) for decorator in function.decorators):
        return True
    names = {a.arg for a in (*arguments.args, *arguments.kwonlyargs)}
    return names.issuperset(call.named)


def _keeps_signature(decorator: ast.expr) -> bool:
    name = decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")
    return name in ("staticmethod", "classmethod", "override", "abstractmethod", "property")


class _Reader:
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
        solver = self.solver
        if self.getters is None:
            if not _has_property(value, self.name):
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


class _Binder:
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


class _Special:
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


class _Within:
    """Makes a call in some worlds only."""

    __slots__ = ("call", "mask")

    def __init__(self, call: CallUse, mask: int) -> None:
        self.call, self.mask = call, mask

    def __call__(self, value: Value, mask: int) -> None:
        self.call(value, mask & self.mask)


class _Method:
    """Links a call of an instance to the methods that calling it means."""

    __slots__ = ("call",)

    def __init__(self, call: CallUse) -> None:
        self.call = call

    def __call__(self, value: Value, mask: int) -> None:
        if value.kind in ("function", "bound"):
            self.call(value, mask)


class _ClassOf:
    __slots__ = ("into", "mask", "solver")

    def __init__(self, solver: Solver, into: Node, mask: int) -> None:
        self.solver, self.into, self.mask = solver, into, mask

    def __call__(self, value: Value, mask: int) -> None:
        if value.kind == "instance" and value.cls is not None:
            self.solver.add(self.into, self.solver.own_class(value.cls), mask & self.mask)


class _Imported:
    __slots__ = ("call", "mask", "solver")

    def __init__(self, solver: Solver, call: CallUse, mask: int) -> None:
        self.solver, self.call, self.mask = solver, call, mask

    def __call__(self, value: Value, mask: int) -> None:
        mask &= self.mask
        if mask and value.kind == "text" and self.solver.program.has(value.name):
            use = ImportUse(
                self.solver, self.call.function, value.name, self.call.line, self.call.guard
            )
            use.again(mask)
            self.solver.add(self.call.result, self.solver.module_value(value.name), mask)


class _CalledBack:
    """A function handed to code outside the tree: it may be called."""

    __slots__ = ("call", "mask", "solver")

    def __init__(self, solver: Solver, call: CallUse, mask: int) -> None:
        self.solver, self.call, self.mask = solver, call, mask

    def __call__(self, value: Value, mask: int) -> None:
        mask &= self.mask
        if not mask or value.kind not in ("function", "bound"):
            return
        assert value.function is not None
        self.solver.call(self.call.function, value.function, self.call.line, self.call.guard, mask)
        arguments = value.function.arguments
        if value.receiver is not None and arguments is not None:
            first = (*arguments.posonlyargs, *arguments.args)[:1]
            for parameter in first:
                self.solver.add(
                    self.solver.parameter(value.function, parameter.arg), value.receiver, mask
                )
