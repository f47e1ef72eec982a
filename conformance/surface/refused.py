"""Options that vLLM's configuration refuses: on a CPU, or with one of the runners.

    if self.enable_eplb:
        if not current_platform.is_cuda_alike():
            raise ValueError(...)

Read from ``vllm.config``: a ``raise`` whose conditions are all true on a CPU but one, and that one
is an option. What a runner does not support is collected there by a method of its own:

    def _get_v1_model_runner_unsupported_features(self):
        if self.speculative_config.method == "dspark":
            unsupported.append("dspark speculative decoding")
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from conformance.surface.program import Module, Place, Program, only_return
from conformance.surface.worlds import ON_CPU

_SPEAKS = re.compile(r"current_platform|cudagraph_mode|device_type")
_COLLECTS = re.compile(r"_get_(v\d)_model_runner_unsupported_features")
_Condition = tuple[ast.expr, bool]
_Masks = Callable[[ast.expr, Place], tuple[int, int]]


def refused_options(program: Program, masks: _Masks) -> Iterator[tuple[str, bool | None]]:
    """The names of options that cannot be set on a CPU, and what they hold instead.

    ``masks`` gives the worlds in which a condition can be true, and false.
    """
    for name in program.tree.files:
        if not name.startswith("vllm.config."):
            continue
        module = program.module(name)
        if module is None or not _SPEAKS.search(module.text):
            continue
        for cls in module.classes.values():
            for statement in cls.node.body:
                if isinstance(statement, ast.FunctionDef) and _SPEAKS.search(
                    module.segment(statement)
                ):
                    module.restore(statement)
                    place = Place(module, cls, (statement,))
                    for conditions in _raises(statement.body, []):
                        option = _only_option(conditions, place, masks)
                        if option is not None:
                            yield option


@dataclass(frozen=True, slots=True)
class Unsupported:
    """What a generation of the runner refuses: an option that is set, or that has a value."""

    generation: str
    option: str
    value: object = True


def unsupported_options(program: Program) -> Iterator[Unsupported]:
    """What the runners do not support, and the methods that only ask for it."""
    found: list[Unsupported] = []
    methods: dict[str, list[ast.expr | None]] = {}
    for module, statement in _methods(program):
        match = _COLLECTS.fullmatch(statement.name)
        if match is not None:
            module.restore(statement)
            for conditions in _raises(statement.body, []):
                found.extend(_decisive(match[1], conditions))
    values = {one.value for one in found if isinstance(one.value, str)}
    for module, statement in _methods(program):
        text = module.segment(statement)
        if len(statement.args.args) == 1 and any(f'"{value}"' in text for value in values):
            module.restore(statement)
            methods.setdefault(statement.name, []).append(only_return(statement))
        elif statement.name in methods:
            methods[statement.name].append(None)
    yield from found
    for name, returned in methods.items():
        asked = _asked(returned[0]) if len(returned) == 1 and returned[0] is not None else ()
        for one in found:
            if (one.option, one.value) in asked:
                yield Unsupported(one.generation, name)


def _methods(program: Program) -> Iterator[tuple[Module, ast.FunctionDef]]:
    for name in program.tree.files:
        module = program.module(name) if name.startswith("vllm.config.") else None
        for cls in module.classes.values() if module is not None else ():
            for statement in cls.node.body:
                if isinstance(statement, ast.FunctionDef):
                    assert module is not None
                    yield module, statement


def _decisive(generation: str, conditions: list[_Condition]) -> Iterator[Unsupported]:
    """The one condition of a list that is no question for what there is."""
    left = [
        (condition, holds)
        for condition, holds in _conjuncts(conditions)
        if not _asks_whether_there_is(condition)
    ]
    if len(left) == 1 and left[0][1]:
        for option, value in _asked(left[0][0]):
            yield Unsupported(generation, option, value)


def _asks_whether_there_is(condition: ast.expr) -> bool:
    match condition:
        case ast.Compare(ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return True
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name.endswith("_config")
        case _:
            return False


def _asked(condition: ast.expr) -> tuple[tuple[str, object], ...]:
    """Options and their values of which one makes a condition true."""
    match condition:
        case ast.Attribute(attr=name):
            return ((name, True),)
        case ast.Compare(
            left=ast.Attribute(attr=name), ops=[ast.Eq()], comparators=[ast.Constant(value=value)]
        ):
            return ((name, value),)
        case ast.Compare(
            left=ast.Attribute(attr=name), ops=[ast.In()], comparators=[ast.Tuple(elts=elements)]
        ):
            return tuple((name, e.value) for e in elements if isinstance(e, ast.Constant))
        case _:
            return ()


def _raises(body: list[ast.stmt], around: list[_Condition]) -> Iterator[list[_Condition]]:
    """The conditions of each ``raise`` or ``.append()``.

    Without those that only say that nothing raised before.
    """
    around = list(around)
    for statement in body:
        if isinstance(statement, ast.Raise) or _appends(statement):
            yield list(around)
        elif isinstance(statement, ast.If):
            yield from _raises(statement.body, [*around, (statement.test, True)])
            yield from _raises(statement.orelse, [*around, (statement.test, False)])
            returns = statement.body and isinstance(statement.body[-1], ast.Return)
            # The configuration of a part of a model goes unchecked: the whole's was checked.
            if returns and "is_submodel_config" not in ast.unparse(statement.test):
                around.append((statement.test, False))


def _appends(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="append"))):
            return True
        case _:
            return False


def _only_option(
    conditions: list[_Condition], place: Place, masks: _Masks
) -> tuple[str, bool | None] | None:
    decided = False
    options: list[str] = []
    instead: bool | None = False
    for condition, holds in _conjuncts(conditions):
        true, false = masks(condition, place)
        possible, impossible = (true, false) if holds else (false, true)
        if not possible & ON_CPU:
            return None
        if not impossible & ON_CPU:
            decided = True
            continue
        match condition:
            case ast.Compare(
                left=ast.Attribute() as condition,
                ops=[ast.IsNot()],
                comparators=[ast.Constant(value=None)],
            ):
                instead = None
            case ast.Name() | ast.Attribute():
                pass
            case _:
                return None
        if not holds:
            return None
        options.append(ast.unparse(condition))
    if not decided or not options:
        return None
    last = max(options, key=len)
    if any(not last.startswith(option) for option in options) or "." not in last:
        return None
    return last.rpartition(".")[2], instead


def _conjuncts(conditions: list[_Condition]) -> Iterator[_Condition]:
    """Conditions that all hold, taken apart: ``not (not a or not b)`` is ``a`` and ``b``."""
    for condition, holds in conditions:
        match condition:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield from _conjuncts([(operand, not holds)])
            case ast.BoolOp(op=ast.And(), values=values) if holds:
                yield from _conjuncts([(value, True) for value in values])
            case ast.BoolOp(op=ast.Or(), values=values) if not holds:
                yield from _conjuncts([(value, False) for value in values])
            case _:
                yield condition, holds
