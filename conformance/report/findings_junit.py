"""Findings as JUnit XML: a case for each finding, and for each rule that found nothing."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from conformance.drift.model import SEVERITIES, Drift, Finding
from conformance.report.findings_text import handled, heading, place, step

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def to_junit(drift: Drift, fail_on: str = "error") -> str:
    """Return the report; findings that are as bad as ``fail_on`` are failures, the rest passes."""
    limit = 0 if fail_on == "never" else SEVERITIES.index(fail_on) + 1
    failing = set(SEVERITIES[:limit])
    suite = ElementTree.Element("testsuite", name=_clean(f"drift {heading(drift)}"))
    failures = 0
    for finding in drift.findings:
        case = _case(suite, finding.rule, f"{finding.attribute} at {place(finding.site)}")
        if finding.severity in failing:
            failures += 1
            failure = ElementTree.SubElement(
                case, "failure", type=finding.severity, message=_clean(finding.message)
            )
            failure.text = _clean(_detail(finding, drift))
        else:
            output = ElementTree.SubElement(case, "system-out")
            output.text = _clean(f"{finding.severity}: {_detail(finding, drift)}")
    found = {finding.rule for finding in drift.findings}
    for rule in drift.rules:
        if rule.id not in found:
            _case(suite, rule.id, f"{rule.title}: nothing")
    skipped = 0
    for item in drift.suppressed:
        skipped += 1
        name = f"{item.finding.attribute} at {place(item.finding.site)}"
        _skip(_case(suite, item.finding.rule, name), f"suppressed: {item.reason}")
    for text in drift.not_checked:
        skipped += 1
        _skip(_case(suite, "not checked", text.partition(":")[0]), text)
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(failures))
    suite.set("errors", "0")
    suite.set("skipped", str(skipped))
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=False) + "\n"


def _case(suite: ElementTree.Element, rule: str, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(
        suite, "testcase", classname=_clean(f"drift.{rule}"), name=_clean(name), time="0"
    )


def _skip(case: ElementTree.Element, message: str) -> None:
    ElementTree.SubElement(case, "skipped", message=_clean(message))


def _detail(finding: Finding, drift: Drift) -> str:
    lines = [finding.message, *(f"at {place(site)}" for site in finding.sites)]
    if finding.site is not None:
        lines += [f"by {step(text)}" for text in finding.site.chain]
    lines += [f"{label}: {text}" for label, text in handled(finding, drift)]
    return "\n".join((*lines, finding.advice))


def _clean(text: str) -> str:
    return _NOT_IN_XML.sub("?", text)
