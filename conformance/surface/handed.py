"""What functions are given: parameters to which no call that is known passes anything.

    def prepare(batch, window=None):
        if window is not None:
            torch.cuda.synchronize()

If no call on a CPU passes a window, or each passes what is None there, no known way leads to the
``if``. Calls can be missed, so nothing here says that a CPU does not get there: it is not proved.

A call is kept in words, for trees are large and there are a quarter of a million calls. A word is
a dotted name, or one of the constants below.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from conformance.surface.graph import Given
from conformance.surface.program import Function, FunctionNode, Place
from conformance.surface.worlds import SURELY

ANYTHING, NONE, FALSE, SOMETHING = "", "None", "False", "!"
"""Nothing is known; None; another constant that is false; surely not None."""
ONE: Given = ((SOMETHING,), (), False)

_KNOWN: dict[Given, Given] = {}
_NEVER_NONE = (
    *(ast.Compare, ast.JoinedStr, ast.Lambda, ast.List, ast.ListComp, ast.Dict, ast.DictComp),
    *(ast.Set, ast.SetComp, ast.Tuple),
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """What is known of a parameter, in worlds that are surely on a CPU.

    ``empty`` has those in which it holds nothing (which ``is_none``, or false), ``filled`` those in
    which it is not None. It holds up to the line ``until``, where the function assigns it itself.
    """

    empty: int
    is_none: bool
    filled: int
    until: int


def given_by(call: ast.Call) -> Given:
    """What a call passes, in words."""
    positional = []
    starred = False
    for argument in call.args:
        if isinstance(argument, ast.Starred):
            starred = True
        elif not starred:
            positional.append(word_of(argument))
    named = []
    for keyword in call.keywords:
        if keyword.arg is None:
            starred = True
        else:
            named.append((keyword.arg, word_of(keyword.value)))
    given = (tuple(positional), tuple(named), starred)
    return _KNOWN.setdefault(given, given)


def word_of(node: ast.expr) -> str:
    """An expression as a word."""
    match node:
        case ast.Constant(value=None):
            return NONE
        case ast.Constant(value=value):
            return SOMETHING if value else FALSE
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=name, value=value):
            owner = word_of(value) if isinstance(value, ast.Name | ast.Attribute) else ANYTHING
            return f"{owner}.{name}" if owner else ANYTHING
        case ast.UnaryOp(op=ast.Not()):
            return SOMETHING
        case _:
            return SOMETHING if isinstance(node, _NEVER_NONE) else ANYTHING


Holds = Callable[[str, Place], tuple[int, int]]
"""Of a word at a place: the worlds in which it can hold something, and in which it can be None."""


def parameters(
    functions: Iterable[Function],
    asked: dict[int, set[str]],
    holds: Holds,
    stored: dict[int, dict[str, int]],
) -> Iterator[tuple[int, str, Parameter]]:
    """What is known of the parameters that conditions ask for, by the id of the function's node.

    ``asked`` has the names of the parameters, by that id. ``stored`` keeps the line at which a
    function first assigns each name, by the same id: one for all calls of a walk.
    """
    for key, same in _copies(functions, asked).items():
        if any(function.unseen & SURELY == function.mask & SURELY for function in same):
            continue
        for name in sorted(asked[key]):
            empty, is_none, filled = _known(same, name, holds)
            if empty or filled:
                if key not in stored:
                    stored[key] = _first_stores(same[0])
                until = stored[key].get(name, _NEVER)
                yield key, name, Parameter(empty, is_none, filled, until)


def parameter_names(function: FunctionNode) -> set[str]:
    """The names of a function's parameters."""
    arguments = function.args
    return {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def _copies(functions: Iterable[Function], asked: dict[int, set[str]]) -> dict[int, list[Function]]:
    """Functions that are asked about, those of one definition together."""
    copies: dict[int, list[Function]] = {}
    for function in functions:
        if id(function.node) in asked and function.mask & SURELY:
            copies.setdefault(id(function.node), []).append(function)
    return copies


def _known(same: list[Function], name: str, holds: Holds) -> tuple[int, bool, int]:
    """Where a parameter holds nothing, whether that is None, and where it is not None."""
    holding = none = reached = 0
    are_none = True
    for function in same:
        reached |= function.mask & SURELY
        holding |= function.unseen
        none |= function.unseen
        for (given, caller, is_bound), worlds in function.entered.items():
            worlds &= caller.mask & SURELY
            if worlds & ~(holding & none):
                word, place = _passed(function, name, given, caller, is_bound)
                some, nothing = holds(word, place)
                holding |= worlds & some
                none |= worlds & nothing
                are_none &= not worlds & ~some & ~nothing
    return reached & ~holding, are_none, reached & ~none


def _passed(
    function: Function, name: str, given: Given, caller: Function, is_bound: bool
) -> tuple[str, Place]:
    """The word that a call passes for a parameter, or that of its default, and where it stands."""
    positional, named, starred = given
    arguments = function.arguments
    assert arguments is not None
    for keyword, word in named:
        if keyword == name:
            return word, caller.place
    if name in function.parameters:
        index = function.parameters.index(name) - is_bound
        if index < 0:
            return SOMETHING, caller.place
        if index < len(positional):
            return positional[index], caller.place
    if starred:
        return ANYTHING, caller.place
    default = _default(arguments, name)
    return (ANYTHING if default is None else word_of(default)), function.place


def _default(arguments: ast.arguments, name: str) -> ast.expr | None:
    order = [*arguments.posonlyargs, *arguments.args]
    for argument, default in zip(reversed(order), reversed(arguments.defaults), strict=False):
        if argument.arg == name:
            return default
    for argument, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if argument.arg == name:
            return value
    return None


_NEVER = 1 << 60


def _first_stores(function: Function) -> dict[str, int]:
    """The first line at which a function may have assigned each name that it assigns."""
    node = function.node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return {}
    function.module.restore(node)
    found = _stores(node.body)
    function.module.release(node)
    return found


def _stores(body: list[ast.stmt]) -> dict[str, int]:
    """The first line of each name that is assigned; in a loop, that of the loop."""
    first: dict[str, int] = {}
    for statement in body:
        found = _stores(_blocks(statement))
        for part in ast.walk(statement):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                found.setdefault(part.id, statement.lineno)
        for name, line in found.items():
            first[name] = min(line, first.get(name, line))
    return first


def _blocks(statement: ast.stmt) -> list[ast.stmt]:
    """The statements inside of one that runs them once at most."""
    match statement:
        case ast.With(body=body):
            return body
        case ast.If(body=body, orelse=otherwise):
            return [*body, *otherwise]
        case ast.Try():
            handled = [s for handler in statement.handlers for s in handler.body]
            return [*statement.body, *statement.orelse, *handled, *statement.finalbody]
        case _:
            return []
