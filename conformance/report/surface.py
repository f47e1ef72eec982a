"""The surface, as people ask for it: selected, as a table, as JSON, and explained site by site."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.surface.model import CONTEXTS, SCHEMA, Row
from conformance.target import WrongUse

_ON_CPU = {"true": "on the CPU path", "unknown": "unknown", "false": "on a GPU only"}
_GENERATIONS = {"both": "both runners", "v1": "v1 only", "v2": "v2 only"}
_TIERS = {"direct": "direct", "resolved": "resolved", "by-name": "by name"}
_UPSTREAM = {
    "rebound": "assigns the attribute (rebound)",
    "overridden": "replaces a method of this chain (overridden)",
    "none": "nothing about it",
}
_NO_USE = ("predicate", "annotation", "import")
"""Kinds that ask nothing of a device: there is nothing to be done about them."""
_WIDTH = 1000  # columns; no line is that long, so none is folded


@dataclass(frozen=True, slots=True)
class Shown:
    """Rows to be rendered: those of ``source`` (a label) that the options left."""

    vllm: str
    source: str
    rows: tuple[Row, ...]
    option: str = ""
    """What names the source on the command line, for the next command; empty for the default."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows are asked for; what is empty asks for nothing in particular.

    A row is in it if it is what each of these asks for, and one of its contexts is one of these.
    """

    generation: str = "all"
    contexts: tuple[str, ...] = ()
    attribute: str | None = None
    """A glob."""
    on_cpu: tuple[str, ...] = ()
    tiers: tuple[str, ...] = ()

    def of(self, rows: Iterable[Row]) -> tuple[Row, ...]:
        """The rows that are in it, in their order."""
        return tuple(row for row in rows if self._holds(row))

    def _holds(self, row: Row) -> bool:
        return (
            (self.generation == "all" or row.generation in (self.generation, "both"))
            and (not self.contexts or not set(self.contexts).isdisjoint(row.contexts))
            and (self.attribute is None or fnmatchcase(row.attribute, self.attribute))
            and (not self.on_cpu or row.on_cpu in self.on_cpu)
            and (not self.tiers or row.tier in self.tiers)
        )


def named(rows: Sequence[Row], name: str) -> tuple[Row, ...]:
    """Return the rows of an attribute: by its name, else the end of it, else a glob.

    Raises:
        WrongUse: there are none; the sentence has the names that come nearest.
    """
    tests: tuple[Callable[[str], bool], ...] = (
        lambda attribute: attribute == name,
        lambda attribute: attribute.endswith((f".{name}", f":{name}")),
        lambda attribute: fnmatchcase(attribute, name),
    )
    for test in tests:
        found = tuple(row for row in rows if test(row.attribute))
        if found:
            return found
    near = _nearest(name, {row.attribute for row in rows})
    hint = f"the nearest are {', '.join(near)}" if near else "without --explain all are listed"
    raise WrongUse(f"No runner reaches {name!r}, as far as the options go: {hint}.")


def _nearest(name: str, attributes: set[str]) -> list[str]:
    by_end: dict[str, list[str]] = {}
    for attribute in sorted(attributes):
        by_end.setdefault(_end(attribute), []).append(attribute)
    near = difflib.get_close_matches(name, sorted(attributes), n=3)
    for end in difflib.get_close_matches(_end(name), list(by_end), n=3):
        near += by_end[end]
    return list(dict.fromkeys(near))[:5]


def _end(attribute: str) -> str:
    return attribute.replace(":", ".").rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Line:
    """All sites of one attribute, counted."""

    attribute: str
    rows: tuple[Row, ...]

    def count(self, on_cpu: str) -> int:
        """How many sites are so."""
        return sum(row.on_cpu == on_cpu for row in self.rows)

    @property
    def open(self) -> int:
        """Uses on the CPU path that vLLM's own CPU runner does nothing about."""
        return sum(_is_open(row) for row in self.rows)

    @property
    def first(self) -> Row:
        """The site to look at first."""
        order = tuple(_ON_CPU)
        return min(self.rows, key=lambda r: (not _is_open(r), order.index(r.on_cpu), r.key))

    @property
    def contexts(self) -> str:
        """The phases in which it is reached; ``init..execute`` for three or more in a row."""
        found = {context for row in self.rows for context in row.contexts}
        if len(found) == len(CONTEXTS):
            return "all"
        runs: list[list[str]] = [[]]
        for context in CONTEXTS:
            if context in found:
                runs[-1].append(context)
            elif runs[-1]:
                runs.append([])
        texts = (f"{run[0]}..{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs if run)
        return ", ".join(texts)

    @property
    def generation(self) -> str:
        """The runner generations that reach it."""
        found = {row.generation for row in self.rows}
        return found.pop() if len(found) == 1 else "both"

    @property
    def upstream(self) -> str:
        """What vLLM's own CPU runner does, at one site or another."""
        found = {row.upstream for row in self.rows}
        return ", ".join(name for name in _UPSTREAM if name in found)

    @property
    def order(self) -> tuple[object, ...]:
        """What lines are sorted by: what is open, then what may be, then the rest."""
        uses = [row for row in self.rows if _is_use(row)]
        perhaps = sum(row.on_cpu == "unknown" and row.upstream == "none" for row in uses)
        on_cpu = sum(row.on_cpu == "true" for row in uses)
        first = 0 if self.open else 1 if perhaps else 2 if on_cpu else 3 if uses else 4
        return (first, -self.open, -perhaps, -on_cpu, -len(self.rows), self.attribute)


def lines(rows: Iterable[Row]) -> list[Line]:
    """Rows by attribute; what is reached on the CPU and handled by nobody comes first."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.attribute, []).append(row)
    return sorted(
        (Line(attribute, tuple(group)) for attribute, group in groups.items()),
        key=lambda line: line.order,
    )


def to_json(shown: Shown) -> str:
    """JSON with a schema; a site on a line."""
    head = json.dumps({"schema": SCHEMA, "vllm": shown.vllm, "source": shown.source})
    sites = ",\n".join(json.dumps(row.to_json()) for row in shown.rows)
    return f'{head[:-1]}, "sites": [\n{sites}\n]}}\n'


def to_table(shown: Shown) -> str:
    """Sums, a line for each attribute, however long, and what to do next."""
    found = lines(shown.rows)
    if not found:
        return f"No site of vLLM {shown.vllm} ({shown.source}) is what the options ask for.\n"
    grid = Table(box=None, pad_edge=False, show_edge=False)
    grid.add_column("attribute", no_wrap=True)
    for name in ("CPU", "unknown", "GPU only"):
        grid.add_column(name, justify="right", no_wrap=True)
    for name in ("contexts", "runner", "upstream", "first site"):
        grid.add_column(name, no_wrap=True)
    for line in found:
        grid.add_row(
            Text(line.attribute),
            *(Text(str(line.count(name) or "-")) for name in _ON_CPU),
            Text(line.contexts),
            Text(line.generation),
            Text(line.upstream),
            Text(f"{line.first.module}:{line.first.line}"),
        )
    console = Console(width=_WIDTH, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(grid)
    table = "\n".join(text.rstrip() for text in capture.get().splitlines())
    return f"{summary(shown)}\n\n{table}\n\n{_next(shown, found)}\n"


def summary(shown: Shown) -> str:
    """Say how many sites there are, of what kinds; four lines."""
    attributes = len({row.attribute for row in shown.rows})
    return "\n".join(
        (
            f"vLLM {shown.vllm} ({shown.source}): {_many(len(shown.rows), 'site')} of "
            f"{_many(attributes, 'attribute')}",
            _sums("runner", (row.generation for row in shown.rows), _GENERATIONS),
            _sums("CPU", (row.on_cpu for row in shown.rows), _ON_CPU),
            _sums("tier", (row.tier for row in shown.rows), _TIERS),
        )
    )


def to_explanation(shown: Shown, path_of: Callable[[str], str]) -> str:
    """Every site, with all that is known of it; ``path_of`` gives a module's file."""
    head = f"{_many(len(shown.rows), 'site')} in vLLM {shown.vllm} ({shown.source})"
    return "\n\n".join((head, *("\n".join(_explained(row, path_of)) for row in shown.rows))) + "\n"


def _explained(row: Row, path_of: Callable[[str], str]) -> list[str]:
    until = f"-{row.end_line}" if row.end_line != row.line else ""
    call = "none" if row.call is None else f"({row.call.text})"
    return [
        row.attribute,
        f"  where      {path_of(row.module)}:{row.line}{until} in {row.function}",
        f"  kind       {row.kind}",
        f"  arguments  {call}",
        f"  contexts   {', '.join(row.contexts) or 'none'}",
        f"  runner     {_GENERATIONS[row.generation]}",
        f"  guards     {_block(row.guards)}",
        f"  CPU        {_ON_CPU[row.on_cpu]}: {row.reason}",
        f"  upstream   {_UPSTREAM[row.upstream]}",
        f"  chain      {_TIERS[row.tier]}",
        *(f"    {_step(text, path_of)}" for text in row.chain),
    ]


def _step(text: str, path_of: Callable[[str], str]) -> str:
    module, _, rest = text.partition(":")
    function, _, line = rest.rpartition(":")
    return f"{path_of(module)}:{line} {function}"


def _block(texts: Sequence[str]) -> str:
    return f"\n{' ' * 13}".join(texts) if texts else "none"


def _next(shown: Shown, found: list[Line]) -> str:
    source = f" --source {shown.option}" if shown.option else ""
    explain = f"vllm-conformance surface{source} --explain {_quoted(found[0].attribute)}"
    count = sum(line.open > 0 for line in found)
    what = (
        f"{_many(count, 'attribute')} at the top {'is' if count == 1 else 'are'} used on the CPU "
        "path and handled by nobody"
        if count
        else "Nothing here is used on the CPU path that vLLM's own CPU runner leaves alone"
    )
    return f"{what}; `{explain}` shows where, and how a runner gets there."


def _quoted(attribute: str) -> str:
    return f'"{attribute}"' if "'" in attribute else attribute


def _is_use(row: Row) -> bool:
    return row.kind not in _NO_USE and not row.attribute.startswith("platform.")


def _is_open(row: Row) -> bool:
    return row.on_cpu == "true" and row.upstream == "none" and _is_use(row)


def _sums(label: str, values: Iterable[str], names: dict[str, str]) -> str:
    counts = Counter(values)
    return f"  {label}: " + ", ".join(
        f"{counts[value]:,} {name}" for value, name in names.items() if counts[value]
    )


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
