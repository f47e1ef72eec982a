"""Which conditions are decided on a CPU platform, before anything runs.

A condition becomes a pair of masks: the worlds in which it can be true, and in which it can be
false. What decides it is read from the tree where the tree says it: the predicates of
``CpuPlatform``, constants of modules, fields that are assigned once, what
``CpuPlatform.check_and_update_config`` forces. The rest is in ``_FACTS``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from conformance.surface.program import Class, FunctionNode, Place, Program, Symbol
from conformance.surface.refused import refused_options
from conformance.surface.worlds import EVERYWHERE, GENERATION, GPU, ON_CPU, WITHOUT_PROOF

_NOT_GPU = EVERYWHERE & ~GPU


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()
NO_GRAPHS = "CUDAGraphMode.NONE"

_FACTS: dict[str, object] = {
    # typing, and what its imports are for
    "TYPE_CHECKING": False,
    # CPU platforms have no static graphs: Platform.support_static_graph_mode is false there, and
    # VllmConfig sets the mode to NONE.
    "cudagraph_mode": NO_GRAPHS,
    "cudagraph_runtime_mode": NO_GRAPHS,
    "use_cuda_graph": False,
    "use_cudagraph": False,
    # DeviceConfig takes these from CpuPlatform.device_type.
    "device_type": "cpu",
    "device.type": "cpu",
}
"""Values on a CPU by the last parts of a name; sources: vllm/config/vllm.py, vllm/config/device.py,
vllm/v1/worker/cpu_model_runner.py."""

_BY_GENERATION: dict[str, tuple[int, int]] = {
    # No CPU wheel of vLLM brings a Triton that has a CPU backend, and vLLM hides any other there;
    # the V2 runner refuses to start without one.
    "HAS_TRITON": (EVERYWHERE & ~(GENERATION["v1"] & ~GPU), EVERYWHERE & ~GENERATION["v2"] | GPU),
    "use_v2_model_runner": (GENERATION["v2"], GENERATION["v1"]),
    "_is_v2_model_runner": (GENERATION["v2"], GENERATION["v1"]),
}

_HARDWARE = re.compile(
    r"cuda|gpu|rocm|nccl|nvshmem|nixl|deep_?ep|deep_?gemm|flash_?infer|flash_attn|aiter|capability"
    r"|platform|device|triton|cutlass|cutedsl|helion|has_[a-z0-9_]*\(|is_available|fp8_supported"
    r"|nvlink|quick_?reduce|cudnn|marlin|pin_memory|pinned"
    r"|(?<![a-z])(hip|xpu|tpu|uva|p2p|mori|ptx|sm\d+|mi\d+|gfx)(?![a-z])",
    re.IGNORECASE,
)
"""Words of a condition about the hardware, or about a package that only GPUs have."""

_GRAPH_QUERIES = re.compile(r"^(has_|requires_|is_valid|separate_|uses_|valid_|decode_|mixed_)")


class Folder:
    """Decides conditions for a CPU platform."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._locals: dict[int, dict[str, ast.expr | None]] = {}
        self._fields: dict[tuple[Class, str], list[tuple[ast.expr, FunctionNode | None]]] = {}
        self._imports: dict[int, dict[str, tuple[str | None, int, str]]] = {}
        self._masks: dict[int, tuple[int, int]] = {}
        self._raises: dict[int, bool] = {}
        self._keep: list[object] = []
        self._active: set[tuple[int, str]] = set()
        self._platform_values: dict[str, object] = {}
        self.platform = self._class("vllm.platforms.cpu", "CpuPlatform")
        self.forced = dict(self._forced())
        self.refused: frozenset[str] = frozenset()
        self.refused = frozenset(refused_options(program, self.masks))

    def masks(self, condition: ast.expr, place: Place) -> tuple[int, int]:
        """Worlds in which the condition can be true, and in which it can be false."""
        found = self._masks.get(id(condition))
        if found is None:
            found = self._decide(condition, place)
            self._masks[id(condition)] = found
            self._keep.append(condition)
        return found

    def _decide(self, condition: ast.expr, place: Place) -> tuple[int, int]:
        match condition:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                true, false = self.masks(operand, place)
                return false, true
            case ast.BoolOp(op=operator, values=values):
                pairs = [self.masks(value, place) for value in values]
                if isinstance(operator, ast.Or):
                    pairs = [(false, true) for true, false in pairs]
                true, false = EVERYWHERE, 0
                for mask, other in pairs:
                    true &= mask
                    false |= other
                return (false, true) if isinstance(operator, ast.Or) else (true, false)
            case ast.NamedExpr(value=value):
                return self.masks(value, place)
            case ast.Call(func=ast.Name(id="bool"), args=[argument]):
                return self.masks(argument, place)
            case ast.Name() | ast.Attribute():
                special = self._special(condition)
                if special is not None:
                    return special
        known = self.value(condition, place)
        if known is not UNKNOWN:
            return (EVERYWHERE, GPU) if known else (GPU, EVERYWHERE)
        masks = self._through(condition, place)
        if masks is not None:
            return masks
        if _HARDWARE.search(place.module.text_of(condition)):
            return WITHOUT_PROOF, WITHOUT_PROOF
        return EVERYWHERE, EVERYWHERE

    def value(self, node: ast.expr, place: Place) -> object:
        """The expression's value on a CPU platform, or ``UNKNOWN``."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name() | ast.Attribute():
                return self._name(node, place)
            case ast.Call():
                return self._call(node, place)
            case ast.Compare(left=left, ops=[operator], comparators=[right]):
                return self._compare(left, operator, right, place)
            case ast.BoolOp(op=operator, values=values):
                decisive = isinstance(operator, ast.Or)
                result: object = not decisive
                for part in (self.value(v, place) for v in values):
                    if part is UNKNOWN:
                        result = UNKNOWN
                    elif bool(part) == decisive:
                        return part
                return result
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                negated = self.value(operand, place)
                return UNKNOWN if negated is UNKNOWN else not negated
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                decided = self.value(test, place)
                if decided is UNKNOWN:
                    return UNKNOWN
                return self.value(body if decided else otherwise, place)
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                items = [self.value(element, place) for element in elements]
                return UNKNOWN if any(item is UNKNOWN for item in items) else tuple(items)
            case _:
                return UNKNOWN

    def always_raises(self, call: ast.Call, place: Place) -> bool:
        """Whether a called function ends in a ``raise`` on every way that a CPU can take."""
        found = self._callee(call.func, place)
        if found is None:
            return False
        function, inside = found
        known = self._raises.get(id(function))
        if known is None:
            self._keep.append(function)
            self._raises[id(function)] = False  # one that calls itself
            text = inside.module.segment(function)
            if "raise" in text and "current_platform" in text:
                inside.module.restore(function)
                self._raises[id(function)] = self._ends_raising(function.body, inside)
            known = self._raises[id(function)]
        return known

    def _ends_raising(self, body: list[ast.stmt], place: Place) -> bool:
        for statement in body:
            if isinstance(statement, ast.Raise):
                return True
            if isinstance(statement, ast.If):
                true, false = self.masks(statement.test, place)
                ways = [
                    way
                    for way, mask in ((statement.body, true), (statement.orelse, false))
                    if mask & ON_CPU
                ]
                if all(self._ends_raising(way, place) for way in ways):
                    return True
                if any(_can_return(way) for way in ways):
                    return False
            elif _can_return([statement]):
                return False
        return False

    def _compare(
        self, left: ast.expr, operator: ast.cmpop, right: ast.expr, place: Place
    ) -> object:
        a, b = self.value(left, place), self.value(right, place)
        if a is UNKNOWN or b is UNKNOWN:
            return UNKNOWN
        match operator:
            case ast.Eq() | ast.Is():
                return a == b
            case ast.NotEq() | ast.IsNot():
                return a != b
            case ast.In() if isinstance(b, tuple | str):
                return a in b if isinstance(b, tuple) or isinstance(a, str) else UNKNOWN
            case ast.NotIn() if isinstance(b, tuple | str):
                return a not in b if isinstance(b, tuple) or isinstance(a, str) else UNKNOWN
            case _:
                return UNKNOWN

    def _name(self, node: ast.Name | ast.Attribute, place: Place) -> object:
        text = _dotted(node)
        if text is None:
            return UNKNOWN
        parts = text.split(".")
        if parts[0] == "CUDAGraphMode" or "PlatformEnum" in parts[:-1]:
            return ".".join(parts[-2:])
        for count in (2, 1):
            key = ".".join(parts[-count:])
            if key in _FACTS and len(parts) >= count:
                return _FACTS[key]
            if count == 2 and key in self.forced:
                return self.forced[key]
        if parts[-1] in self.refused:  # a parameter of an option's name has its value
            return False
        if len(parts) > 1 and self._is_platform(parts[-2], place):
            return self._platform(parts[-1])
        if isinstance(node, ast.Name):
            return self._definition_value(node.id, place)
        if parts[0] in ("self", "cls") and len(parts) == 2 and place.cls is not None:
            return self._field_value(place.cls, parts[1])
        symbol = None
        if not self._is_local(parts[0], place):
            symbol = self._program.resolve(place.module, node)
        if symbol is not None and symbol.kind == "expression" and symbol.module is not None:
            return self._guarded(
                symbol.module.name,
                parts[-1],
                lambda: self.value(symbol.definition, Place(symbol.module)),  # type: ignore[arg-type]
            )
        return UNKNOWN

    def _call(self, node: ast.Call, place: Place) -> object:
        if isinstance(node.func, ast.Attribute):
            owner = _dotted(node.func.value)
            if owner is not None and self._is_platform(owner.split(".")[-1], place):
                return self._platform(node.func.attr)
            if _GRAPH_QUERIES.match(node.func.attr):
                value = self.value(node.func.value, place)
                if value == NO_GRAPHS:
                    return False
        elif isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) >= 2:
            attribute = node.args[1]
            if isinstance(attribute, ast.Constant) and isinstance(attribute.value, str):
                return self.value(ast.Attribute(node.args[0], attribute.value, ast.Load()), place)
        found = self._callee(node.func, place)  # what it is given is not known, and may not matter
        if found is None:
            return UNKNOWN
        function, inside = found
        inside.module.restore(function)
        expression = _only_return(function)
        if expression is None:
            return UNKNOWN
        return self._guarded(
            inside.module.name, f"{function.name}()", lambda: self.value(expression, inside)
        )

    def _through(self, condition: ast.expr, place: Place) -> tuple[int, int] | None:
        """Masks of what an undecided name stands for: it may be decided for one generation."""
        expression: ast.expr | None = None
        inside = place
        match condition:
            case ast.Name(id=name):
                expression, inside = self._definition(name, place)
                key = f"?{name}"
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if place.cls:
                found = self._field(place.cls, name)
                if len(found) == 1:
                    expression, inside = found[0]
                key = f"?self.{name}"
            case ast.Call(func=func):
                callee = self._callee(func, place)
                if callee is not None:
                    callee[1].module.restore(callee[0])
                    expression, inside = _only_return(callee[0]), callee[1]
                key = f"?{ast.unparse(func)}()"
            case _:
                return None
        if expression is None or isinstance(expression, ast.Constant):
            return None
        found_masks = self._guarded(inside.module.name, key, lambda: self.masks(expression, inside))
        return None if isinstance(found_masks, _Unknown) else found_masks  # type: ignore[return-value]

    def _special(self, condition: ast.expr) -> tuple[int, int] | None:
        text = _dotted(condition) or ""
        return _BY_GENERATION.get(text.split(".")[-1])

    def _callee(
        self, func: ast.expr, place: Place
    ) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, Place] | None:
        match func:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if place.cls:
                for cls in place.cls.mro:
                    for statement in cls.node.body:
                        if isinstance(statement, ast.FunctionDef) and statement.name == name:
                            return statement, Place(cls.module, cls, (statement,))
                return None
            case ast.Name(id=name):
                if self._is_local(name, place):
                    imported = self._local_import(name, place)
                    symbol = self._program.imported(imported) if imported else None
                else:
                    symbol = self._program.lookup(place.module, name)
                return self._function(symbol)
            case ast.Attribute():
                return self._function(self._program.resolve(place.module, func))
            case _:
                return None

    def _is_platform(self, name: str, place: Place) -> bool:
        """Whether a name is the current platform, whatever it is imported as."""
        if name == "current_platform":
            return True
        target = self._local_import(name, place)
        if target is None and not self._is_local(name, place):
            target = next((t for k, _, t in place.module.bindings.get(name, ()) if k == "from"), "")
        return target is not None and target.endswith(":current_platform")

    def _function(
        self, symbol: Symbol | None
    ) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, Place] | None:
        if symbol is None or symbol.kind != "function" or symbol.module is None:
            return None
        bound = symbol.module.bindings.get(symbol.name.rpartition(".")[2], ())
        nodes = [n for _, n, _ in bound if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        if len(nodes) != 1:
            return None
        return nodes[0], Place(symbol.module, None, (nodes[0],))

    def _platform(self, name: str) -> object:
        """An attribute of CpuPlatform, or what a method of it returns."""
        if name not in self._platform_values:
            self._platform_values[name] = UNKNOWN
            self._platform_values[name] = self._platform_value(name)
        return self._platform_values[name]

    def _platform_value(self, name: str) -> object:
        if self.platform is None:
            return UNKNOWN
        for cls in self.platform.mro:
            for statement in cls.node.body:
                match statement:
                    case ast.FunctionDef(name=found) if found == name:
                        cls.module.restore(statement)
                        expression = _only_return(statement)
                        if expression is None:
                            return UNKNOWN
                        return self.value(
                            expression, Place(cls.module, self.platform, (statement,))
                        )
                    case (
                        ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value)
                        | ast.Assign(targets=[ast.Name(id=found)], value=value)
                    ) if found == name:
                        return self.value(value, Place(cls.module, cls))
        return UNKNOWN

    def _field_value(self, cls: Class, name: str) -> object:
        if self.platform is not None and self.platform in cls.mro:
            return self._platform(name)
        found = self._field(cls, name)
        if not found or len(found) > 3:
            return UNKNOWN
        values = [
            self._guarded(
                f"{cls.name}#{index}", name, lambda e=expression, p=inside: self.value(e, p)
            )
            for index, (expression, inside) in enumerate(found)
        ]
        first = values[0]
        return first if all(v is not UNKNOWN and v == first for v in values) else UNKNOWN

    def _field(self, cls: Class, name: str) -> list[tuple[ast.expr, Place]]:
        """All that is assigned to a field in the class and its bases; properties too."""
        found: list[tuple[ast.expr, Place]] = []
        for base in cls.mro:
            key = (base, name)
            if key not in self._fields:
                self._fields[key] = list(_field_values(base, name))
            for expression, function in self._fields[key]:
                inside = Place(base.module, base, (function,) if function else ())
                found.append((expression, inside))
        return found

    def _definition_value(self, name: str, place: Place) -> object:
        expression, inside = self._definition(name, place)
        if expression is None:
            return UNKNOWN
        key = f"{inside.module.name}:{id(inside.functions[0]) if inside.functions else 0}"
        return self._guarded(key, name, lambda: self.value(expression, inside))

    def _definition(self, name: str, place: Place) -> tuple[ast.expr | None, Place]:
        """The one expression that a name stands for, and where that stands."""
        for depth, function in enumerate(place.functions):
            local = self._local(function)
            if name in local:
                imported = self._local_import(name, place)
                if imported:
                    return self._symbol_expression(self._program.imported(imported), place)
                return local[name], Place(place.module, place.cls, place.functions[depth:])
        expressions = [
            node
            for kind, node, _ in place.module.bindings.get(name, ())
            if kind == "expression" and isinstance(node, ast.expr)
        ]
        bound = place.module.bindings.get(name, ())
        if len(expressions) == 1 and len(bound) == 1:
            return expressions[0], Place(place.module)
        if bound and not expressions:
            return self._symbol_expression(self._program.lookup(place.module, name), place)
        return None, place

    def _symbol_expression(
        self, symbol: Symbol | None, place: Place
    ) -> tuple[ast.expr | None, Place]:
        if symbol is None or symbol.kind != "expression" or symbol.module is None:
            return None, place
        bound = symbol.module.bindings.get(symbol.name.rpartition(".")[2], ())
        if len(bound) > 1 or not isinstance(symbol.definition, ast.expr):
            return None, place
        return symbol.definition, Place(symbol.module)

    def _is_local(self, name: str, place: Place) -> bool:
        return any(name in self._local(function) for function in place.functions)

    def _local_import(self, name: str, place: Place) -> str | None:
        for function in place.functions:
            if name in self._local(function):
                found = self._imports[id(function)].get(name)
                if found is None:
                    return None
                module, level, original = found
                return f"{place.module.absolute(module, level)}:{original}"
        return None

    def _local(self, function: FunctionNode) -> dict[str, ast.expr | None]:
        """Each local name with its expression if it has only one."""
        found = self._locals.get(id(function))
        if found is None:
            found, imports = _local_names(function)
            self._locals[id(function)] = found
            self._imports[id(function)] = imports
            self._keep.append(function)
        return found

    def _guarded(self, scope: str, name: str, compute: object) -> object:
        key = (hash(scope), name)
        if key in self._active:
            return UNKNOWN
        self._active.add(key)
        try:
            return compute()  # type: ignore[operator]
        finally:
            self._active.discard(key)

    def _class(self, module: str, name: str) -> Class | None:
        if not self._program.has(module):
            return None
        parsed = self._program.module(module)
        return parsed.classes.get(name) if parsed else None

    def _forced(self) -> Iterator[tuple[str, object]]:
        """Constants that CpuPlatform.check_and_update_config assigns whatever is asked for."""
        if self.platform is None:
            return
        for statement in self.platform.node.body:
            if (
                isinstance(statement, ast.FunctionDef)
                and statement.name == "check_and_update_config"
            ):
                self.platform.module.restore(statement)
                for inner in statement.body:
                    yield from _forced_by(inner)


def _forced_by(statement: ast.stmt) -> Iterator[tuple[str, object]]:
    match statement:
        case ast.Assign(targets=[ast.Attribute() as target], value=ast.Constant(value=value)):
            text = _dotted(target)
            if text is not None and text.count("."):
                yield ".".join(text.split(".")[-2:]), value
        case ast.If(test=ast.Attribute() as test, body=body):
            for inner in body:  # `if x: x = False`
                for key, forced in _forced_by(inner):
                    if forced is False and (_dotted(test) or "").endswith(key):
                        yield key, forced
        case _:
            return


def _can_return(body: list[ast.stmt]) -> bool:
    return any(isinstance(statement, ast.Return) for statement in _statements(body))


def _dotted(node: ast.expr) -> str | None:
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join((node.id, *reversed(parts)))


def _only_return(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.expr | None:
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


_LocalImports = dict[str, tuple[str | None, int, str]]


def _local_names(function: FunctionNode) -> tuple[dict[str, ast.expr | None], _LocalImports]:
    """A function's own names with their one expression, and what it imports by name."""
    found: dict[str, ast.expr | None] = {}
    imports: _LocalImports = {}
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        found[argument.arg] = None
    for extra in (arguments.vararg, arguments.kwarg):
        if extra is not None:
            found[extra.arg] = None
    if isinstance(function, ast.Lambda):
        return found, imports

    def assign(target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Name):
            found[target.id] = None if target.id in found else value
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                assign(element, None)

    for node in _statements(function.body):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    assign(target, value)
            case ast.AnnAssign(target=target, value=value):
                if value is not None:
                    assign(target, value)
            case ast.For(target=target):
                assign(target, None)
            case ast.With(items=items):
                for item in items:
                    if item.optional_vars is not None:
                        assign(item.optional_vars, None)
            case ast.If(test=test) | ast.While(test=test):
                for part in ast.walk(test):
                    if isinstance(part, ast.NamedExpr):
                        assign(part.target, part.value)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] = None
            case ast.AugAssign(target=target):
                assign(target, None)
            case ast.ImportFrom(module=module, names=names, level=level):
                for alias in names:
                    name = alias.asname or alias.name
                    found[name] = None
                    imports[name] = (module, level, alias.name)
            case ast.Import(names=names):
                for alias in names:
                    found[alias.asname or alias.name.partition(".")[0]] = None
            case _:
                pass
    return found, imports


