"""From the source of a function to nodes, edges, calls and occurrences in the solver.

A function is visited once. Its statements are walked with the conditions in force, so that every
call and every attribute read knows them; a block that returns, raises or continues leaves its
negated condition to what follows.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeGuard

from conformance.surface import torch_api
from conformance.surface.folding import UNKNOWN, Folder
from conformance.surface.graph import (
    FREE,
    Assigned,
    CallUse,
    Guard,
    ImportUse,
    Node,
    Occurrence,
    Value,
)
from conformance.surface.handed import ONE, given_by
from conformance.surface.program import (
    Class,
    Function,
    FunctionNode,
    Module,
    Place,
    bound_by,
)
from conformance.surface.reactions import ByString, Decorated, Fill, NotClasses, Store, Super
from conformance.surface.solver import Solver
from conformance.surface.worlds import EVERYWHERE, GENERATION, GPU, ON_CPU, WITHOUT_PROOF

_BUILTINS = frozenset(dir(builtins))
_PLAIN_TYPES = frozenset({"Generator", "Module", "Parameter", "Size", "Tensor", "device", "dtype"})
"""Types of torch in most annotations, which are none of the device."""
_PIN, _NON_BLOCKING, _DEVICE = "pin_memory", "non_blocking", "device"
_REGISTERS = "direct_register_custom_op"
_DEVICE_CALLS = frozenset({"device", "to", "set_device", "set_device_index"})


class Visitor:
    """Visits functions for a solver."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def __call__(self, solver: Solver, function: Function) -> None:
        """Visit a function that has just been reached."""
        _Visit(solver, self._folder, function).run()


