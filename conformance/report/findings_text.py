"""What every rendering of findings says: headings, sums, places, who handles what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from conformance.drift.model import SEVERITIES, Drift, Finding, Site

NOUNS = {"error": "error", "warning": "warning", "note": "note"}


def heading(drift: Drift) -> str:
    """The two versions, and the torches that they pin."""
    old, new = drift.torch
    pins = f" (torch {old or 'unknown'} -> {new or 'unknown'})" if old or new else ""
    return f"vLLM {drift.old} -> {drift.new}{pins}"


def sums(drift: Drift) -> str:
    """How many findings of each severity there are, and what else there is to know."""
    parts = [many(drift.count(severity), NOUNS[severity]) for severity in SEVERITIES]
    if drift.suppressed:
        parts.append(f"{len(drift.suppressed)} suppressed")
    if drift.not_checked:
        parts.append(f"{len(drift.not_checked)} not checked")
    return ", ".join(parts)


def verdict(drift: Drift) -> str:
    """What the comparison comes to, as one sentence."""
    errors, warnings = drift.count("error"), drift.count("warning")
    whom = drift.runner or "vLLM's own CPU runner"
    if errors:
        return f"vLLM {drift.new} breaks {whom} in {many(errors, 'place')}, read each error."
    if warnings:
        return (
            f"Nothing is sure to break {whom}; {many(warnings, 'warning')} "
            f"{'needs' if warnings == 1 else 'need'} a look."
        )
    if drift.not_checked:
        return "Nothing was found, and not everything was checked."
    return f"Nothing in vLLM {drift.new} is new to a CPU and unhandled."


def by_rule(findings: Iterable[Finding]) -> str:
    """How many findings each rule has."""
    counts = Counter(finding.rule for finding in findings)
    return ", ".join(f"{count} {rule}" for rule, count in sorted(counts.items()))


def place(site: Site | None) -> str:
    """A site as ``path:line function``."""
    if site is None:
        return "-"
    return f"{site.path}:{site.line} {site.function}".rstrip()


def step(text: str) -> str:
    """A step of a chain as ``path:line function``."""
    module, _, rest = text.partition(":")
    function, _, line = rest.rpartition(":")
    return f"{module.replace('.', '/')}.py:{line} {function}"


def handled(finding: Finding, drift: Drift) -> tuple[tuple[str, str], ...]:
    """Who does what about a finding: label and sentence."""
    ours = "runner" if drift.runner else "ours"
    return (
        ("upstream", f"{finding.upstream.state}: {finding.upstream.text}"),
        (ours, f"{finding.ours.state}: {finding.ours.text}"),
    )


def many(count: int, noun: str) -> str:
    """A number and its noun."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
