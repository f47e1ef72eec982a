"""The table at the end, for people."""

from __future__ import annotations

from collections import Counter

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from conformance.report.model import Report, Row, State

_MARKS = {
    State.OK: ("ok", "green"),
    State.RED: ("RED", "bold red"),
    State.EXPECTED_RED: ("red", "yellow"),
    State.NOT_CHECKED: ("-", "dim"),
    State.NOT_APPLICABLE: ("n/a", "dim"),
}
_WORST_FIRST = (
    State.RED,
    State.EXPECTED_RED,
    State.NOT_CHECKED,
    State.OK,
    State.NOT_APPLICABLE,
)
_LEGEND = (
    "ok: holds.  RED: a finding.  red: fails, and is known to (bare: torch unpatched; upstream: "
    "see fixtures/expectations).  -: not checked, as its run did not complete.  "
    "n/a: does not apply.  With numbers: so many of the rows, of so many."
)


def table(report: Report) -> RenderableType:
    """Return the table of checks and subjects, its sums, the contract's contexts and a legend."""
    grid = Table(box=None, pad_edge=False, show_edge=False)
    grid.add_column("check", overflow="fold")
    grid.add_column("held against", style="dim")
    for subject in report.subjects:
        grid.add_column(subject, justify="right")
    area = None
    for rows in _lines(report):
        if rows[0].area != area:
            area = rows[0].area
            grid.add_row(Text(area, style="bold"))
        label = rows[0].group or rows[0].claim
        cells = [_mark(rows, subject) for subject in report.subjects]
        grid.add_row(f"  {label}", rows[0].reference, *cells)
    grid.add_row()
    for state in State:
        label = "red" if state is State.EXPECTED_RED else _MARKS[state][0]
        counts = [str(report.count(subject, state)) for subject in report.subjects]
        grid.add_row(Text(f"sum of {label}", style="bold"), "", *counts)
    parts: list[RenderableType] = [Text(heading(report)), Text(), grid]
    if any(row.context for row in report.rows.values()):
        parts += [Text(), _contexts(report)]
    return Group(*parts, Text(_LEGEND, style="dim"))


def _lines(report: Report) -> list[list[Row]]:
    """The rows, those of one group together."""
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(report.rows.values(), key=lambda row: (row.area, row.group, row.claim)):
        lines.setdefault((row.area, row.group or f" {row.check}"), []).append(row)
    return list(lines.values())


def _contexts(report: Report) -> Table:
    """How many rows the contract has, by tier and context."""
    rows = [row for row in report.rows.values() if row.context]
    areas = sorted({row.area for row in rows})
    grid = Table(box=None, pad_edge=False, show_edge=False)
    grid.add_column("rows of the contract, by context")
    for area in [*areas, "all"]:
        grid.add_column(area.removeprefix("contract, "), justify="right")
    by_context: dict[str, Counter[str]] = {}
    for row in rows:
        by_context.setdefault(row.context, Counter())[row.area] += 1
    for context, counts in [*sorted(by_context.items()), ("all", Counter(r.area for r in rows))]:
        numbers = [counts[area] for area in areas]
        grid.add_row(f"  {context}", *map(str, [*numbers, sum(numbers)]))
    return grid


def heading(report: Report) -> str:
    """Return what the results depend on, in two lines."""
    versions = ", ".join(f"{k} {v or 'absent'}" for k, v in report.versions.items())
    environment = ", ".join(f"{k} {v}" for k, v in report.environment.items())
    return f"runner V1; {versions}\n{environment}"


def verdict(report: Report, *, failed: bool) -> str:
    """Return the outcome as one sentence; ``failed`` is what the session came to."""
    names = ", ".join(report.subjects)
    if not report.rows:
        return "No check was run."
    found = len(report.findings)
    if found:
        return f"{found} finding{'s' if found > 1 else ''}: see RED above, each is explained there."
    if failed:
        return "No check is RED, and yet the session failed: see the error above."
    return f"No findings: {len(report.rows)} checks for {names}."


def render(report: Report, width: int = 120) -> str:
    """Return the table as text."""
    console = Console(width=width, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(table(report))
    return capture.get()


def _mark(rows: list[Row], subject: str) -> Text:
    """One row's state; of several the worst, with how many of how many."""
    states = Counter(row.cells[subject].state for row in rows if subject in row.cells)
    if not states:
        return Text("")
    worst = next(state for state in _WORST_FIRST if states[state])
    text, style = _MARKS[worst]
    if not rows[0].group:
        return Text(text, style=style)
    of = f"/{states.total()}" if states[worst] < states.total() else ""
    return Text(f"{text} {states[worst]}{of}", style=style)
