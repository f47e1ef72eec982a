"""The inventory as a file: its text, where it is kept, what differs between two of them.

The text is JSON with one line for each function and each row, in a stable order::

    {"schema": ..., "vllm": ..., "walker": ..., "contexts": {letter: context}, "modules": {
    MODULE: {
    FUNCTION: {"ways": [WAY, ...], KEY: VALUE, ..., "rows": [
    [LINE, ATTRIBUTE, KIND], [LINE, ATTRIBUTE, KIND, {KEY: VALUE, ...}]
    ]}}}}

A way is how a function is reached: ``[]`` for an entry point, ``[CALLER, LINE]`` for a call, with a
third member for the caller's way if it is not its first. A caller in the same module is written
without the module's name. Keys of a function are what most of its rows have in common, keys of a
row what it has otherwise: ``in`` (contexts, by their letters), ``tier``, ``gen`` (generation),
``cpu`` (on_cpu), ``why`` (reason), ``by`` (upstream), ``way`` (which of the function's ways), and
of a row alone ``end`` (end_line), ``if`` (guards; a number in front says how many it shares with
the function's row above), ``args`` and ``kw`` (the call's), ``chain`` (where it is none of the
function's ways). What `_DEFAULTS`, `_REASONS` and `_usual_call` say is left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn, get_args

from packaging.version import InvalidVersion, Version

from conformance.cache import FIXTURES
from conformance.surface.model import CONTEXTS, GENERATIONS, Call, Inventory, Kind, OnCpu, Row, Tier
from conformance.surface.sources import SourceTree
from conformance.target import WrongUse

SCHEMA = "vllm-conformance/inventory/1"
WALKER = 4
"""Which walker made the rows. Whoever changes what it finds counts up, and writes all inventories
anew: two of different walkers differ for reasons that are not vLLM's."""
INVENTORIES = FIXTURES / "inventories"
"""Where the known inventories are, ``<version of vLLM>.json`` each."""

_LETTERS = dict(zip("inlpesdtax", CONTEXTS, strict=True))
_LETTER = {context: letter for letter, context in _LETTERS.items()}
_SHARED = ("in", "tier", "gen", "cpu", "why", "by", "way")
_DEFAULTS: dict[str, Any] = {
    "in": "",
    "tier": "resolved",
    "gen": "both",
    "cpu": "true",
    "why": None,
    "by": "none",
    "way": 0,
}
_REASONS = {
    "true": "no condition on the way excludes a CPU",
    "unknown": "its object comes from where a condition is not decided",
    "false": "its object is made only where a CPU does not get",
}
"""The usual reason of each ``cpu``."""
_OWN = frozenset((*_SHARED, "end", "if", "args", "kw", "chain"))
_LONGEST_CHAIN = 1000


def inventory_of(tree: SourceTree, cache: Path | None) -> Inventory:
    """Return a tree's inventory, from ``cache`` if the same walker has walked the same files.

    It is kept there for the next time; None keeps nothing.

    Raises:
        WrongUse: the tree cannot be walked.
    """
    path = None if cache is None else cache / "inventories" / f"{_cache_key(tree)}.json"
    if path is not None:
        with suppress(OSError, UnicodeDecodeError, WrongUse):
            return loads(path.read_text(encoding="utf-8"), path)
    inventory = _walked(tree)
    if path is not None:
        with suppress(OSError):  # a cache that cannot be written to costs time, and nothing else
            _write(path, dumps(inventory))
    return inventory


def _walked(tree: SourceTree) -> Inventory:
    # Imported when needed: together they take a tenth of a second.
    if tree.spec is not None:
        from conformance.surface.apart import walk_apart

        return walk_apart(tree.spec)
    from conformance.surface.walker import walk

    return walk(tree)


def known_path(version: str, directory: Path = INVENTORIES) -> Path:
    """Return where the known inventory of a vLLM version is.

    Raises:
        WrongUse: it is no version.
    """
    try:
        Version(version)
    except InvalidVersion:
        raise WrongUse(
            f"{version!r} is no version of vLLM, and an inventory is kept by version: give a "
            "source that says its version, such as 0.32.0."
        ) from None
    return directory / f"{version}.json"