def _field_values(cls: Class, name: str) -> Iterator[tuple[ast.expr, FunctionNode | None]]:
    """What a class itself assigns to a field, and in which method."""
    stores = cls.module.field_stores.get(name, ())
    for statement in cls.node.body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                is_property = statement.name == name and any(
                    (_dotted(d) or "").rpartition(".")[2] in ("property", "cached_property")
                    for d in statement.decorator_list
                )
                if not is_property:
                    first, last = cls.module.extent(statement)
                    if not any(first <= line <= last for line in stores):
                        continue
                cls.module.restore(statement)
                if is_property:
                    expression = _only_return(statement)
                    # One that computes its value says nothing here, and is no single value.
                    yield (expression or ast.Name("?", ast.Load())), statement
                for target, value in _assignments(statement):
                    if (
                        isinstance(target, ast.Attribute)
                        and target.attr == name
                        and isinstance(target.value, ast.Name)
                        and target.value.id in ("self", "cls")
                    ):
                        yield value, statement
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if isinstance(target, ast.Name) and target.id == name:
                        yield value, None
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value):
                if found == name:
                    # A dataclass's is a default: an instance can have anything.
                    yield ast.Name("?", ast.Load()) if cls.is_dataclass else value, None
            case _:
                pass


def _assignments(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in _statements(function.body):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield target, value
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield target, value
            case _:
                pass


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements of a block and the blocks in it, without functions and classes in it."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(statement, name, None)
            if inner:
                yield from _statements(inner)
        for handler in getattr(statement, "handlers", ()):
            yield from _statements(handler.body)
        for case in getattr(statement, "cases", ()):
            yield from _statements(case.body)
