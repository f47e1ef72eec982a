"""Which conditions are decided on a CPU platform, before anything runs.

A condition becomes a pair of masks: the worlds in which it can be true, and in which it can be
false. What decides it is read from the tree where the tree says it: the predicates of
``CpuPlatform``, constants of modules, fields that are assigned once, what
``CpuPlatform.check_and_update_config`` forces. The rest is in ``_FACTS``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from conformance.surface.handed import (
    ANYTHING,
    FALSE,
    NONE,
    SOMETHING,
    Parameter,
    parameter_names,
    word_of,
)
from conformance.surface.program import (
    Class,
    FunctionNode,
    Place,
    Program,
    Symbol,
    only_return,
)
from conformance.surface.refused import refused_options, unsupported_options
from conformance.surface.worlds import EVERYWHERE, GENERATION, GPU, ON_CPU, WITHOUT_PROOF

_NOT_GPU = EVERYWHERE & ~GPU


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = _Unknown()
_ANYTHING = ast.Name("?", ast.Load())
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
    r"cuda|(?<!ngram_)gpu|rocm|nccl|nvshmem|nixl|deep_?ep|deep_?gemm|flash_?infer|flash_attn|aiter|capability"
    r"|platform|device|triton|cutlass|cutedsl|helion|has_[a-z0-9_]*\(|is_available|fp8_supported"
    r"|nvlink|quick_?reduce|cudnn|marlin|pin_memory|pinned"
    r"|(?<![a-z])(hip|xpu|tpu|uva|p2p|mori|ptx|sm\d+|mi\d+|gfx)(?![a-z])",
    re.IGNORECASE,
)
"""Words of a condition about the hardware, or about a package that only GPUs have."""

_HARDWARE_PARTS = (
    *("cuda", "gpu", "rocm", "nccl", "nvshmem", "nixl", "deep", "flash", "aiter", "capability"),
    *("platform", "device", "triton", "cutlass", "cutedsl", "helion", "has_", "is_available"),
    *("fp8_supported", "nvlink", "quick", "cudnn", "marlin", "pin", "hip", "xpu", "tpu", "uva"),
    *("p2p", "mori", "ptx", "sm", "mi", "gfx"),
)
"""One of these is in each text that ``_HARDWARE`` finds something in, and is found faster."""

_VENDORS = frozenset({"amd", "cuda", "nvidia", "rocm", "tpu", "xpu"})
"""Packages of what runs on the hardware of one vendor: ``vllm.models.minimax_m3.nvidia``."""

_WORD = re.compile(r"\w+")
_GRAPH_QUERIES = re.compile(r"^(has_|requires_|is_valid|separate_|uses_|valid_|decode_|mixed_)")


@dataclass(frozen=True, slots=True)
class Unset:
    """Where a name holds nothing: worlds, whether that is always None, the class that has it.

    One that ``is_default`` is known only where an object is made: others come from elsewhere.
    """

    worlds: int
    is_none: bool
    owner: Class | None
    is_default: bool


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
        self._words: dict[str, ast.expr] = {}
        self._asked: list[tuple[ast.expr, Place]] = []
        self._seen: set[int] = set()
        self._own_stores: dict[int, dict[str, list[ast.expr]]] = {}
        self._names_in: dict[int, tuple[ast.Name | ast.Attribute, ...]] = {}
        self._known_conditions: list[tuple[ast.expr, Place, list[str], tuple[int, ...]]] = []
        self._unset: dict[str, tuple[Unset, ...]] = {}
        self._handed: Mapping[int, Mapping[str, Parameter]] = {}
        self._doubted: Mapping[str, int] = {}
        self._of_names: list[tuple[ast.expr, str, FunctionNode]] = []
        self._active: set[tuple[int, str]] = set()
        self._platform_values: dict[str, object] = {}
        self.platform = self._class("vllm.platforms.cpu", "CpuPlatform")
        self.forced = dict(self._forced())
        self._by_generation = dict(_BY_GENERATION)
        self._values_by_generation: dict[tuple[str, object], tuple[int, int]] = {}
        for one in unsupported_options(program):
            masks = EVERYWHERE & ~(GENERATION[one.generation] & ON_CPU), EVERYWHERE
            if one.value is True:
                self._by_generation.setdefault(one.option, masks)
            else:
                self._values_by_generation[one.option, one.value] = masks
        self.refused: dict[str, bool | None] = {}
        self.refused = dict(refused_options(program, self.masks))
        for option in self.refused:  # on a CPU with either generation
            self._by_generation.pop(option, None)

    def masks(self, condition: ast.expr, place: Place) -> tuple[int, int]:
        """Worlds in which the condition can be true, and in which it can be false."""
        found = self._masks.get(id(condition))
        if found is None:
            found = self._decide(condition, place)
            self._masks[id(condition)] = found
            self._asked.append((condition, place))
            name = _asked_name(condition) if place.functions else ""
            if name:
                self._of_names.append((condition, name, place.functions[0]))
        return found

    def asked_parameters(self) -> dict[int, set[str]]:
        """The parameters that conditions ask for, by the id of their function's node."""
        found: dict[int, set[str]] = {}
        for _, name, function in self._of_names:
            if name in parameter_names(function):
                found.setdefault(id(function), set()).add(name)
        return found

    def holds(self, word: str, place: Place) -> tuple[int, int]:
        """Of a word of a call: where it can hold something, and where it can be None."""
        if word in (ANYTHING, NONE, FALSE, SOMETHING):
            return (
                EVERYWHERE if word in (ANYTHING, SOMETHING) else 0,
                EVERYWHERE if word in (ANYTHING, NONE) else 0,
            )
        node = self._words.get(word)
        if node is None:
            node = self._words[word] = ast.parse(word, mode="eval").body
        known = self.value(node, place)
        if known is not UNKNOWN:
            return (EVERYWHERE if known else GPU, EVERYWHERE if known is None else GPU)
        parameter = self._parameter(node, place)
        if parameter is not None:
            none = EVERYWHERE & ~(parameter.filled | (0 if parameter.is_none else parameter.empty))
            return EVERYWHERE & ~parameter.empty, none
        unset = self._unset_name(node, place) if self._unset else None
        if unset is not None:
            left = EVERYWHERE & ~unset.worlds
            return left, EVERYWHERE if unset.is_none else left
        return EVERYWHERE, 0 if self._is_never_none(node, place) else EVERYWHERE

    def _is_never_none(self, node: ast.expr, place: Place) -> bool:
        """Whether an annotation says of a parameter or field that it is not None."""
        match node:
            case ast.Name(id=name):
                for function in place.functions:
                    if name in self._local(function):
                        annotation = _annotation_of(function, name)
                        return annotation is not None and _excludes_none(annotation)
                return False
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                cls = place.cls if owner == "self" else self._annotated_with(owner, place)
                for base in cls.mro if cls is not None else ():
                    for statement in base.node.body:
                        match statement:
                            case ast.AnnAssign(target=ast.Name(id=found)) if found == name:
                                default = statement.value
                                is_none = isinstance(default, ast.Constant) and not default.value
                                return not is_none and _excludes_none(statement.annotation)
                            case _:
                                pass
                return False
            case _:
                return False

    def _parameter(self, node: ast.AST, place: Place) -> Parameter | None:
        """What is known of a parameter that a name stands for."""
        if not isinstance(node, ast.Name):
            return None
        for function in place.functions:
            found = self._handed.get(id(function))
            if found is not None and node.id in found:
                parameter = found[node.id]
                line = getattr(node, "lineno", 0)
                is_first = function is place.functions[0]
                return parameter if is_first and line <= parameter.until else None
            if node.id in self._local(function):
                return None
        return None

    def decided(self, condition: ast.expr) -> tuple[int, int]:
        """The masks of a condition that was asked for before."""
        return self._masks[id(condition)]

    def decide_again(
        self,
        unset: Mapping[str, tuple[Unset, ...]],
        handed: Mapping[int, Mapping[str, Parameter]],
        doubted: Mapping[str, int],
    ) -> set[int]:
        """Decide conditions anew, now that names are known that hold nothing in some worlds.

        ``handed`` has what is known of parameters, by the id of their function's node, ``doubted``
        the worlds in which nothing shows that an option is more than one. The ids of those
        conditions that are closed in more worlds than before.
        """
        self._unset = dict(unset)
        self._handed = handed
        self._doubted = doubted
        names = {name.rpartition(":")[2] for name in unset} | set(doubted)
        for known in handed.values():
            names.update(known)
        aliases = {
            function: frozenset(
                name
                for name, value in local.items()
                if isinstance(value, ast.Attribute) and value.attr in names
            )
            for function, local in self._locals.items()
        }
        aliased = {function for function, found in aliases.items() if found}
        before: dict[int, tuple[int, int]] = {}
        again: list[tuple[ast.expr, Place]] = []
        for condition, place, words, functions in self._conditions():
            if names.isdisjoint(words) and aliased.isdisjoint(functions):
                continue
            if self._mentions_unset(condition, place):
                before[id(condition)] = self._masks.pop(id(condition))
                again.append((condition, place))
        for condition, place in again:
            self.masks(condition, place)
        return {key for key, masks in before.items() if self._masks[key] != masks}

    def _conditions(self) -> list[tuple[ast.expr, Place, list[str], tuple[int, ...]]]:
        """The conditions that were asked for, with the words and the functions of each."""
        for condition, place in self._asked:
            if id(condition) not in self._seen:
                self._seen.add(id(condition))
                words = [*map(sys.intern, _WORD.findall(place.module.text_of(condition)))]
                functions = tuple(map(id, place.functions))
                self._known_conditions.append((condition, place, words, functions))
        self._asked = []
        return self._known_conditions

    def _mentions_unset(self, condition: ast.expr, place: Place) -> bool:
        names = self._names_in.get(id(condition))
        if names is None:
            parts = ast.walk(condition)
            names = tuple(p for p in parts if isinstance(p, ast.Name | ast.Attribute))
            self._names_in[id(condition)] = names
        for node in names:
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in self._doubted or self._unset_name(node, place) is not None:
                return True
            if self._parameter(node, place) is not None:
                return True
        return False

    def _unset_name(self, node: ast.expr, place: Place) -> Unset | None:
        """What is known of a name that is never set, if an expression stands for one."""
        if isinstance(node, ast.Attribute) and node.attr not in self._unset:
            return None
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                unset = self._unset_in(place.cls, name) if place.cls is not None else None
                is_made = any(getattr(f, "name", "") == "__post_init__" for f in place.functions)
                return unset if unset is not None and (is_made or not unset.is_default) else None
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="self"), attr=field), attr=name
            ):
                held = self._held_by(place.cls, field) if place.cls is not None else []
                found = {self._unset_in(cls, name) for cls in held}
                unset = found.pop() if len(found) == 1 else None
                return unset if unset is not None and not unset.is_default else None
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                cls = self._annotated_with(owner, place)
                unset = self._unset_in(cls, name) if cls is not None else None
                return unset if unset is not None and not unset.is_default else None
            case ast.Name(id=name):
                for function in place.functions:
                    local = self._locals.get(id(function), {})
                    if name in local:
                        value = local[name]
                        is_read = isinstance(value, ast.Attribute)
                        return self._unset_name(value, place) if value and is_read else None
                return next(iter(self._unset.get(f"{place.module.name}:{name}", ())), None)
            case _:
                return None

    def _annotated_with(self, parameter: str, place: Place) -> Class | None:
        """The class that a parameter is annotated with."""
        for function in place.functions:
            arguments = function.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                if argument.arg == parameter and argument.annotation is not None:
                    symbol = self._program.resolve(place.module, argument.annotation)
                    found = symbol.definition if symbol is not None else None
                    return found if isinstance(found, Class) else None
        return None

    def _unset_in(self, cls: Class, name: str) -> Unset | None:
        for unset in self._unset[name]:
            if unset.owner in cls.mro:
                return unset
        return None

    def _held_by(self, cls: Class, field: str) -> list[Class]:
        """The classes of what a field holds; none if it holds anything else."""
        held: list[Class] = []
        for base in cls.mro:
            node = base.fields.get(field)
            for value in node.values if node is not None else ():
                if value.kind != "instance" or value.cls is None:
                    return []
                held.append(value.cls)
        return held

    def option_names(self, condition: ast.expr, place: Place) -> tuple[str, ...]:
        """The names of an option in a condition that asks whether it is more than a number."""
        match condition:
            case ast.Compare(left=left, ops=[ast.Gt()], comparators=[ast.Constant()]):
                pass
            case _:
                return ()
        expression = left
        if isinstance(left, ast.Name):
            expression = self._definition(left.id, place)[0] or left
        names = (word_of(left).rpartition(".")[2], word_of(expression).rpartition(".")[2])
        return tuple(dict.fromkeys(filter(None, names)))

    def _without_unset(self, condition: ast.expr, place: Place) -> tuple[int, int] | None:
        """Masks of a condition that asks whether a name is set."""
        asked, holds, for_none = condition, True, False
        match condition:
            case ast.Compare(
                left=ast.Name(id=name) | ast.Attribute(attr=name),
                ops=[ast.Gt()],
                comparators=[ast.Constant()],
            ) if name in self._doubted:
                return EVERYWHERE & ~self._doubted[name], EVERYWHERE
            case ast.Compare(
                left=left,
                ops=[ast.Is() | ast.IsNot() as operator],
                comparators=[ast.Constant(value=None)],
            ):
                asked, holds, for_none = left, isinstance(operator, ast.IsNot), True
        parameter = self._parameter(asked, place)
        if parameter is not None:
            none = EVERYWHERE & ~parameter.filled if for_none else EVERYWHERE
            is_empty = parameter.is_none or not for_none
            some = EVERYWHERE & ~parameter.empty if is_empty else EVERYWHERE
            return (some, none) if holds else (none, some)
        unset = self._unset_name(asked, place)
        if unset is None or (for_none and not unset.is_none):
            return None
        possible = EVERYWHERE & ~unset.worlds
        return (possible, EVERYWHERE) if holds else (EVERYWHERE, possible)

    def _decide(self, condition: ast.expr, place: Place) -> tuple[int, int]:
        if self._unset or self._handed:
            masks = self._without_unset(condition, place)
            if masks is not None:
                return masks
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
            case (
                ast.Name()
                | ast.Attribute()
                | ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant()])
                | ast.Call(func=ast.Attribute(), args=[])
            ):
                special = self._special(condition)
                if special is not None:
                    return special
        known = self.value(condition, place)
        if known is not UNKNOWN:
            return (EVERYWHERE, GPU) if known else (GPU, EVERYWHERE)
        masks = self._of_vendor(condition, place) or self._through(condition, place)
        if masks is not None:
            return masks
        if not _asks_for_shape(condition) and _is_of_hardware(place.module.text_of(condition)):
            return WITHOUT_PROOF, WITHOUT_PROOF
        return EVERYWHERE, EVERYWHERE

    def _of_vendor(self, condition: ast.expr, place: Place) -> tuple[int, int] | None:
        """Masks of a question for an object of a class that is in a package for one vendor."""
        match condition:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                asked = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
                classes = [self._class_of(one, place) for one in asked]
                if all(c is not None and _is_of_vendor(c) for c in classes):
                    return WITHOUT_PROOF, EVERYWHERE
            case ast.Call(
                func=ast.Name(id="next"),
                args=[ast.GeneratorExp(generators=[only]), ast.Constant(value=None)],
            ):
                found = EVERYWHERE
                for test in only.ifs:
                    found &= self.masks(test, place)[0]
                return (found, EVERYWHERE) if found != EVERYWHERE else None
            case ast.Compare(
                left=ast.Name(id=name),
                ops=[ast.Is() | ast.IsNot() as operator],
                comparators=[ast.Constant(value=None)],
            ):
                first, inside = self._definition(name, place)
                if isinstance(first, ast.Call) and _last_name(first.func) == "next":
                    masks = self._of_vendor(first, inside)
                    if masks is not None:
                        return masks[::-1] if isinstance(operator, ast.Is) else masks
            case _:
                pass
        return None

    def _class_of(self, node: ast.expr, place: Place) -> Class | None:
        """The class of the tree that a name stands for."""
        symbol = None
        if isinstance(node, ast.Name) and self._is_local(node.id, place):
            imported = self._local_import(node.id, place)
            symbol = self._program.imported(imported) if imported else None
        else:
            symbol = self._program.resolve(place.module, node)
        found = symbol.definition if symbol is not None else None
        return found if isinstance(found, Class) else None

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
            case ast.List(elts=[]):  # to be filled
                return UNKNOWN
            case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Set(elts=elements):
                items = [self.value(element, place) for element in elements]
                return UNKNOWN if any(item is UNKNOWN for item in items) else tuple(items)
            case _:
                return UNKNOWN

    def always_raises(self, call: ast.Call, place: Place) -> bool:
        """Whether a called function ends in a ``raise`` on every way that a CPU can take."""
        found = self._callee(call.func, place)
        if found is not None:
            return self._raises_always(*found)
        methods = self._methods_of_getter(call.func, place)
        return bool(methods) and all(self._raises_always(*method, deep=True) for method in methods)

    def _methods_of_getter(
        self, func: ast.expr, place: Place
    ) -> list[tuple[ast.FunctionDef, Place]]:
        """The methods that ``self.<property>.<method>()`` can mean, by the property's annotation.

        Those of the classes in the annotated one's module: it is where a base has its heirs.
        """
        match func:
            case ast.Attribute(value=ast.Attribute(ast.Name("self"), name), attr=method):
                pass
            case _:
                return []
        mro = place.cls.mro if place.cls is not None else ()
        getter = next((base.methods[name] for base in mro if name in base.methods), None)
        if getter is None or getter.kind != "property":
            return []
        assert isinstance(getter.node, ast.FunctionDef)
        symbol = self._program.resolve(getter.module, getter.node.returns or ast.Constant(None))
        owner = symbol.definition if symbol is not None else None
        if not isinstance(owner, Class):
            return []
        return [
            (statement, Place(cls.module, cls, (statement,)))
            for cls in owner.module.classes.values()
            if owner in cls.mro
            for statement in cls.node.body
            if isinstance(statement, ast.FunctionDef)
            and statement.name == method
            and not any(_dotted(d) == "abstractmethod" for d in statement.decorator_list)
        ]

    def _raises_always(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, inside: Place, deep: bool = False
    ) -> bool:
        """Whether a function ends in a ``raise``; ``deep``: its own statements are calls too."""
        known = self._raises.get(id(function))
        if known is None:
            self._keep.append(function)
            self._raises[id(function)] = False  # one that calls itself
            text = inside.module.segment(function)
            if deep or ("raise" in text and "current_platform" in text):
                inside.module.restore(function)
                self._raises[id(function)] = self._ends_raising(function.body, inside, deep)
            known = self._raises[id(function)]
        return known

    def _ends_raising(self, body: list[ast.stmt], place: Place, deep: bool = False) -> bool:
        for statement in body:
            if isinstance(statement, ast.Raise):
                return True
            if deep and isinstance(statement, ast.Expr | ast.Assign):
                call = statement.value
                if isinstance(call, ast.Call) and self.always_raises(call, place):
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
        if text == "__name__":  # none of the tree's modules is run as a program
            return place.module.name
        if parts[0] == "CUDAGraphMode" or "PlatformEnum" in parts[:-1]:
            return ".".join(parts[-2:])
        for count in (2, 1):
            key = ".".join(parts[-count:])
            if key in _FACTS and len(parts) >= count:
                return _FACTS[key]
            if count == 2 and key in self.forced:
                return self.forced[key]
        if parts[-1] in self.refused:  # a parameter of an option's name has its value
            return self.refused[parts[-1]]
        if len(parts) > 1 and self._is_platform(parts[-2], place):
            return self._platform(parts[-1])
        if isinstance(node, ast.Name):
            return self._definition_value(node.id, place)
        if parts[0] in ("self", "cls") and len(parts) == 2 and place.cls is not None:
            return self._field_value(place.cls, parts[1])
        symbol = None
        if not self._is_local(parts[0], place):
            symbol = self._program.resolve(place.module, node)
        expression, inside = self._symbol_expression(symbol, place)
        if expression is None:
            return UNKNOWN
        return self._guarded(inside.module.name, parts[-1], lambda: self.value(expression, inside))

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
        expression = only_return(function)
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
                    expression, inside = only_return(callee[0]), callee[1]
                key = f"?{ast.unparse(func)}()"
            case _:
                return None
        if expression is None or isinstance(expression, ast.Constant):
            return None
        found_masks = self._guarded(inside.module.name, key, lambda: self.masks(expression, inside))
        return None if isinstance(found_masks, _Unknown) else found_masks  # type: ignore[return-value]

    def _special(self, condition: ast.expr) -> tuple[int, int] | None:
        """Masks of what is decided by the generation of the runner."""
        match condition:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return self._by_generation.get(name)
            case ast.Call(func=ast.Attribute(attr=name)):
                return self._by_generation.get(name)
            case ast.Compare(
                left=ast.Name(id=name) | ast.Attribute(attr=name),
                comparators=[ast.Constant(value=value)],
            ):
                return self._values_by_generation.get((name, value))
            case _:
                return None

    def _callee(
        self, func: ast.expr, place: Place
    ) -> tuple[ast.FunctionDef | ast.AsyncFunctionDef, Place] | None:
        match func:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if place.cls:
                for cls in place.cls.mro:
                    found = cls.own_functions.get(name)
                    if found is not None:
                        return found, Place(cls.module, cls, (found,))
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
                        expression = only_return(statement)
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
                self._fields[key] = list(_field_values(base, name, self._own_stores))
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
        if name in place.module.set_by_functions:
            return None, place
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
        name = symbol.name.rpartition(".")[2]
        bound = symbol.module.bindings.get(name, ())
        if len(bound) > 1 or not isinstance(symbol.definition, ast.expr):
            return None, place
        if name in symbol.module.set_by_functions:
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


