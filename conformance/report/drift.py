"""A comparison of two vLLMs, in every form that it is asked for in."""

from __future__ import annotations

from collections.abc import Callable

from conformance.drift.model import Drift
from conformance.report.findings_github import to_github
from conformance.report.findings_json import to_json
from conformance.report.findings_junit import to_junit
from conformance.report.findings_markdown import to_markdown
from conformance.report.findings_sarif import to_sarif
from conformance.report.findings_table import to_table

RENDERERS: dict[str, Callable[[Drift], str]] = {
    "table": to_table,
    "markdown": to_markdown,
    "json": to_json,
    "sarif": to_sarif,
    "github": to_github,
    "junit": to_junit,
}


def render(drift: Drift, form: str, fail_on: str) -> str:
    """Return the text; only JUnit has to know what counts as a failure."""
    return to_junit(drift, fail_on) if form == "junit" else RENDERERS[form](drift)
