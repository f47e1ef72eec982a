"""Findings as JSON, with a schema's name."""

from __future__ import annotations

import json

from conformance.drift.model import Drift


def to_json(drift: Drift) -> str:
    """Return the text; a finding on a line."""
    data = drift.to_json()
    findings = data.pop("findings")
    head = json.dumps(data)
    lines = ",\n".join(json.dumps(finding) for finding in findings)
    return f'{head[:-1]}, "findings": [\n{lines}\n]}}\n'