def _is_of_vendor(cls: Class) -> bool:
    return not _VENDORS.isdisjoint(cls.module.name.split("."))


def _last_name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


def _asked_name(condition: ast.expr) -> str:
    """The name that a condition asks whether it is set."""
    match condition:
        case ast.Name(id=name):
            return name
        case ast.Compare(
            left=ast.Name(id=name),
            ops=[ast.Is() | ast.IsNot()],
            comparators=[ast.Constant(value=None)],
        ):
            return name
        case _:
            return ""


def _annotation_of(function: FunctionNode, name: str) -> ast.expr | None:
    """The annotation of a parameter whose default is not None."""
    arguments = function.args
    order = [*arguments.posonlyargs, *arguments.args]
    defaults: dict[str, ast.expr | None] = dict(
        zip((a.arg for a in reversed(order)), reversed(arguments.defaults), strict=False)
    )
    defaults |= zip((a.arg for a in arguments.kwonlyargs), arguments.kw_defaults, strict=True)
    for argument in (*order, *arguments.kwonlyargs):
        if argument.arg == name:
            default = defaults.get(name)
            is_none = isinstance(default, ast.Constant) and default.value is None
            return None if is_none else argument.annotation
    return None


def _excludes_none(annotation: ast.expr) -> bool:
    """Whether an annotation names types of which None is none."""
    text = ast.unparse(annotation)
    return not re.search(r"None|Optional|Any|object|Union|\bT\b|Self", text)


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


