"""Options that vLLM's configuration refuses on a CPU: it raises where one is set.

    if self.enable_eplb:
        if not current_platform.is_cuda_alike():
            raise ValueError(...)

Read from ``vllm.config``: a ``raise`` whose conditions are all true on a CPU but one, and that one
is an option.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from conformance.surface.program import Place, Program
from conformance.surface.worlds import ON_CPU

_SPEAKS = re.compile(r"current_platform|cudagraph_mode|device_type")
_Condition = tuple[ast.expr, bool]
_Masks = Callable[[ast.expr, Place], tuple[int, int]]


def refused_options(program: Program, masks: _Masks) -> Iterator[str]:
    """The names of options that cannot be set on a CPU.

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


def _raises(body: list[ast.stmt], around: list[_Condition]) -> Iterator[list[_Condition]]:
    """The conditions of each ``raise``, without those that only say that nothing raised before."""
    around = list(around)
    for statement in body:
        if isinstance(statement, ast.Raise):
            yield list(around)
        elif isinstance(statement, ast.If):
            yield from _raises(statement.body, [*around, (statement.test, True)])
            yield from _raises(statement.orelse, [*around, (statement.test, False)])
            if statement.body and isinstance(statement.body[-1], ast.Return):
                around.append((statement.test, False))


def _only_option(conditions: list[_Condition], place: Place, masks: _Masks) -> str | None:
    decided = False
    options: list[str] = []
    for condition, holds in _conjuncts(conditions):
        true, false = masks(condition, place)
        possible, impossible = (true, false) if holds else (false, true)
        if not possible & ON_CPU:
            return None
        if not impossible & ON_CPU:
            decided = True
            continue
        if not holds or not isinstance(condition, ast.Name | ast.Attribute):
            return None
        options.append(ast.unparse(condition))
    if not decided or not options:
        return None
    last = max(options, key=len)
    if any(not last.startswith(option) for option in options) or "." not in last:
        return None
    return last.rpartition(".")[2]


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
