"""Every rendering of one list of findings: what it holds, and that it is valid where it can be.

SARIF is held against its official schema (2.1.0-rtm.4, as the sdist of sarif-om 1.0.4 carries it),
JUnit against an XML parser, GitHub's commands against a reader of their documented escapes.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from conformance.drift.model import SCHEMA, Drift, Finding, Site, Suppressed, Uncovered
from conformance.drift.rules import BY_ID, RULES
from conformance.drift.side import Cover
from conformance.report.drift import RENDERERS, render
from conformance.report.findings_markdown import cell, escaped

SARIF = Path(__file__).with_name("data") / "sarif-2.1.0-rtm.4.json"
SITE = Site(
    "vllm/v1/worker/gpu_model_runner.py",
    5915,
    "GPUModelRunner._cleanup_profiling_kv_cache",
    ("shutdown",),
    (
        "vllm.v1.worker.gpu_worker:Worker.shutdown:1021",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._cleanup_profiling_kv_cache:5915",
    ),
    "true",
    "direct",
    "no condition on the way excludes a CPU",
    "",
)
ERROR = Finding(
    rule="CONTEXT",
    severity="error",
    attribute="torch.accelerator.synchronize",
    message="torch.accelerator.synchronize is reached in shutdown: 100%,\n<b> | `x|y` raises.",
    advice="Upstream: bind it.",
    before=(replace(SITE, line=5835),),
    after=(SITE, replace(SITE, line=6000)),
    contexts=("shutdown",),
    host="it raises RuntimeError",
    upstream=Cover("none", "it does nothing about it"),
    ours=Cover("rebound", "it binds it"),
)
WARNING = replace(
    ERROR, rule="KERNEL_ADDED", severity="warning", attribute="triton:_a_kernel", before=()
)
NOTE = replace(ERROR, rule="REMOVED", severity="note", attribute="pin_memory=True", after=())
PLACELESS = replace(ERROR, rule="PATCH_TARGET", before=(), after=(), attribute="vllm.x.y")
DRIFT = Drift.of(
    "0.19.1",
    "0.20.0",
    [NOTE, WARNING, ERROR, PLACELESS],
    torch=("2.10.0", None),
    rules=RULES,
    not_checked=("TORCH: torch 2.10.0 is not measured.",),
    suppressed=(Suppressed(replace(ERROR, rule="ADDED"), "nobody asks for it", "2027-01-01"),),
    warnings=("A suppression matches nothing.",),
    uncovered=(Uncovered("torch.cuda.Stream", Cover("none", "nothing"), (SITE,), 1, True),),
    runner="other.module:Runner",
)
EMPTY = Drift.of("0.20.1", "0.20.2", [], torch=("2.11.0", "2.11.0"), rules=RULES)


@pytest.mark.parametrize("form", list(RENDERERS))
@pytest.mark.parametrize("drift", [DRIFT, EMPTY], ids=["full", "empty"])
def test_every_form_names_both_versions_and_ends_its_last_line(form: str, drift: Drift) -> None:
    text = render(drift, form, "error")
    assert drift.old in text and drift.new in text
    assert text.endswith("\n")


@pytest.mark.parametrize("form", list(RENDERERS))
def test_every_form_says_what_was_not_checked(form: str) -> None:
    assert "torch 2.10.0 is not measured" in render(DRIFT, form, "error")


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_people_read_the_way_to_an_error_and_what_to_do(form: str) -> None:
    text = render(DRIFT, form, "error")
    assert "vllm/v1/worker/gpu_worker.py:1021 Worker.shutdown" in text
    assert "Upstream: bind it." in text
    assert "nobody asks for it" in text
    assert "other.module:Runner" in text


def test_the_table_has_no_trailing_blanks() -> None:
    assert not re.search(r" +$", render(DRIFT, "table", "error"), re.MULTILINE)


def test_json_has_its_schema_and_every_member_of_a_finding() -> None:
    data = json.loads(render(DRIFT, "json", "error"))
    assert data["schema"] == SCHEMA
    assert data["counts"] == {"error": 2, "warning": 1, "note": 1}
    finding = data["findings"][0]
    wanted = {"rule", "severity", "attribute", "before", "after", "sites", "handled", "advice"}
    assert wanted | {"message", "host", "id"} <= set(finding)
    assert finding["sites"][0] == "vllm/v1/worker/gpu_model_runner.py:5915"
    assert finding["handled"]["upstream"] == {
        "by": "none",
        "handled": False,
        "text": "it does nothing about it",
    }
    assert finding["handled"]["ours"]["handled"] is True


def test_the_id_of_a_finding_does_not_change_with_lines() -> None:
    assert replace(ERROR, after=(replace(SITE, line=1),)).id == ERROR.id
    assert replace(ERROR, rule="ADDED").id != ERROR.id


@pytest.mark.parametrize("drift", [DRIFT, EMPTY], ids=["full", "empty"])
def test_sarif_is_valid_by_its_schema(drift: Drift) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the schema is checked with jsonschema")
    log = json.loads(render(drift, "sarif", "error"))
    validator = jsonschema.Draft4Validator(json.loads(SARIF.read_text()))
    assert [error.message for error in validator.iter_errors(log)] == []


def test_sarif_has_a_result_for_each_finding_with_its_rule_its_place_and_the_way_there() -> None:
    run = json.loads(render(DRIFT, "sarif", "error"))["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(BY_ID)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    first = next(r for r in run["results"] if r["ruleId"] == "CONTEXT")
    region = first["locations"][0]["physicalLocation"]["region"]
    assert (first["level"], region["startLine"]) == ("error", 5915)
    assert len(first["codeFlows"][0]["threadFlows"][0]["locations"]) == 2
    assert [r["ruleId"] for r in run["results"] if r.get("suppressions")] == ["ADDED"]


def test_github_gets_one_command_on_a_line_and_reads_the_message_back() -> None:
    lines = render(DRIFT, "github", "error").splitlines()
    errors = [line for line in lines if line.startswith("::error ")]
    assert len(errors) == DRIFT.count("error")
    head, _, text = errors[0].removeprefix("::error ").partition("::")
    properties = dict(item.split("=", 1) for item in head.split(","))
    assert unquote(text) == f"{ERROR.message} {ERROR.advice}"
    assert properties["line"] == "5915"
    assert unquote(properties["title"]) == "CONTEXT torch.accelerator.synchronize"


def test_github_is_told_how_many_annotations_it_would_not_show() -> None:
    many = [replace(ERROR, attribute=f"torch.cuda.name{number}") for number in range(14)]
    text = render(Drift.of("1", "2", many, torch=(None, None), rules=RULES), "github", "error")
    lines = [line for line in text.splitlines() if line.startswith("::error")]
    assert len(lines) == 10
    assert "5 errors more" in lines[-1]


@pytest.mark.parametrize(("fail_on", "failures"), [("error", 2), ("warning", 3), ("never", 0)])
def test_junit_fails_what_is_as_bad_as_is_asked(fail_on: str, failures: int) -> None:
    suite = ElementTree.fromstring(render(DRIFT, "junit", fail_on)).find("testsuite")
    assert suite is not None
    assert len(suite.findall("testcase/failure")) == failures == int(suite.attrib["failures"])
    assert int(suite.attrib["tests"]) == len(suite.findall("testcase"))
    assert int(suite.attrib["skipped"]) == len(suite.findall("testcase/skipped")) == 2


def test_junit_has_a_case_for_each_rule_that_found_nothing() -> None:
    suite = ElementTree.fromstring(render(EMPTY, "junit", "error")).find("testsuite")
    assert suite is not None
    assert {case.attrib["classname"] for case in suite} == {f"drift.{rule}" for rule in BY_ID}


def test_junit_drops_what_xml_cannot_hold() -> None:
    odd = replace(ERROR, message="a \x00 b \x1b[0m")
    drift = Drift.of("1", "2", [odd], torch=(None, None), rules=RULES)
    assert ElementTree.fromstring(render(drift, "junit", "error")) is not None


def test_markdown_reads_no_markup_in_what_it_is_given() -> None:
    assert escaped("a_b *c* `d*e` <f>") == r"a_b \*c\* `d*e` \<f\>"
    assert escaped("_leading and trailing_") == r"\_leading and trailing\_"


def test_a_bar_ends_no_cell_of_a_table() -> None:
    for text in ("a | b", "`a | b`"):
        assert re.search(r"(?<!\\)\|", cell(text)) is None
    table = [
        line for line in render(DRIFT, "markdown", "error").splitlines() if "| KERNEL_" in line
    ]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in table] == [8]
