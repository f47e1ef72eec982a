"""Findings as annotations of a GitHub workflow; the step's summary is the Markdown page.

GitHub shows ten annotations of a level for a step, so the rest is told as a number.
"""

from __future__ import annotations

from conformance.drift.model import Drift, Finding, Severity
from conformance.report.findings_text import heading, many, sums

_MOST = 10
_COMMANDS: tuple[tuple[Severity, str], ...] = (("error", "error"), ("warning", "warning"))


def to_github(drift: Drift) -> str:
    """Return workflow commands, one on a line; notes have none."""
    lines = []
    for severity, command in _COMMANDS:
        found = [finding for finding in drift.findings if finding.severity == severity]
        room = _MOST if len(found) <= _MOST else _MOST - 1
        lines += [_annotation(command, finding) for finding in found[:room]]
        if len(found) > room:
            rest = many(len(found) - room, severity)
            lines.append(f"::{command}::{_text(f'{rest} more: see the summary of the step.')}")
    for text in (*drift.not_checked, *drift.warnings):
        lines.append(f"::notice title=not checked::{_text(text)}")
    lines.append(f"{heading(drift)}: {sums(drift)}")
    return "\n".join(lines) + "\n"


def _annotation(command: str, finding: Finding) -> str:
    title = f"{finding.rule} {finding.attribute}"
    properties = [f"title={_property(title)}"]
    if finding.site is not None and finding.site.path:
        properties.append(f"file={_property(finding.site.path)}")
        properties.append(f"line={max(1, finding.site.line)}")
    return f"::{command} {','.join(properties)}::{_text(f'{finding.message} {finding.advice}')}"


def _text(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _text(text).replace(":", "%3A").replace(",", "%2C")