def load(path: Path) -> Inventory:
    """Read an inventory's file.

    Raises:
        WrongUse: there is none, it cannot be read, or it is no inventory of this walker.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise WrongUse(f"There is no inventory {path}: {_again(path)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUse(f"{path} cannot be read ({error}): {_again(path)}") from error
    return loads(text, path)


def write(inventory: Inventory, directory: Path = INVENTORIES) -> Path:
    """Write ``<version>.json`` into a directory, whole or not at all, and return its path.

    Raises:
        WrongUse: its vLLM has no version, or the directory cannot be written to.
    """
    path = known_path(inventory.vllm, directory)
    try:
        _write(path, dumps(inventory))
    except OSError as error:
        raise WrongUse(
            f"{path} cannot be written ({error.strerror or error}): name another directory, "
            "--write DIR."
        ) from error
    return path


def dumps(inventory: Inventory) -> str:
    """Return an inventory's text; equal inventories have equal texts."""
    functions: dict[str, dict[str, _Function]] = {}
    for row in inventory.rows:
        _function(functions, row.module, row.function).rows.append(row)
    entries = [(row, _enter(functions, row)) for row in inventory.rows]
    ways = dict(zip(inventory.rows, (way for _, way in entries), strict=True))
    head = {"schema": SCHEMA, "vllm": inventory.vllm, "walker": WALKER, "contexts": _LETTERS}
    modules = ",\n".join(
        f"{_json(module)}: {{\n"
        + ",\n".join(
            f"{_json(name)}: {function.text(module, ways)}"
            for name, function in sorted(functions[module].items())
        )
        + "\n}"
        for module in sorted(functions)
    )
    return f"{_json(head)[:-1]},\n" + '"modules": {\n' + modules + "\n}}\n"


