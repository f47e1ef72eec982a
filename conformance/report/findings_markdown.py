"""Findings as Markdown: a page, or the summary of a step of a workflow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from conformance.drift.model import Drift, Finding, Site
from conformance.report.findings_text import handled, heading, many, place, step, sums, verdict

_MOST_SITES = 10
_MARKUP = re.compile(r"[\\|*<>\[\]]|(?<!\w)_|_(?!\w)")
"""Signs that mean something; an underscore within a word does not."""


def to_markdown(drift: Drift) -> str:
    """Return the page, which ends with a line feed."""
    return "\n".join(_page(drift)) + "\n"


def finding_lines(finding: Finding, drift: Drift) -> Iterator[str]:
    """The section of one finding, without its heading."""
    yield escaped(finding.message)
    yield ""
    yield from _sites("where", finding.sites)
    if finding.before and finding.after:
        was = f" (`{finding.before_attribute}`)" if finding.before_attribute else ""
        yield from _sites(f"before{was}", finding.before)
    if finding.contexts:
        yield f"- phases: {', '.join(finding.contexts)}; runner: {finding.generation}"
    if finding.host:
        yield f"- a host without an accelerator: {escaped(finding.host)}"
    for label, text in handled(finding, drift):
        yield f"- {label}: {escaped(text)}"
    yield f"- what to do: {escaped(finding.advice)}"
    if finding.site is not None and finding.site.chain:
        yield "- the way there:"
        yield ""
        yield from (f"  {n}. `{step(text)}`" for n, text in enumerate(finding.site.chain, 1))


def _page(drift: Drift) -> Iterator[str]:
    yield f"# {heading(drift)}"
    yield ""
    yield f"{sums(drift)}. {verdict(drift)}"
    yield from section(drift, "error", "Errors")
    yield from tables(drift)


def section(drift: Drift, severity: str, title: str) -> Iterator[str]:
    """Every finding of a severity, each with a heading of its own."""
    found = [finding for finding in drift.findings if finding.severity == severity]
    if not found:
        return
    yield from ("", f"## {title}")
    for finding in found:
        yield from ("", f"### {finding.rule}: `{finding.attribute}`", "")
        yield from finding_lines(finding, drift)


def tables(drift: Drift) -> Iterator[str]:
    """Warnings and notes as tables, what was not checked, what is suppressed."""
    for severity, title in (("warning", "Warnings"), ("note", "Notes")):
        found = [finding for finding in drift.findings if finding.severity == severity]
        if found:
            yield from ("", f"## {title}", "")
            yield from _table(found, drift)
    if drift.uncovered:
        yield from ("", f"## What `{drift.runner}` leaves alone", "")
        yield "| attribute | new | sites where no GPU is needed, surely | sites | because | first |"
        yield "| --- | --- | ---: | ---: | --- | --- |"
        for item in sorted(drift.uncovered, key=lambda u: (not u.new, -u.sure, u.attribute)):
            yield _row(
                f"`{item.attribute}`", "new" if item.new else "", str(item.sure),
                str(len(item.sites)), escaped(item.cover.state), f"`{place(item.sites[0])}`",
            )  # fmt: skip
    yield from _list("Not checked", drift.not_checked)
    yield from _list(
        "Suppressed",
        [
            f"{item.finding.rule} `{item.finding.attribute}` until {item.expires}: "
            f"{escaped(item.reason)}"
            for item in drift.suppressed
        ],
        raw=True,
    )
    yield from _list("About the suppressions", drift.warnings)


def escaped(text: str) -> str:
    """Text in which Markdown reads no markup but code between backquotes."""
    parts = text.split("`")
    # Within an odd pair of backquotes everything is code.
    for index in range(0, len(parts), 2):
        parts[index] = _MARKUP.sub(r"\\\g<0>", parts[index])
    return "`".join(parts)


def _table(findings: Iterable[Finding], drift: Drift) -> Iterator[str]:
    ours = "runner" if drift.runner else "ours"
    yield f"| rule | attribute | generation | what | upstream | {ours} | first site |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for finding in findings:
        yield _row(
            finding.rule,
            f"`{finding.attribute}`",
            finding.generation,
            cell(finding.message),
            finding.upstream.state,
            finding.ours.state,
            f"`{place(finding.site)}`",
        )


def cell(text: str) -> str:
    """Text for a cell of a table, where a bar ends the cell even in code."""
    return escaped(text.replace("|", "\\|")).replace("\\\\\\|", "\\|")


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace(chr(10), ' ') for cell in cells)} |"


def _sites(label: str, sites: tuple[Site, ...]) -> Iterator[str]:
    shown = ", ".join(f"`{place(site)}`" for site in sites[:_MOST_SITES])
    more = len(sites) - _MOST_SITES
    rest = f", and {many(more, 'site')} more" if more > 0 else ""
    yield f"- {label}: {shown}{rest}"


def _list(title: str, sentences: Iterable[str], *, raw: bool = False) -> Iterator[str]:
    found = list(sentences)
    if found:
        yield from ("", f"## {title}", "")
        yield from (f"- {text if raw else escaped(text)}" for text in found)