class _Visit:
    def __init__(self, solver: Solver, folder: Folder, function: Function) -> None:
        self.solver = solver
        self.folder = folder
        self.function = function
        self.module: Module = function.module
        self.cls: Class | None = function.cls
        self.class_body: Class | None = None
        self.globals: set[str] = set()
        self.has_inner = False
        self.last_call: CallUse | None = None
        self.last_read: tuple[Node, str, Node] | None = None
        self.place = function.place
        self.rebound: dict[str, list[_Rebound]] = {}

    def run(self) -> None:
        node = self.function.node
        function = self.function
        if node is not None and not isinstance(node, ast.Module):
            self.module.restore(node)
        match node:
            case ast.Module(body=body):
                for rebound in self._rebinds(body, ON_CPU, ()):
                    self.rebound.setdefault(rebound.name, []).append(rebound)
                self.block(body, FREE)
            case ast.Lambda(body=expression):
                self._parameters(node.args)
                self._returns(expression, FREE)
                self._note_return(expression, FREE)
            case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
                self._parameters(node.args)
                if node.returns is not None:
                    self.solver.annotated.setdefault(
                        self.solver.result(self.function), (self.module, node.returns, function)
                    )
                self.block(body, FREE)
            case _:
                return
        if not self.has_inner and node is not None and not isinstance(node, ast.Module):
            self.module.release(node)
        for name, local in list(function.names.items()):
            if name not in function.stored or name in self.globals:
                self._link_outer(name, local)

    def _rebinds(
        self, body: list[ast.stmt], certain: int, conditions: tuple[tuple[ast.expr, bool], ...]
    ) -> Iterator[_Rebound]:
        """Names that a module binds under conditions that always hold on a CPU.

        ``certain`` has the worlds in which a statement is reached for sure.
        """
        for statement in body:
            match statement:
                case ast.If(test=test, body=then, orelse=otherwise):
                    true, false = self.folder.masks(test, self.place)
                    yield from self._rebinds(
                        then, _surely(certain, false), (*conditions, (test, True))
                    )
                    yield from self._rebinds(
                        otherwise, _surely(certain, true), (*conditions, (test, False))
                    )
                case _ if conditions and certain:
                    for name in bound_by(statement):
                        yield _Rebound(name, statement.lineno, certain, conditions)
                case _:
                    pass

    def _lasting(self, name: str, line: int, guard: Guard) -> Guard:
        """Where a module's name keeps what is bound at a line: below, a CPU may bind it anew."""
        for rebound in self.rebound.get(name, ()):
            if rebound.line > line and guard.mask & rebound.worlds:
                condition, holds = rebound.conditions[-1]
                own = EVERYWHERE & ~rebound.worlds
                guard = Guard(guard, condition, not holds, guard.mask & own, own, guard.in_stream)
        return guard

    def _link_outer(self, name: str, local: Node) -> None:
        """A name that is not assigned here comes from a function around it, or the module."""
        outer = self.function.parent
        while outer is not None and name not in self.globals:
            if name in outer.stored:
                self.solver.edge(outer.names[name], local)
                return
            outer = outer.parent
        module = self.module
        if (
            name in module.bindings
            or module.stars
            or name in module.globals
            or (module.name == "vllm.platforms" and name == "current_platform")
        ):
            self.solver.edge(self.solver.global_node(module, name), local)
        if name not in module.bindings and name in _BUILTINS:
            self._seed(local, self.solver.external(f"builtins.{name}"), FREE)

    def _parameters(self, arguments: ast.arguments) -> None:
        function = self.function
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            node = self.solver.parameter(function, argument.arg)
            if argument.annotation is not None:
                self.solver.annotated.setdefault(node, (self.module, argument.annotation, function))
        for extra in (arguments.vararg, arguments.kwarg):
            if extra is not None:
                self.solver.parameter(function, extra.arg)

    def _returns(self, expression: ast.expr | None, guard: Guard) -> None:
        if expression is None:
            return
        value = self.expression(expression, guard)
        if value is not None:
            self.solver.edge(value, self.solver.result(self.function), guard.mask)

    def _seed(self, node: Node, value: Value, guard: Guard) -> None:
        self.function.seeds.append((node, value, guard.mask))
        self.solver.add(node, value, self.function.mask & guard.mask)

    # --- statements --------------------------------------------------------------------------

    def block(self, statements: Iterable[ast.stmt], guard: Guard) -> Guard | None:
        """Walk statements; what is in force at the block's end, None if that is never reached."""
        for statement in statements:
            if type(statement) in _SIMPLE:
                self.statement(statement, guard)
                if type(statement) in _CALLING and self._raises_on_cpu(statement):
                    call = statement.value  # type: ignore[attr-defined]
                    guard = Guard(guard, call, True, guard.mask & GPU, GPU, guard.in_stream)
                continue
            match statement:
                case ast.If(test=test, body=body, orelse=otherwise):
                    self.expression(test, guard)
                    then, other = self._split(test, guard)
                    after_then = self.block(body, then)
                    after_other = self.block(otherwise, other)
                    if after_then is None or after_other is None:
                        after = after_then or after_other
                        if after is None:
                            return None
                        guard = after
                case ast.Assert(test=test, msg=message):
                    self.expression(test, guard)
                    if message is not None:
                        self.expression(message, guard)
                    if isinstance(test, ast.Attribute):
                        self.solver.asserted.append((self.function, guard, test.attr))
                    guard = self._split(test, guard)[0]
                case ast.Return(value=value):
                    self._returns(value, guard)
                    self._note_return(value, guard)
                    return None
                case ast.Raise(exc=exception, cause=cause):
                    for raised in (exception, cause):
                        if raised is not None:
                            self.expression(raised, guard)
                    return None
                case ast.Continue() | ast.Break():
                    return None
                case ast.With() | ast.AsyncWith():
                    if self._with(statement, guard):
                        return None
                case ast.Try() | ast.TryStar():
                    if self._try(statement, guard):
                        return None
                case ast.Match():
                    self._match(statement, guard)
                case _:
                    self.statement(statement, guard)
        return guard

    def _note_return(self, value: ast.expr | None, guard: Guard) -> None:
        is_none = value is None or (isinstance(value, ast.Constant) and value.value is None)
        self.function.returned.append((guard, is_none))

    def _raises_on_cpu(self, statement: ast.stmt) -> bool:
        """Whether a statement is a call that never returns on a CPU."""
        call = getattr(statement, "value", None)
        return isinstance(call, ast.Call) and self.folder.always_raises(call, self.place)

    def statement(self, statement: ast.stmt, guard: Guard) -> None:
        """Walk one statement that never ends its block."""
        match statement:
            case ast.Expr(value=value):
                self.expression(value, guard)
            case ast.Assign(targets=targets, value=value):
                self._assign(targets, value, guard)
            case ast.AnnAssign():
                self._annotated(statement, guard)
            case ast.AugAssign(target=target, value=value):
                source = self.expression(value, guard)
                self.store(target, source, guard)
            case ast.For() | ast.AsyncFor():
                source = self.expression(statement.iter, guard)
                if source is not None:
                    source = self._implicit(source, "__iter__", statement.iter, guard)
                self.store(statement.target, source, guard)
                self.block(statement.body, guard)
                self.block(statement.orelse, guard)
            case ast.While(test=test, body=body, orelse=otherwise):
                self.expression(test, guard)
                self.block(body, self._split(test, guard)[0])
                self.block(otherwise, guard)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._define(statement, guard)
            case ast.ClassDef():
                self._define_class(statement, guard)
            case ast.Import() | ast.ImportFrom():
                self._import(statement, guard)
            case ast.Delete(targets=targets):
                for deleted in targets:
                    if isinstance(deleted, ast.Attribute | ast.Subscript):
                        self.expression(deleted.value, guard)
            case ast.Global(names=names):
                self.globals.update(names)
            case _:
                pass

    def _split(self, test: ast.expr, guard: Guard) -> tuple[Guard, Guard]:
        true, false = self.folder.masks(test, self.place)
        return (
            Guard(guard, test, True, guard.mask & true, true, guard.in_stream),
            Guard(guard, test, False, guard.mask & false, false, guard.in_stream),
        )

    def _with(self, statement: ast.With | ast.AsyncWith, guard: Guard) -> bool:
        inner = guard
        for item in statement.items:
            value = self.expression(item.context_expr, inner)
            if value is not None:
                entered = self._implicit(value, "__enter__", item.context_expr, inner)
                self._implicit(value, "__exit__", item.context_expr, inner)
                if item.optional_vars is not None:
                    self.store(item.optional_vars, entered, inner)
            if self._is_stream(item.context_expr):
                inner = Guard(inner, None, True, inner.mask, EVERYWHERE, True)
        return self.block(statement.body, inner) is None

    def _is_stream(self, expression: ast.expr) -> bool:
        """Whether a with-item makes a stream current, by how it is written."""
        if not isinstance(expression, ast.Call):
            return False
        func = expression.func
        if _last_of(func) == "stream":  # torch.cuda's, or a helper around it
            return True
        if isinstance(func, ast.Attribute):
            return func.attr == "StreamContext"
        if isinstance(func, ast.Name):
            for kind, _, target in self.module.bindings.get(func.id, ()):
                if kind == "from" and target in ("torch.cuda:stream", "torch.cuda:StreamContext"):
                    return True
            local = self.function.names.get(func.id)
            return local is not None and any(
                v.name in ("torch.cuda.stream", "torch.cuda.StreamContext") for v in local.values
            )
        return False

    def _try(self, statement: ast.Try | ast.TryStar, guard: Guard) -> bool:
        ends = self.block(statement.body, guard) is None
        ends = self.block(statement.orelse, guard) is None or ends
        for handler in statement.handlers:
            if handler.type is not None:
                self.expression(handler.type, guard)
            if handler.name:
                self.function.stored.add(handler.name)
                self._local(handler.name)
            ends = self.block(handler.body, guard) is None and ends
        return self.block(statement.finalbody, guard) is None or ends

    def _match(self, statement: ast.Match, guard: Guard) -> None:
        subject = self.expression(statement.subject, guard)
        for case in statement.cases:
            inner = guard
            for node in ast.walk(case.pattern):
                if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
                    self.store(ast.Name(node.name, ast.Store()), subject, guard)
                elif isinstance(node, ast.MatchValue):
                    self.expression(node.value, guard)
                elif isinstance(node, ast.MatchClass):
                    self.expression(node.cls, guard)
            if isinstance(case.pattern, ast.MatchValue):
                test = ast.Compare(statement.subject, [ast.Eq()], [case.pattern.value])
                inner = self._split(ast.copy_location(test, statement.subject), guard)[0]
            if case.guard is not None:
                self.expression(case.guard, inner)
                inner = self._split(case.guard, inner)[0]
            self.block(case.body, inner)

    def _assign(self, targets: list[ast.expr], value: ast.expr, guard: Guard) -> None:
        if (
            len(targets) == 1
            and isinstance(targets[0], ast.Tuple | ast.List)
            and isinstance(value, ast.Tuple | ast.List)
            and len(targets[0].elts) == len(value.elts)
            and not any(isinstance(e, ast.Starred) for e in (*targets[0].elts, *value.elts))
        ):
            for target, element in zip(targets[0].elts, value.elts, strict=True):
                self.store(target, self.expression(element, guard), guard, element)
            return
        source = self.expression(value, guard)
        for target in targets:
            self.store(target, source, guard, value)

    def _annotated(self, statement: ast.AnnAssign, guard: Guard) -> None:
        target, annotation = statement.target, statement.annotation
        evaluated = self.module.evaluates_annotations and not (
            isinstance(target, ast.Name) and not self.function.is_module
        )
        self._annotation(annotation, guard, evaluated)
        if self.class_body is not None and isinstance(target, ast.Name):
            self.class_body.annotations.setdefault(target.id, (self.module, annotation))
        value = statement.value
        if self.class_body is not None and isinstance(target, ast.Name) and _is_field(value):
            self._field(self.class_body, target.id, value, guard)
            return
        source = self.expression(value, guard) if value is not None else None
        if isinstance(target, ast.Name) and self.class_body is None:
            node = self._name(target.id, store=True)
            self.solver.annotated.setdefault(node, (self.module, annotation, self.function))
        elif (
            self.cls is not None
            and isinstance(target, ast.Attribute)
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
        ):
            self.cls.annotations.setdefault(target.attr, (self.module, annotation))
        if statement.value is not None:
            self.store(target, source, guard, statement.value)
            if (
                self.class_body is not None
                and isinstance(target, ast.Name)
                and self.class_body.is_dataclass
            ):
                self.solver.stores[target.id][-1].is_default = True
        elif isinstance(target, ast.Name):
            if self.class_body is None:
                self._name(target.id, store=True)
            else:
                self._noted(target.id, target, guard)  # something assigns it, somewhere

    def _field(self, cls: Class, name: str, call: ast.Call, guard: Guard) -> None:
        """A dataclass field's description; its factory runs when an instance is made."""
        for keyword in call.keywords:
            value = self.expression(keyword.value, guard)
            if keyword.arg == "default_factory" and value is not None:
                cls.factories[name] = value

    def store(
        self,
        target: ast.expr,
        source: Node | None,
        guard: Guard,
        value: ast.expr | None = None,
    ) -> None:
        """Assign what a node holds; ``value`` is the expression, if it is the target's alone."""
        match target:
            case ast.Name(id=name):
                node = self._name(name, store=True)
                if self.class_body is not None:
                    self._noted(name, value, guard, self.class_body)
                elif self.function.is_module or name in self.globals:
                    self._noted(f"{self.module.name}:{name}", value, guard, None, source)
                if source is not None:
                    self.solver.edge(source, node, guard.mask)
            case ast.Attribute(value=owner, attr=name):
                own = isinstance(owner, ast.Name) and owner.id in ("self", "cls")
                self._noted(name, value, guard, self.cls if own else None, source)
                base = self.expression(owner, guard)
                if base is not None:
                    self._occurrence(base, target, "write", guard, None)
                    if source is not None:
                        self.solver.use(base, Store(self.solver, name, source, guard.mask))
            case ast.Subscript(value=container, slice=index):
                self.expression(index, guard)
                self.expression(container, guard)
                if source is not None:
                    self._into(container, guard)(source, guard.mask)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for element in elements:
                    self.store(element, source, guard)
            case ast.Starred(value=element):
                self.store(element, source, guard)
            case _:
                pass

    def _noted(
        self,
        name: str,
        value: ast.expr | None,
        guard: Guard,
        owner: Class | None = None,
        source: Node | None = None,
    ) -> None:
        call = self.last_call if isinstance(value, ast.Call) else None
        if call is not None and call.result is not source:
            call = None
        read = self._read_for(value, source)
        stores = self.solver.stores.setdefault(name, [])
        stores.append(Assigned(self.function, guard, value, owner, call, read))

    def _read_for(self, value: ast.expr | None, source: Node | None) -> tuple[Node, str] | None:
        """The object and the attribute without which a value that was just read is nothing."""
        if self.last_read is None:
            return None
        base, attribute, found = self.last_read
        match value:
            case ast.Attribute():
                return (base, attribute) if found is source else None
            case ast.BoolOp(op=ast.And(), values=[*_, ast.Attribute(attr=name)]):
                return (base, attribute) if name == attribute else None
            case _:
                return None

    def _into(self, container: ast.expr, guard: Guard) -> Callable[[Node, int], None]:
        """Puts a node's values into what an expression names, a container say."""
        solver = self.solver
        match container:
            case ast.Attribute(value=value, attr=name):
                base = self._quietly(value, guard)
                if base is not None:
                    return lambda source, mask: solver.use(base, Fill(solver, name, source, mask))
            case ast.Subscript(value=value):
                return self._into(value, guard)
            case ast.Name(id=name):
                node = self._name(name)
                if name in self.function.stored or self.function.is_module:
                    return lambda source, mask: solver.edge(source, node, mask)
                outer = self._outer_node(name)
                return lambda source, mask: solver.edge(source, outer, mask)
            case _:
                pass
        return lambda source, mask: None

    def _outer_node(self, name: str) -> Node:
        outer = self.function.parent
        while outer is not None:
            if name in outer.stored:
                return outer.names[name]
            outer = outer.parent
        return self.solver.global_node(self.module, name)

    def _quietly(self, node: ast.expr, guard: Guard) -> Node | None:
        """The node of an expression that was walked before, without noting its sites again."""
        before = len(self.function.occurrences)
        found = self.expression(node, guard)
        del self.function.occurrences[before:]
        return found

    def _name(self, name: str, store: bool = False) -> Node:
        if self.class_body is not None:
            if store or name in self.class_body.attributes:
                node = self.class_body.attributes.get(name)
                if node is None:
                    node = self.class_body.attributes[name] = Node()
                return node
            return self._local(name)
        if store:
            if self.function.is_module or name in self.globals:
                return self.solver.global_node(self.module, name)
            self.function.stored.add(name)
        return self._local(name)

    def _local(self, name: str) -> Node:
        if self.function.is_module:
            node = self.function.names.get(name)
            if node is None:
                node = self.function.names[name] = Node()
            return node
        node = self.function.names.get(name)
        if node is None:
            node = self.function.names[name] = Node()
        return node

    # --- definitions -------------------------------------------------------------------------

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef, guard: Guard) -> None:
        self.has_inner = True
        self._signature(node, guard)
        qualname = self._qualname(node.name)
        function = Function(self.module, qualname, node, self.class_body, self._enclosing())
        if self.class_body is None and self.cls is not None:
            function.cls = self.cls  # a closure of a method: `self` and super() mean the same
        target = self._name(node.name, store=True)
        guard = self._lasting(node.name, node.lineno, guard)
        value = self.solver.function_value(function)
        if self.class_body is not None:
            self.class_body.methods[node.name] = function
        self._seed(target, value, guard)
        for decorator in node.decorator_list:
            self._decorate(decorator, value, target, guard)
            if isinstance(decorator, ast.Call):
                given = (*decorator.args, *(keyword.value for keyword in decorator.keywords))
                for argument in given:
                    if isinstance(argument, ast.Name | ast.Attribute):
                        holder = self._quietly(argument, guard)
                        if holder is not None:
                            function.decorated_with.append(holder)

    def _decorate(self, decorator: ast.expr, value: Value, target: Node, guard: Guard) -> None:
        callee = self._decorator(decorator, guard)
        if callee is None:
            return
        decorated = Node()
        self._seed(decorated, value, guard)
        result = Node()
        use = CallUse(
            self.solver,
            self.function,
            callee,
            [decorated],
            {},
            [],
            result,
            decorator.lineno,
            guard,
            decorated=value.function,
            given=ONE,
        )
        self._call_use(use)
        self.solver.use(result, Decorated(self.solver, target, value))

    def _decorator(self, decorator: ast.expr, guard: Guard) -> Node | None:
        """The node of a decorator.

        One that is made by a call can also be called without arguments, on what it decorates, and
        then gives that back: as a decorator only functions and objects are meant.
        """
        found = self.expression(decorator, guard)
        if found is None or not isinstance(decorator, ast.Call):
            return found
        made = Node()
        self.solver.use(found, NotClasses(self.solver, made))
        return made

    def _define_class(self, node: ast.ClassDef, guard: Guard) -> None:
        self.has_inner = True
        for base in (*node.bases, *(keyword.value for keyword in node.keywords)):
            found = self.expression(base, guard)
            if found is not None and isinstance(base, ast.Attribute):
                self.function.occurrences[-1].kind = "class"
        if self.function.is_module and self.class_body is None:
            cls = self.module.classes.get(node.name)
            if cls is None or cls.node is not node:
                cls = Class(self.module, node.name, node, None)
                self.module.classes.setdefault(node.name, cls)
        else:
            cls = Class(self.module, self._qualname(node.name), node, self._enclosing())
        target = self._name(node.name, store=True)
        lasting = self._lasting(node.name, node.lineno, guard)
        self._seed(target, self.solver.class_value(cls), lasting)
        for decorator in node.decorator_list:
            callee = self._decorator(decorator, guard)
            if callee is not None:
                decorated = Node()
                self._seed(decorated, self.solver.class_value(cls), guard)
                self._call_use(
                    CallUse(
                        self.solver,
                        self.function,
                        callee,
                        [decorated],
                        {},
                        [],
                        Node(),
                        decorator.lineno,
                        guard,
                        decorated=cls,
                        given=ONE,
                    )
                )
        outer, outer_cls = self.class_body, self.cls
        outer_place = self.place
        self.class_body = self.cls = cls
        self.place = Place(self.module, cls, self.place.functions)
        self.block(node.body, guard)
        self.class_body, self.cls, self.place = outer, outer_cls, outer_place

    def _signature(self, node: FunctionNode, guard: Guard) -> None:
        """Defaults and annotations, which belong to the place of the definition."""
        arguments = node.args
        for default in (*arguments.defaults, *arguments.kw_defaults):
            if default is not None:
                self.expression(default, guard)
        if isinstance(node, ast.Lambda):
            return
        for argument in (
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            *filter(None, (arguments.vararg, arguments.kwarg)),
        ):
            if argument.annotation is not None:
                self._annotation(argument.annotation, guard, self.module.evaluates_annotations)
        if node.returns is not None:
            self._annotation(node.returns, guard, self.module.evaluates_annotations)

    def _annotation(self, annotation: ast.expr, guard: Guard, evaluated: bool) -> None:
        """Sites in an annotation; one that is never evaluated is in force nowhere on a CPU."""
        never = Guard(guard, None, False, 0, 0, guard.in_stream)
        before = len(self.function.occurrences)
        self._annotated_with(annotation, guard if evaluated else never, never)
        for occurrence in self.function.occurrences[before:]:
            occurrence.kind = "annotation"

    def _annotated_with(self, node: ast.expr, guard: Guard, never: Guard) -> None:
        match node:
            case ast.Name(id=name):
                for kind, _, target in self.module.bindings.get(name, ()):
                    if kind == "from" and torch_api.is_device(target.replace(":", ".")):
                        self._named_use(self._name(name), node, guard, None)
            case ast.Attribute(value=value, attr=name):
                if name not in _PLAIN_TYPES or not isinstance(value, ast.Name):
                    self.expression(node, guard)
            case ast.Constant(value=str(text)) if "torch" in text:
                try:
                    parsed = ast.parse(text, mode="eval").body
                except (SyntaxError, ValueError):
                    return
                for part in ast.walk(parsed):
                    ast.copy_location(part, node)
                self._annotated_with(parsed, never, never)
            case ast.Subscript(value=value, slice=index):
                self._annotated_with(value, guard, never)
                self._annotated_with(index, guard, never)
            case ast.BinOp(left=left, right=right):
                self._annotated_with(left, guard, never)
                self._annotated_with(right, guard, never)
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                for element in elements:
                    self._annotated_with(element, guard, never)
            case _:
                pass

    def _import(self, statement: ast.Import | ast.ImportFrom, guard: Guard) -> None:
        solver = self.solver
        line = statement.lineno
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                target = self._name(alias.asname or name, store=True)
                if solver.program.has(name):
                    self._seed(target, solver.module_value(name), guard)
                else:
                    self._seed(target, solver.external(name), guard)
                self._import_module(alias.name, line, guard)
            return
        source = self.module.absolute(statement.module, statement.level)
        if source == "__future__":
            return
        self._import_module(source, line, guard)
        for alias in statement.names:
            if alias.name == "*":
                continue
            target = self._name(alias.asname or alias.name, store=True)
            lasting = self._lasting(alias.asname or alias.name, line, guard)
            if not solver.program.has(source):
                value = solver.external(f"{source}.{alias.name}")
                self._seed(target, value, lasting)
                if torch_api.is_device(value.name):
                    holder = Node()
                    self._seed(holder, solver.external(source), guard)
                    self.function.occurrences.append(
                        Occurrence(
                            holder,
                            alias.name,
                            "import",
                            getattr(alias, "lineno", line),
                            getattr(alias, "end_lineno", line),
                            guard,
                            None,
                            "",
                        )
                    )
                continue
            module = solver.program.module(source)
            assert module is not None
            if alias.name not in module.bindings and solver.program.has(f"{source}.{alias.name}"):
                self._import_module(f"{source}.{alias.name}", line, guard)
                self._seed(target, solver.module_value(f"{source}.{alias.name}"), lasting)
            else:
                solver.edge(solver.global_node(module, alias.name), target, lasting.mask)

    def _import_module(self, name: str, line: int, guard: Guard) -> None:
        if name.partition(".")[0] == self.solver.program.package:
            use = ImportUse(self.solver, self.function, name, line, guard)
            self.function.calls.append(use)
            use.again(EVERYWHERE)

    def _qualname(self, name: str) -> str:
        if self.class_body is not None:
            return f"{self.class_body.qualname}.{name}"
        if self.function.is_module:
            return name
        return f"{self.function.qualname}.<locals>.{name}"

    def _enclosing(self) -> Function | None:
        return None if self.function.is_module else self.function

    # --- expressions -------------------------------------------------------------------------

    def expression(self, node: ast.expr, guard: Guard) -> Node | None:
        """Walk an expression; the node of its values, or None where it can have none."""
        walk = _EXPRESSIONS.get(type(node))
        return None if walk is None else walk(self, node, guard)

    def _on_name(self, node: ast.Name, guard: Guard) -> Node | None:
        return self._name(node.id)

    def _on_attribute(self, node: ast.Attribute, guard: Guard) -> Node | None:
        base = self.expression(node.value, guard)
        if base is None:
            self._unknown_base(node, guard, None)
            self.last_read = None
            return None
        self._occurrence(base, node, "read", guard, None)
        found = self._attribute(base, node.attr, node, guard)
        self.last_read = (base, node.attr, found)
        return found

    def _on_conditional(self, node: ast.IfExp, guard: Guard) -> Node | None:
        self.expression(node.test, guard)
        then, other = self._split(node.test, guard)
        return self._union(
            (self.expression(node.body, then), then), (self.expression(node.orelse, other), other)
        )

    def _on_boolean(self, node: ast.BoolOp, guard: Guard) -> Node | None:
        parts = []
        for value in node.values:
            parts.append((self.expression(value, guard), guard))
            true, false = self._split(value, guard)
            guard = true if isinstance(node.op, ast.And) else false
        return self._union(*parts)

    def _on_walrus(self, node: ast.NamedExpr, guard: Guard) -> Node | None:
        source = self.expression(node.value, guard)
        self.store(node.target, source, guard)
        return source

    def _on_elements(self, node: ast.Tuple | ast.List | ast.Set, guard: Guard) -> Node | None:
        return self._union(*((self.expression(element, guard), guard) for element in node.elts))

    def _on_dict(self, node: ast.Dict, guard: Guard) -> Node | None:
        parts = []
        for key, value in zip(node.keys, node.values, strict=True):
            inner = guard
            if key is not None:
                self.expression(key, guard)
                inner = self._of_platform(key, guard)
            parts.append((self.expression(value, inner), inner))
        return self._union(*parts)

    def _of_platform(self, key: ast.expr, guard: Guard) -> Guard:
        """Where a table's entry counts: one for another platform is never looked up on a CPU."""
        if not (isinstance(key, ast.Attribute) and _last_of(key.value) == "PlatformEnum"):
            return guard
        current = ast.Attribute(ast.Name("current_platform", ast.Load()), "_enum", ast.Load())
        test = ast.copy_location(ast.Compare(current, [ast.Eq()], [key]), key)
        return self._split(test, guard)[0]

    def _on_value(self, node: ast.Starred | ast.Await, guard: Guard) -> Node | None:
        return self.expression(node.value, guard)

    def _on_yield(self, node: ast.Yield | ast.YieldFrom, guard: Guard) -> None:
        self._returns(node.value, guard)
        self.function.returned.append((guard, False))

    def _on_subscript(self, node: ast.Subscript, guard: Guard) -> Node | None:
        self.expression(node.slice, guard)
        base = self.expression(node.value, guard)
        if base is None:
            return None
        return self._implicit(base, "__getitem__", node, guard)

    def _on_operation(self, node: ast.BinOp, guard: Guard) -> Node | None:
        return self._union(
            (self.expression(node.left, guard), guard), (self.expression(node.right, guard), guard)
        )

    def _on_comparison(self, node: ast.Compare, guard: Guard) -> None:
        self.expression(node.left, guard)
        for other in node.comparators:
            self.expression(other, guard)

    def _on_unary(self, node: ast.UnaryOp, guard: Guard) -> Node | None:
        return self.expression(node.operand, guard)

    def _on_text(self, node: ast.JoinedStr, guard: Guard) -> None:
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                self.expression(value.value, guard)

    def _on_slice(self, node: ast.Slice, guard: Guard) -> None:
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                self.expression(part, guard)

    def _constant(self, node: ast.Constant, guard: Guard) -> Node | None:
        value = node.value
        if not isinstance(value, str) or not value.startswith(self.solver.program.package + "."):
            return None
        name = value.replace(":", ".")
        if not (self.solver.program.has(name) or self.solver.program.has(name.rpartition(".")[0])):
            return None
        holder = Node()
        self._seed(holder, self.solver.text(name), guard)
        return holder

    def _attribute(self, base: Node, name: str, node: ast.expr, guard: Guard) -> Node:
        return self.solver.attribute(base, name, self.function, node.lineno, guard)

    def _union(self, *parts: tuple[Node | None, Guard]) -> Node | None:
        known = [(node, guard) for node, guard in parts if node is not None]
        if not known:
            return None
        union = Node()
        for node, guard in known:
            self.solver.edge(node, union, guard.mask)
        return union

    def _lambda(self, node: ast.Lambda, guard: Guard) -> Node:
        self.has_inner = True
        self._signature(node, guard)
        qualname = self._qualname("<lambda>")
        function = Function(self.module, qualname, node, None, self._enclosing())
        function.cls = self.cls
        result = Node()
        self._seed(result, self.solver.function_value(function), guard)
        return result

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, guard: Guard
    ) -> Node | None:
        inner = guard
        for generator in node.generators:
            source = self.expression(generator.iter, inner)
            self.store(generator.target, source, inner)
            for test in generator.ifs:
                self.expression(test, inner)
                inner = self._split(test, inner)[0]
        if isinstance(node, ast.DictComp):
            self.expression(node.key, inner)
            value = self.expression(node.value, inner)
        else:
            value = self.expression(node.elt, inner)
        return value

    def _implicit(self, base: Node, method: str, node: ast.expr, guard: Guard) -> Node:
        return self.solver.special(base, method, self.function, node.lineno, guard)

    # --- calls -------------------------------------------------------------------------------

    def _call(self, node: ast.Call, guard: Guard) -> Node | None:
        func = node.func
        if isinstance(func, ast.Name):
            special = self._special(func.id, node, guard)
            if special is not None:
                return special
        base: Node | None = None
        attribute = ""
        callee: Node | None
        if isinstance(func, ast.Attribute):
            attribute = func.attr
            base = self.expression(func.value, guard)
            if base is not None:
                callee = self._attribute(base, attribute, func, guard)
                self._occurrence(base, func, "call", guard, node, callee)
            else:
                self._unknown_base(func, guard, node)
                callee = None
        else:
            callee = self.expression(func, guard)
            if isinstance(func, ast.Name) and callee is not None:
                self._named_use(callee, func, guard, node)
            elif isinstance(func, ast.Subscript):
                self._launch(func, guard, node)
            elif callee is not None:
                self._mark_called(func, node)
        positional: list[Node | None] = []
        stars: list[Node] = []
        for argument in node.args:
            value = self.expression(argument, guard)
            if isinstance(argument, ast.Starred):
                if value is not None:
                    stars.append(value)
            elif not stars:
                positional.append(value)
        keywords: dict[str, Node] = {}
        for keyword in node.keywords:
            value = self.expression(keyword.value, guard)
            if value is not None and keyword.arg is not None:
                keywords[keyword.arg] = value
            elif value is not None:
                stars.append(value)
        self._arguments(node, guard)
        if _last_of(func) == _REGISTERS:
            self._registers(node, positional, keywords, guard)
        if callee is None and base is None and not attribute:
            return None
        result = Node()
        use = CallUse(
            self.solver,
            self.function,
            callee or Node(),
            positional,
            keywords,
            stars,
            result,
            node.lineno,
            guard,
            attribute,
            base,
            named=tuple(keyword.arg for keyword in node.keywords if keyword.arg),
            given=given_by(node),
        )
        self._call_use(use)
        self.last_call = use
        if attribute:
            self.solver.method_calls.append(use)
        if attribute in torch_api.CONTAINER_READS and base is not None:
            self.solver.container_reads.append(use)
        if attribute in torch_api.CONTAINER_WRITES and isinstance(func, ast.Attribute):
            self.solver.container_writes.append((use, self._into(func.value, guard)))
        if _last_of(func) == "resolve_obj_by_qualname":
            for named in (*positional, *keywords.values()):
                if named is not None:
                    self.solver.use(named, ByString(self.solver, use))
        return result

    def _registers(
        self,
        node: ast.Call,
        positional: list[Node | None],
        keywords: dict[str, Node],
        guard: Guard,
    ) -> None:
        """An operator is registered: it runs where it is called by its name, and not here."""
        names = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "op_name")]
        match names:
            case [ast.Constant(value=str(name))]:
                function = keywords.pop("op_func", None)
                if function is None and len(positional) > 1:
                    function, positional[1] = positional[1], None
                if function is not None:
                    self.solver.edge(function, self.solver.operator(name), guard.mask)
            case _:
                pass

    def _call_use(self, use: CallUse) -> None:
        self.function.calls.append(use)
        self.solver.use(use.callee, use)

    def _mark_called(self, func: ast.expr, node: ast.Call) -> None:
        """``getattr(torch.cuda, "Event")()``: the read just noted is a call."""
        if self.function.occurrences and isinstance(func, ast.Call):
            last = self.function.occurrences[-1]
            if last.kind == "read" and last.line == func.lineno:
                last.kind, last.call = "call", node

    def _special(self, name: str, node: ast.Call, guard: Guard) -> Node | None:
        match name, node.args:
            case (
                ("getattr" | "hasattr" | "setattr" | "delattr"),
                [target, ast.Constant(value=str(attribute)), *others],
            ):
                base = self.expression(target, guard)
                values = [self.expression(other, guard) for other in others]
                if base is None:
                    return Node()
                made = ast.copy_location(ast.Attribute(target, attribute, ast.Load()), node)
                kind = "write" if name in ("setattr", "delattr") else "read"
                self._occurrence(base, made, kind, guard, None)
                if name == "setattr":
                    self._noted(attribute, others[0] if others else None, guard)
                if name == "setattr" and values[0] is not None:
                    self.solver.use(base, Store(self.solver, attribute, values[0], guard.mask))
                    return Node()
                found = self._attribute(base, attribute, node, guard)
                if name == "getattr":
                    return self._union((found, guard), *((v, guard) for v in values)) or found
                return Node()
            case "super", _:
                result = Node()
                receiver = self._receiver()
                if receiver is not None and self.cls is not None:
                    self.solver.use(receiver, Super(self.solver, self.cls, result))
                return result
            case _:
                return None

    def _receiver(self) -> Node | None:
        """The node of ``self`` or ``cls`` of the method around this place."""
        function: Function | None = self.function
        while function is not None and function.parent is not None:
            function = function.parent
        if function is None or not function.parameters:
            return None
        return self.solver.parameter(function, function.parameters[0])

    # --- occurrences -------------------------------------------------------------------------

    def _occurrence(
        self,
        base: Node,
        node: ast.Attribute,
        kind: str,
        guard: Guard,
        call: ast.Call | None,
        callee: Node | None = None,
    ) -> None:
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if own and kind != "call":
            return
        # An attribute stands where its name does, at the end of the expression.
        last = node.end_lineno or node.lineno
        first = min(last, getattr(node.value, "end_lineno", None) or node.lineno)
        self.function.occurrences.append(
            Occurrence(
                base, node.attr, kind, last, max(last, first), guard, call, _last_name(node), callee
            )
        )

    def _unknown_base(self, node: ast.Attribute, guard: Guard, call: ast.Call | None) -> None:
        last = node.end_lineno or node.lineno
        kind = "call" if call is not None else "read"
        if node.attr in torch_api.TENSOR_METHODS or node.attr in torch_api.MEMBERS:
            self.function.occurrences.append(
                Occurrence(None, node.attr, kind, last, last, guard, call, _last_name(node))
            )

    def _named_use(self, node: Node, name: ast.Name, guard: Guard, call: ast.Call | None) -> None:
        """A use of a name, which may stand for an attribute of the device."""
        kind = "call" if call is not None else "read"
        self.function.occurrences.append(
            Occurrence(node, "", kind, name.lineno, name.lineno, guard, call, name.id)
        )

    def _launch(self, func: ast.Subscript, guard: Guard, call: ast.Call) -> None:
        kernel = self.expression(func.value, guard)
        if kernel is not None:
            line = func.value.end_lineno or func.lineno
            self.function.occurrences.append(
                Occurrence(kernel, "", "launch", line, line, guard, call, _last_of(func.value))
            )

    def _arguments(self, node: ast.Call, guard: Guard) -> None:
        """Keywords and literals that name the device."""
        for keyword in node.keywords:
            value = keyword.value
            line = value.lineno
            if keyword.arg in (_PIN, _NON_BLOCKING):
                if isinstance(value, ast.Constant) and not value.value:
                    continue
                inner = guard
                if not isinstance(value, ast.Constant):
                    inner = self._split(value, guard)[0]
                    if self.folder.value(value, self.place) is UNKNOWN:
                        # The row says that it is true here, which nothing shows.
                        own = inner.own & WITHOUT_PROOF
                        mask = inner.mask & WITHOUT_PROOF
                        inner = Guard(guard, value, True, mask, own, guard.in_stream)
                self._argument(f"{keyword.arg}=True", line, inner, node)
            elif keyword.arg == _DEVICE and _is_cuda(value):
                self._argument("device='cuda'", line, guard, node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in _DEVICE_CALLS:
            for argument in node.args[:1]:
                if _is_cuda(argument):
                    self._argument("device='cuda'", argument.lineno, guard, node)

    def _argument(self, name: str, line: int, guard: Guard, call: ast.Call) -> None:
        self.function.occurrences.append(
            Occurrence(None, name, "argument", line, line, guard, call, "")
        )


_SIMPLE = frozenset({ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For})
"""The most frequent statements that never end their block."""

_CALLING = frozenset({ast.Expr, ast.Assign})

_EXPRESSIONS: dict[type[ast.expr], Callable[[_Visit, Any, Guard], Node | None]] = {
    ast.Attribute: _Visit._on_attribute,
    ast.Await: _Visit._on_value,
    ast.BinOp: _Visit._on_operation,
    ast.BoolOp: _Visit._on_boolean,
    ast.Call: _Visit._call,
    ast.Compare: _Visit._on_comparison,
    ast.Constant: _Visit._constant,
    ast.Dict: _Visit._on_dict,
    ast.DictComp: _Visit._comprehension,
    ast.GeneratorExp: _Visit._comprehension,
    ast.IfExp: _Visit._on_conditional,
    ast.JoinedStr: _Visit._on_text,
    ast.Lambda: _Visit._lambda,
    ast.List: _Visit._on_elements,
    ast.ListComp: _Visit._comprehension,
    ast.Name: _Visit._on_name,
    ast.NamedExpr: _Visit._on_walrus,
    ast.Set: _Visit._on_elements,
    ast.SetComp: _Visit._comprehension,
    ast.Slice: _Visit._on_slice,
    ast.Starred: _Visit._on_value,
    ast.Subscript: _Visit._on_subscript,
    ast.Tuple: _Visit._on_elements,
    ast.UnaryOp: _Visit._on_unary,
    ast.Yield: _Visit._on_yield,
    ast.YieldFrom: _Visit._on_yield,
}


@dataclass(frozen=True, slots=True)
class _Rebound:
    """A name that a module binds at a line in some worlds for sure, and under which conditions."""

    name: str
    line: int
    worlds: int
    conditions: tuple[tuple[ast.expr, bool], ...]


def _surely(certain: int, other: int) -> int:
    """Of the worlds where a condition is reached for sure, those where it can only be one thing.

    ``other`` has the worlds in which it can be the other. A generation's worlds on a CPU go
    together: where one of them lacks proof only, nothing is sure.
    """
    for worlds in GENERATION.values():
        if other & worlds & ON_CPU:
            certain &= ~worlds
    return certain


def _is_field(node: ast.expr | None) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and _last_of(node.func) in ("field", "Field")


def _is_cuda(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=str(text)):
            return text == "cuda" or text.startswith("cuda:")
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return text.startswith("cuda")
        case _:
            return False


def _last_name(node: ast.Attribute) -> str:
    """The last name of what the attribute is read from, for guesses by name."""
    return _last_of(node.value)


def _last_of(node: ast.expr) -> str:
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return _last_of(inner)
        case _:
            return ""