@lru_cache(1 << 14)
def _is_of_hardware(text: str) -> bool:
    lowered = text.lower()
    return any(part in lowered for part in _HARDWARE_PARTS) and bool(_HARDWARE.search(text))


def _asks_for_shape(condition: ast.expr) -> bool:
    """Whether a condition is about a tensor, whatever that is called."""
    match condition:
        case ast.Compare(left=ast.Attribute(attr=name)):
            return name in ("dtype", "ndim", "shape")
        case _:
            return False


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


def _field_values(
    cls: Class, name: str, known: dict[int, dict[str, list[ast.expr]]]
) -> Iterator[tuple[ast.expr, FunctionNode | None]]:
    """What a class itself assigns to a field, and in which method.

    ``known`` keeps what methods assign to their object, by the id of the method's node.
    """
    stores = cls.module.field_stores.get(name, ())
    if not stores and name not in cls.own_names:
        return
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
                if is_property:
                    cls.module.restore(statement)
                    expression = only_return(statement)
                    # One that computes its value says nothing here, and is no single value.
                    yield (expression or _ANYTHING), statement
                if id(statement) not in known:
                    cls.module.restore(statement)
                    known[id(statement)] = _own_stores(statement)
                for value in known[id(statement)].get(name, ()):
                    yield value, statement
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if isinstance(target, ast.Name) and target.id == name:
                        yield value, None
            case ast.AnnAssign(target=ast.Name(id=found), value=ast.expr() as value):
                if found == name:
                    # A dataclass's is a default: an instance can have anything.
                    yield _ANYTHING if cls.is_dataclass else value, None
            case _:
                pass


def _own_stores(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
) -> dict[str, list[ast.expr]]:
    """What a method assigns to attributes of its object or class."""
    found: dict[str, list[ast.expr]] = {}
    for target, value in _assignments(function):
        if (
            isinstance(target, ast.Attribute)
            and isinstance(target.value, ast.Name)
            and target.value.id in ("self", "cls")
        ):
            found.setdefault(target.attr, []).append(value)
    return found


def _assignments(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in _statements(function.body):
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    if isinstance(target, ast.Tuple | ast.List):
                        yield from ((element, _ANYTHING) for element in target.elts)
                    else:
                        yield target, value
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield target, value
            case ast.AugAssign(target=target):
                yield target, _ANYTHING
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
