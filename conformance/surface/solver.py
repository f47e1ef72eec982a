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
from conformance.surface.graph import (
    MOST,
    NO_EDGES,
    NO_USES,
    NO_VALUES,
    Assigned,
    CallUse,
    Guard,
    Node,
    Value,
)
from conformance.surface.program import Class, Function, Module, Program
from conformance.surface.reactions import (
    Binder,
    CalledBack,
    CalledUnseen,
    ClassOf,
    Imported,
    Method,
    Reader,
    Special,
    Within,
)
from conformance.surface.worlds import EVERYWHERE, GPU, ON_CPU


class Solver:
    """Reaches functions, and follows values through them, until nothing new comes."""

    def __init__(self, program: Program, visit: Callable[[Solver, Function], None]) -> None:
        self.program = program
        self._visit = visit
        self._queue: deque[tuple[Node, Value, int]] = deque()
        self._unvisited: deque[Function] = deque()
        self._externals: dict[str, Value] = {}
        self._outside_attributes: dict[tuple[Value, str], Value | None] = {}
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
        self.driven: set[Class | None] = set()
        """Classes that are driven from outside: what is wrapped around one method is no other's."""
        self._copied: dict[tuple[Function, Function], Function] = {}
        self.operators: dict[str, Node] = {}
        self.roots: dict[Function, int] = {}
        self.given: dict[Class, dict[str, int]] = {}
        """Fields that constructors of a class are given, and in which worlds."""
        self.stores: dict[str, list[Assigned]] = {}
        """Assignments to attributes by their names, to globals by ``module:name``."""
        self.asserted: list[tuple[Function, Guard, str]] = []
        """Attributes that must be true, and where."""
        self.platforms: tuple[tuple[Value, int], ...] = ()

    # --- values ------------------------------------------------------------------------------

    def external(self, name: str) -> Value:
        """A name from outside the tree."""
        value = self._externals.get(name)
        if value is None:
            value = self._externals[name] = self._value("external", torch_api.followed(name))
        return value

    def _attribute_outside(self, owner: Value, name: str) -> Value | None:
        """What an attribute of a value from outside the tree is, None if it is nothing."""
        key = (owner, name)
        if key not in self._outside_attributes:
            found: Value | None = None
            if torch_api.is_leaf(owner.name):
                found = self.external(torch_api.OUTSIDE)
            elif owner.kind != "external" or not torch_api.is_constant(owner.name, name):
                found = self.external(f"{owner.name}.{name}")
            self._outside_attributes[key] = found
        return self._outside_attributes[key]

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
        values = node.values
        known = values.get(value, 0)
        new = mask & ~known
        if new:
            if not known and len(values) >= MOST:
                node.full = True
                return
            if values is NO_VALUES:
                values = node.values = {}
            values[value] = known | new
            if node.edges or node.uses:  # what comes later is told what is there
                self._queue.append((node, value, new))

    def edge(self, source: Node, target: Node, mask: int = EVERYWHERE) -> None:
        """Whatever comes to ``source`` comes to ``target``, in some worlds."""
        if source is target:
            return
        edges = source.edges
        known = edges.get(target, 0)
        new = mask & ~known
        if new:
            if edges is NO_EDGES:
                edges = source.edges = {}
            edges[target] = known | new
            values = source.values
            if values:
                add = self.add
                for value, worlds in list(values.items()):
                    add(target, value, worlds & new)

    def use(self, node: Node, use: Callable[[Value, int], None]) -> None:
        """Call ``use`` for each value of the node, now and later."""
        if node.uses is NO_USES:
            node.uses = []
        node.uses.append(use)
        if node.values:
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
                            if values is NO_VALUES:
                                values = target.values = {}
                            values[value] = known | fresh
                            if target.edges or target.uses:
                                queue.append((target, value, fresh))
                uses = node.uses
                if uses:
                    for index in range(len(uses)):  # ``use`` tells those that come meanwhile
                        uses[index](value, new)
            if unvisited:
                self._visit(self, unvisited.popleft())

    # --- reach -------------------------------------------------------------------------------

    def start(self, function: Function, mask: int) -> None:
        """The function is run from outside, in some worlds."""
        self.roots[function] = self.roots.get(function, 0) | mask
        function.unseen |= mask
        self.reach(function, mask)

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
        seen: bool = False,
    ) -> None:
        """Note an edge of the call graph, and reach the callee.

        With ``seen``, what it passes is noted.
        """
        if not seen:
            callee.unseen |= mask
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
                constructor = self.method(value.cls, "__init__")
                if constructor is not None:
                    constructor.unseen |= mask
            case "instance":
                assert value.cls is not None
                names = ("__call__", "forward") if not call.implicit else ()
                for name in names:
                    if self._has_method(value.cls, name):
                        into = Node()
                        self.read(value, mask, name, into)
                        self.use(into, Method(call))
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
        if isinstance(call.decorated, Function):
            copied = self._copy_for(function, call.decorated)
            if copied is not function:
                # On a GPU nothing is left out: there it can be any of those that it decorates.
                joined = 0 if call.decorated.cls in self.driven else mask & GPU
                self._enter_one(call, function, receiver, joined, is_copied=True)
                function = copied
        self._enter_one(call, function, receiver, mask)

    def _enter_one(
        self,
        call: CallUse,
        function: Function,
        receiver: Value | None,
        mask: int,
        is_copied: bool = False,
    ) -> None:
        if not mask:
            return
        self.call(call.function, function, call.line, call.guard, mask, seen=True)
        if function.arguments is None:
            return
        entry = (call.given, call.function, receiver is not None)
        function.entered[entry] = function.entered.get(entry, 0) | mask
        if not (function.is_visited or is_copied):  # it may call what it is given
            for argument in (*call.positional, *call.keywords.values()):
                if argument is not None:
                    self.use(argument, CalledBack(self, call, mask))
        parameters = function.parameters
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
        if call.keywords:
            names = {*parameters, *(a.arg for a in function.arguments.kwonlyargs)}
            for name, argument in call.keywords.items():
                if name in names:
                    self.edge(argument, self.parameter(function, name), mask)
        # What goes into *args and **kwargs is not followed: it would join everything with all.

    def _copy_for(self, decorator: Function, decorated: Function) -> Function:
        """A decorator for one function: what it wraps around that calls no other.

        Only one that makes functions of its own is copied.
        """
        copied = self._copied.get((decorator, decorated))
        if copied is None:
            copied = decorator
            node = decorator.node
            if isinstance(node, ast.FunctionDef):
                decorator.module.restore(node)
                if any(isinstance(statement, ast.FunctionDef) for statement in node.body):
                    copied = Function(
                        decorator.module,
                        decorator.qualname,
                        node,
                        decorator.cls,
                        decorator.parent,
                    )
                    copied.decorated_with = decorator.decorated_with
            self._copied[decorator, decorated] = copied
        return copied

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
                if name == "__post_init__":  # what it is given are fields, by their order
                    found.unseen |= mask
        self._note_given(call, cls, mask)
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
                self.use(factory, Within(use, mask))

    def _note_given(self, call: CallUse, cls: Class, mask: int) -> None:
        """What a constructor is given; "*" if it can be any field."""
        given = self.given.setdefault(cls, {})
        everything = ("*",) if call.positional or call.stars else ()
        for name in (*call.named, *everything):
            given[name] = given.get(name, 0) | mask

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
            given=call.given,
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
            self.use(base, Reader(self, name, node, function, line, guard))
        return node

    def read(self, value: Value, mask: int, name: str, into: Node) -> None:
        """Put into a node what an attribute of one value is; a property as such."""
        match value.kind:
            case "external" | "external instance":
                found = self._attribute_outside(value, name)
                if found is not None:
                    self.add(into, found, mask)
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
                known = self._read_class(value.cls.mro, value, value.cls, mask, name, into)
                if not known and name == "apply":
                    self._read_apply(value, mask, into)
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
                self.use(node, Binder(self, receiver, None, mask, into))
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

    def _read_apply(self, value: Value, mask: int, into: Node) -> None:
        """``apply`` of a function of torch's autograd: ``forward``, with a context first."""
        assert value.cls is not None
        forward = self.method(value.cls, "forward")
        if forward is not None and "torch.autograd.Function" in value.cls.external_bases:
            self.add(into, self.bound(forward, self.external(torch_api.OUTSIDE)), mask)

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
                self.use(node, Binder(self, receiver, cls, mask, into))
            return True
        return False

    # --- the world outside -------------------------------------------------------------------

    def operator(self, name: str) -> Node:
        """The node of what is registered as an operator of torch under a name."""
        node = self.operators.get(name)
        if node is None:
            node = self.operators[name] = Node()
        return node

    def _outside(self, call: CallUse, name: str, mask: int) -> None:
        if name.startswith(torch_api.OPERATOR):
            self.add(call.result, self.instance_of("torch.Tensor"), mask)
            operator = self.operator(name.removeprefix(torch_api.OPERATOR))
            self.use(operator, Within(call, mask))
            return
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
                self.use(argument, ClassOf(self, call.result, mask))
            return
        if name in torch_api.SPECIAL_METHODS and arguments:
            self.implicit(call, arguments[0], torch_api.SPECIAL_METHODS[name], mask)
        if name in torch_api.NEVER_CALLS_BACK:
            return
        if call.decorated is not None or torch_api.calls_later(
            name
        ):  # a decorator calls nothing yet
            for argument in arguments:
                self.edge(argument, call.result, mask)
                if call.decorated is None:  # ``partial(f, flag=True)``
                    self.use(argument, CalledUnseen(mask))
            return
        if name == "importlib.import_module":
            for argument in arguments:
                self.use(argument, Imported(self, call, mask))
            return
        everything = name in torch_api.PASSES_ON
        for argument in arguments:
            if everything:
                self.edge(argument, call.result, mask)
            if not everything or name in ("builtins.map", "builtins.filter", "builtins.sorted"):
                self.use(argument, CalledBack(self, call, mask))

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
        self.use(into, Within(use, mask))

    def special(self, base: Node, method: str, function: Function, line: int, guard: Guard) -> Node:
        """The node of what a special method gives, called on whatever a node holds.

        Containers are one with their elements: what has no such method gives itself.
        """
        result = Node()
        self.use(base, Special(self, method, function, line, guard, result))
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
