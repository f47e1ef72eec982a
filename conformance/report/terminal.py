"""The table at the end, for people."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from conformance.report.model import Cell, Report, State

_MARKS = {
    State.OK: ("ok", "green"),
    State.RED: ("RED", "bold red"),
    State.EXPECTED_RED: ("red", "yellow"),
    State.NOT_CHECKED: ("-", "dim"),
    State.NOT_APPLICABLE: ("n/a", "dim"),
}
_LEGEND = (
    "ok: holds.  RED: a finding.  red: fails, and is known to (bare: torch unpatched; upstream: "
    "see fixtures/expectations).  -: not checked, as its run did not complete.  "
    "n/a: does not apply."
)


def table(report: Report) -> RenderableType:
    """Return the table of checks and subjects, its sums and its legend."""
    grid = Table(box=None, pad_edge=False, show_edge=False)
    grid.add_column("check", overflow="fold")
    grid.add_column("held against", style="dim")
    for subject in report.subjects:
        grid.add_column(subject, justify="right")
    area = None
    for row in sorted(report.rows.values(), key=lambda row: (row.area, row.claim)):
        if row.area != area:
            area = row.area
            grid.add_row(Text(area, style="bold"))
        cells = [_mark(row.cells.get(subject)) for subject in report.subjects]
        grid.add_row(f"  {row.claim}", row.reference, *cells)
    grid.add_row()
    for state in State:
        label = "red" if state is State.EXPECTED_RED else _MARKS[state][0]
        counts = [str(report.count(subject, state)) for subject in report.subjects]
        grid.add_row(Text(f"sum of {label}", style="bold"), "", *counts)
    return Group(Text(heading(report)), Text(), grid, Text(_LEGEND, style="dim"))


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


def _mark(cell: Cell | None) -> Text:
    if cell is None:
        return Text("")
    text, style = _MARKS[cell.state]
    return Text(text, style=style)
