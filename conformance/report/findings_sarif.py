"""Findings as SARIF 2.1.0, for code scanning."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from conformance import __version__
from conformance.drift.model import Drift, Finding, Rule, Site, Suppressed
from conformance.drift.side import split_step

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_BASE = "VLLM"
"""What paths are relative to: the root of the new vLLM's source."""


def to_sarif(drift: Drift) -> str:
    """Return the log's text."""
    index = {rule.id: number for number, rule in enumerate(drift.rules)}
    results = [_result(finding, index, drift) for finding in drift.findings]
    results += [_left_out(item, index, drift) for item in drift.suppressed]
    run = {
        "tool": {
            "driver": {
                "name": "vllm-conformance drift",
                "version": __version__,
                "rules": [_rule(rule) for rule in drift.rules],
            }
        },
        "automationDetails": {"id": f"vllm-drift/{drift.old}..{drift.new}/"},
        "originalUriBaseIds": {
            _BASE: {"description": {"text": f"The root of the source of vLLM {drift.new}."}}
        },
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    {"level": "warning", "message": {"text": text}}
                    for text in (*drift.not_checked, *drift.warnings)
                ],
            }
        ],
        "results": results,
        "properties": {"old": drift.old, "new": drift.new},
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=1) + "\n"


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.id,
        "name": "".join(part.title() for part in rule.id.split("_")),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.explanation},
        "help": {"text": rule.explanation},
        "helpUri": rule.reference,
        "defaultConfiguration": {"level": rule.severity},
    }


def _result(finding: Finding, index: dict[str, int], drift: Drift) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": finding.severity,
        "message": {"text": f"{finding.message} {finding.advice}"},
        "locations": [_location(site) for site in finding.sites[:1]],
        "partialFingerprints": {"drift/v1": hashlib.sha256(finding.id.encode()).hexdigest()},
        "properties": {
            "attribute": finding.attribute,
            "generation": finding.generation,
            "contexts": list(finding.contexts),
            "host": finding.host,
            "upstream": finding.upstream.state,
            "ours" if not drift.runner else drift.runner: finding.ours.state,
        },
    }
    if finding.rule in index:
        result["ruleIndex"] = index[finding.rule]
    related = [(site, "another site") for site in finding.sites[1:]]
    if finding.after:
        related += [(site, f"before, in vLLM {drift.old}") for site in finding.before]
    if related:
        result["relatedLocations"] = [
            {**_location(site), "id": number, "message": {"text": text}}
            for number, (site, text) in enumerate(related, 1)
        ]
    if finding.site is not None and finding.site.chain:
        result["codeFlows"] = [_flow(finding.site)]
    return result


def _left_out(item: Suppressed, index: dict[str, int], drift: Drift) -> dict[str, Any]:
    result = _result(item.finding, index, drift)
    justification = f"{item.reason} (until {item.expires})"
    result["suppressions"] = [{"kind": "external", "justification": justification}]
    return result


def _location(site: Site) -> dict[str, Any]:
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": {"uri": site.path, "uriBaseId": _BASE},
            "region": {"startLine": max(1, site.line)},
        }
    }
    if site.function:
        location["logicalLocations"] = [{"fullyQualifiedName": site.function, "kind": "function"}]
    return location


def _flow(site: Site) -> dict[str, Any]:
    steps = []
    for text in site.chain:
        module, function, line = split_step(text)
        path = f"{module.replace('.', '/')}.py"
        steps.append({"location": _location(Site(path, line, function))})
    return {
        "message": {"text": "The way from the runner's entry point."},
        "threadFlows": [{"locations": steps}],
    }