def loads(text: str, path: Path) -> Inventory:
    """Return the inventory of a text; ``path`` is what to call it where it is none.

    Raises:
        WrongUse: it is no JSON, of another schema or walker, or not what `dumps` writes.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WrongUse(f"{path} is no JSON ({error}): {_again(path)}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else None
        raise WrongUse(
            f"{path} is no inventory that is read here: its schema is {found!r}, and not "
            f"{SCHEMA!r}; {_again(path)}"
        )
    if data.get("walker") != WALKER:
        raise WrongUse(
            f"{path} was made by walker {data.get('walker')!r}, and this is walker {WALKER}: "
            f"{_again(path)}"
        )
    try:
        return _inventory(data)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        # A KeyError's text is the key alone.
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise WrongUse(f"{path} is damaged ({what}): {_again(path)}") from error


def differences(known: Inventory, found: Inventory) -> tuple[str, ...]:
    """Say what differs between two inventories of one vLLM: a line for each row, in their order."""
    before = {row.key: row for row in known.rows}
    after = {row.key: row for row in found.rows}
    lines = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        row = new or old
        assert row is not None
        where = f"{row.attribute} ({row.kind}) at {row.module}:{row.line}, {row.function}"
        if old is None:
            lines.append(f"added: {where}")
        elif new is None:
            lines.append(f"removed: {where}")
        elif old != new:
            lines.append(f"changed: {where}: {'; '.join(_changes(old, new))}")
    return tuple(lines)


def _changes(old: Row, new: Row) -> Iterator[str]:
    for field in fields(Row):
        before, after = getattr(old, field.name), getattr(new, field.name)
        if before != after:
            if field.name == "chain":
                yield "another chain"
            else:
                yield f"{field.name} {_shown(before)} -> {_shown(after)}"


def _shown(value: Any) -> str:
    if isinstance(value, Call):
        return f"({value.text})"
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)


class _Function:
    """A function of the text: how it is reached, and its rows."""

    def __init__(self) -> None:
        self.ways: dict[tuple[Any, ...], int] = {}
        self.rows: list[Row] = []

    def text(self, module: str, ways: dict[Row, int | None]) -> str:
        written = [_shorter(way, module) for way in self.ways]
        head: dict[str, Any] = {"ways": written} if written else {}
        if not self.rows:
            return _json(head)
        every = [_shared(row, ways[row]) for row in self.rows]
        common = {key: _most(values[key] for values in every) for key in _SHARED}
        head |= {key: value for key, value in common.items() if value != _DEFAULTS[key]}
        above = ((), *(row.guards for row in self.rows))
        lines = ",\n".join(
            _json(_written(row, ways[row], values, common, guards))
            for row, values, guards in zip(self.rows, every, above, strict=False)
        )
        start = _json(head)[:-1]
        return f'{start}{", " if head else ""}"rows": [\n{lines}\n]}}'


def _function(functions: dict[str, dict[str, _Function]], module: str, name: str) -> _Function:
    return functions.setdefault(module, {}).setdefault(name, _Function())


def _enter(functions: dict[str, dict[str, _Function]], row: Row) -> int | None:
    """Enter a row's chain; return the number of its function's way, None if it has none there."""
    steps = [_step(text) for text in row.chain]
    if not steps or None in steps or steps[-1] != (row.module, row.function, row.line):
        return None
    before: tuple[Any, ...] = ()
    number = 0
    for module, name, line in (step for step in steps if step is not None):
        ways = _function(functions, module, name).ways
        number = ways.setdefault(before, len(ways))
        before = (module, name, line, number)
    return number


def _step(text: str) -> tuple[str, str, int] | None:
    module, _, rest = text.partition(":")
    name, _, line = rest.rpartition(":")
    if not line.isdecimal() or f"{module}:{name}:{int(line)}" != text:
        return None
    return module, name, int(line)


def _shorter(way: tuple[Any, ...], module: str) -> list[Any]:
    if not way:
        return []
    where, name, line, number = way
    caller = name if where == module else f"{where}:{name}"
    return [caller, line, number] if number else [caller, line]


def _shared(row: Row, way: int | None) -> dict[str, Any]:
    return {
        "in": "".join(_LETTER[context] for context in row.contexts),
        "tier": row.tier,
        "gen": row.generation,
        "cpu": row.on_cpu,
        "why": None if row.reason == _REASONS[row.on_cpu] else row.reason,
        "by": row.upstream,
        "way": way or 0,
    }


def _most(values: Iterable[Any]) -> Any:
    ((value, _),) = Counter(values).most_common(1)
    return value


def _written(
    row: Row,
    way: int | None,
    values: dict[str, Any],
    common: dict[str, Any],
    above: tuple[str, ...],
) -> list[Any]:
    own = {key: value for key, value in values.items() if value != common[key]}
    if way is None:
        own.pop("way", None)
        own["chain"] = list(row.chain)
    if row.end_line != row.line:
        own["end"] = row.end_line
    if row.guards:
        pairs = zip(row.guards, above, strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        own["if"] = [*([shared] if shared else []), *row.guards[shared:]]
    usual = _usual_call(row.kind, row.attribute)
    if row.call is None:
        if usual is not None:
            own["args"] = None
    elif row.call != usual:
        own["args"] = list(row.call.positional)
        if usual is None or row.call.keywords != usual.keywords:
            own["kw"] = list(row.call.keywords)
    return [row.line, row.attribute, row.kind, own] if own else [row.line, row.attribute, row.kind]


def _usual_call(kind: str, attribute: str) -> Call | None:
    """The call of a row that says nothing of it."""
    if kind == "argument":
        return Call(keywords=(attribute,))
    return Call() if kind in ("call", "predicate") else None


def _inventory(data: dict[str, Any]) -> Inventory:
    vllm = _text(data["vllm"])
    letters = data["contexts"]
    if not set(letters.values()) <= set(CONTEXTS):
        raise ValueError("it names a context that there is not")
    ways = {
        (module, name): function.get("ways", [])
        for module, functions in data["modules"].items()
        for name, function in functions.items()
    }
    rows = []
    for module, functions in data["modules"].items():
        for name, function in functions.items():
            if not function.keys() <= {"ways", "rows", *_SHARED}:
                _unknown(function.keys() - {"ways", "rows", *_SHARED})
            common = {**_DEFAULTS, **{k: v for k, v in function.items() if k in _SHARED}}
            for number in range(len(function.get("ways", []))):
                _chain(ways, module, name, number)
            above: tuple[str, ...] = ()
            for item in function.get("rows", []):
                row = _row(module, name, common, item, letters, ways, above)
                rows.append(row)
                above = row.guards
    inventory = Inventory.of(vllm, rows)
    if len({row.key for row in rows}) != len(rows):
        raise ValueError("two of its rows are one")
    return inventory


def _row(
    module: str,
    function: str,
    common: dict[str, Any],
    item: list[Any],
    letters: dict[str, str],
    ways: dict[tuple[str, str], Any],
    above: tuple[str, ...],
) -> Row:
    line, attribute, kind = item[:3]
    own = item[3] if len(item) == 4 else {}
    if len(item) > 4 or not own.keys() <= _OWN:
        _unknown(own.keys() - _OWN)
    values = {**common, **own}
    _number(line)
    if "chain" in own:
        chain = _texts(own["chain"])
    else:
        chain = (
            *_chain(ways, module, function, _number(values["way"])),
            f"{module}:{function}:{line}",
        )
    cpu = _one(values["cpu"], get_args(OnCpu))
    return Row(
        attribute=_text(attribute),
        kind=_one(kind, get_args(Kind)),
        module=module,
        function=function,
        line=line,
        end_line=_number(own.get("end", line)),
        contexts=tuple(letters[letter] for letter in _text(values["in"])),
        tier=_one(values["tier"], get_args(Tier)),
        chain=chain,
        guards=_guards(own.get("if", []), above),
        generation=_one(values["gen"], (*GENERATIONS, "both")),
        on_cpu=cpu,
        reason=_REASONS[cpu] if values["why"] is None else _text(values["why"]),
        call=_call(own, _usual_call(kind, attribute)),
        upstream=_one(values["by"], ("rebound", "overridden", "none")),
    )


def _call(own: dict[str, Any], usual: Call | None) -> Call | None:
    if "args" not in own:
        return usual
    if own["args"] is None:
        return None
    keywords = _texts(own["kw"]) if "kw" in own else usual.keywords if usual is not None else ()
    return Call(_texts(own["args"]), keywords)


def _guards(values: Any, above: tuple[str, ...]) -> tuple[str, ...]:
    if isinstance(values, list) and values and isinstance(values[0], int):
        if _number(values[0]) > len(above):
            raise ValueError("it shares more guards with the row above than that has")
        return above[: values[0]] + _texts(values[1:])
    return _texts(values)


def _chain(
    ways: dict[tuple[str, str], Any], module: str, name: str, number: int
) -> tuple[str, ...]:
    """The steps to a function, without the one in itself."""
    steps: list[str] = []
    while way := ways[module, name][number]:
        caller, line = way[:2]
        number = _number(way[2]) if len(way) == 3 else 0
        if len(way) > 3 or len(steps) > _LONGEST_CHAIN:
            raise ValueError(f"{module}:{name} is reached from itself")
        where, colon, rest = _text(caller).partition(":")
        module, name = (where, rest) if colon else (module, where)
        steps.append(f"{module}:{name}:{_number(line)}")
    return tuple(reversed(steps))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is no list")
    return tuple(_text(value) for value in values)


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is no number of a line or a way")
    return value


def _one(value: Any, choices: tuple[str, ...]) -> Any:
    if value not in choices:
        raise ValueError(f"{value!r} is none of {', '.join(choices)}")
    return value


def _unknown(keys: Iterable[str]) -> NoReturn:
    raise ValueError(f"it has what is not known here: {', '.join(sorted(keys)) or 'a long row'}")


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _again(path: Path) -> str:
    where = "" if path.parent == INVENTORIES else f" {path.parent}"
    return f"write it anew with `vllm-conformance surface --source {path.stem} --write{where}`."


def _cache_key(tree: SourceTree) -> str:
    """Changes with the files of the tree, the walker's own code and what parses both."""
    hashed = hashlib.sha256(f"{tree.digest} {tree.version} {sys.version_info[:2]}".encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        hashed.update(file.name.encode() + hashlib.sha256(file.read_bytes()).digest())
    return hashed.hexdigest()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, part = tempfile.mkstemp(prefix=".part-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(part, 0o644)  # mkstemp's is for the owner only
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise
