"""Findings for a terminal: errors told in full, a line for each warning, notes as sums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.drift.model import Drift, Finding
from conformance.report.findings_text import (
    by_rule,
    handled,
    heading,
    many,
    place,
    step,
    sums,
    verdict,
)

_WIDTH = 1000  # columns; no line is that long, so none is folded
_MOST_SITES = 5


def to_table(drift: Drift) -> str:
    """Return the text, which ends with a line feed."""
    parts = [f"{heading(drift)}: {sums(drift)}"]
    errors = [finding for finding in drift.findings if finding.severity == "error"]
    warnings = [finding for finding in drift.findings if finding.severity == "warning"]
    notes = [finding for finding in drift.findings if finding.severity == "note"]
    parts += ["\n".join(_told(finding, drift)) for finding in errors]
    if warnings:
        parts.append(f"{many(len(warnings), 'warning')}\n{_lines(warnings, drift)}")
    fixed = [f for f in notes if f.rule in ("OVERRIDE", "PATCH_TARGET") and f.was_upstream]
    if fixed:
        title = f"{many(len(fixed), 'attribute')} that upstream came to handle"
        parts.append(f"{title}\n{_lines(fixed, drift)}")
    if notes:
        parts.append(f"notes: {by_rule(notes)}; --format markdown and json tell all of them.")
    if drift.uncovered:
        parts.append(_uncovered(drift))
    for title, sentences in (
        ("not checked", drift.not_checked),
        ("suppressed", [_suppressed(item.finding, item.reason) for item in drift.suppressed]),
        ("about the suppressions", drift.warnings),
    ):
        if sentences:
            parts.append("\n".join((title, *(f"  {sentence}" for sentence in sentences))))
    parts.append(verdict(drift))
    return "\n\n".join(parts) + "\n"


def _told(finding: Finding, drift: Drift) -> Iterator[str]:
    yield f"{finding.severity} {finding.rule}: {finding.attribute} ({finding.generation})"
    yield f"  {finding.message}"
    more = len(finding.sites) - _MOST_SITES
    yield from _listed("where", [place(site) for site in finding.sites[:_MOST_SITES]])
    if more > 0:
        yield f"{'':13}and {many(more, 'site')} more"
    if finding.before and finding.after:
        yield from _listed("before", [place(site) for site in finding.before[:_MOST_SITES]])
    if finding.contexts:
        yield f"  {'contexts':<11}{', '.join(finding.contexts)}"
    if finding.site is not None and finding.site.chain:
        yield from _listed("chain", [step(text) for text in finding.site.chain])
    for label, text in handled(finding, drift):
        yield f"  {label:<10} {text}"
    yield f"  {'do':<11}{finding.advice}"


def _listed(label: str, texts: list[str]) -> Iterator[str]:
    for index, text in enumerate(texts):
        yield f"  {label if not index else '':<11}{text}"


def _lines(findings: Iterable[Finding], drift: Drift) -> str:
    grid = Table(box=None, pad_edge=False, show_edge=False)
    ours = "runner" if drift.runner else "ours"
    for name in ("  rule", "attribute", "generation", "upstream", ours, "first site"):
        grid.add_column(name, no_wrap=True)
    for finding in findings:
        grid.add_row(
            Text(f"  {finding.rule}"),
            Text(finding.attribute),
            Text(finding.generation),
            Text(finding.upstream.state),
            Text(finding.ours.state),
            Text(place(finding.site)),
        )
    return _printed(grid)


def _uncovered(drift: Drift) -> str:
    grid = Table(box=None, pad_edge=False, show_edge=False)
    for name in ("  attribute", "new", "sure", "sites", "because", "first site"):
        grid.add_column(name, no_wrap=True)
    for item in sorted(drift.uncovered, key=lambda u: (not u.new, -u.sure, u.attribute)):
        grid.add_row(
            Text(f"  {item.attribute}"),
            Text("new" if item.new else ""),
            Text(str(item.sure or "-")),
            Text(str(len(item.sites))),
            Text(item.cover.state),
            Text(place(item.sites[0])),
        )
    title = (
        f"{many(len(drift.uncovered), 'attribute')} that vLLM {drift.new} reaches where no GPU is "
        f"needed, and that {drift.runner} leaves alone"
    )
    return f"{title}\n{_printed(grid)}"


def _printed(grid: Table) -> str:
    console = Console(width=_WIDTH, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(grid)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _suppressed(finding: Finding, reason: str) -> str:
    return f"{finding.rule} {finding.attribute} at {place(finding.site)}: {reason}"
