"""The pytest plugin: subjects as parameters, shared runs, expectations, and the table at the end.

It imports neither torch nor vLLM: both live in child processes.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.cache import FIXTURES
from conformance.expectations import Expectation, load
from conformance.report.model import Cell, Report, Row, State
from conformance.report.terminal import render, verdict
from conformance.scenarios.fault import (
    FAULT_VARIABLE,
    WITHOUT_VARIABLE,
    require_patches,
    require_planted_fault,
)
from conformance.target import (
    DEFAULT_SUBJECTS,
    Subject,
    WrongUse,
    installed_versions,
    parse_subject,
    require_supported,
    require_vllm,
    unsupported,
)

EXPECTATIONS = FIXTURES / "expectations"
HARNESS = "harness"
"""The column of checks that have no subject: what they look at is the harness's own."""
_REPORT = pytest.StashKey[Report]()
_BEGUN = pytest.StashKey[float]()
_MESSAGE = pytest.StashKey[str]()
_CHECK = pytest.StashKey[str]()
_REFUSED = "conformance_refused"
_SUITE = Path(__file__).with_name("suite")
_PLANTED = (FAULT_VARIABLE, WITHOUT_VARIABLE)
"""With one of these the results are not those of the subjects as they are, and say so."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's options."""
    group = parser.getgroup("vllm-conformance")
    group.addoption(
        "--subject",
        action="append",
        metavar="NAME",
        help="runner under test: bare, upstream, ours or package.module:Class (repeatable; "
        f"default: {', '.join(DEFAULT_SUBJECTS)})",
    )
    group.addoption(
        "--expectations",
        metavar="DIR",
        default=str(EXPECTATIONS),
        help="directory of <subject>.toml files that name the failures that are known",
    )
    group.addoption(
        "--nightly",
        action="store_true",
        help="run what takes too long for every change as well, and draw more inputs",
    )
    group.addoption(
        "--conformance-report", metavar="DIR", help="write results.json into this directory"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register markers, check the options, and begin the report."""
    for line in (
        "scenario(name): the engine run that a check looks at",
        "held_against(reference): where the expected outcome comes from",
        "rows(tier): the check is made for each row of a tier of the contract",
        "bare_holds: unpatched torch passes this check too",
        "real: runs the model that comes from the package index",
        "nightly: takes long, and is left out without --nightly",
    ):
        config.addinivalue_line("markers", line)
    try:
        subjects = subjects_of(config)
        require_supported(subjects)
        require_planted_fault(os.environ.get(FAULT_VARIABLE))
        require_patches(os.environ.get(WITHOUT_VARIABLE))
        if not Path(config.getoption("--expectations")).is_dir():
            raise WrongUse("--expectations names no directory: name one, or leave it out.")
    except WrongUse as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[_REPORT] = Report(
        versions=dataclasses.asdict(installed_versions()),
        environment={
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cpus": str(len(os.sched_getaffinity(0))),
            "selected": _selected(config),
        },
        subjects=tuple(subject.name for subject in subjects),
    )
    config.stash[_BEGUN] = time.monotonic()


def _selected(config: pytest.Config) -> str:
    """Return ``all``, or what makes this session other than all checks of unchanged subjects."""
    options = {"-k": config.option.keyword, "-m": config.option.markexpr}
    chosen = [f'{name} "{value}"' for name, value in options.items() if value]
    chosen += [f"{name}={value}" for name in _PLANTED if (value := os.environ.get(name))]
    chosen += [Path(name).name for name in config.args if "::" in name or name.endswith(".py")]
    return " ".join(chosen) or "all"


def subjects_of(config: pytest.Config) -> list[Subject]:
    """Return the subjects of a session; WrongUse for a name that is none."""
    names = config.getoption("--subject") or DEFAULT_SUBJECTS
    return [parse_subject(name) for name in dict.fromkeys(names)]


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what is under test."""
    subjects = ", ".join(subject.name for subject in subjects_of(config))
    return [f"conformance: {subjects} (runner V1); {installed_versions().summary}"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every check of the suite each of the subjects."""
    if "subject" in metafunc.fixturenames and _is_check(metafunc.definition):
        subjects = subjects_of(metafunc.config)
        metafunc.parametrize("subject", subjects, ids=[s.name for s in subjects], scope="session")
    if "row" in metafunc.fixturenames and _is_check(metafunc.definition):
        tier = next(metafunc.definition.iter_markers("rows")).args[0]
        rows = [row for row in _contract_rows() if row.tier == tier]
        metafunc.parametrize("row", rows, ids=[row.id for row in rows])


def _contract_rows() -> tuple[Any, ...]:
    """The rows of the contract of the installed vLLM; UsageError where there is none."""
    from conformance.contract.installed import contract_of_installed

    try:
        return contract_of_installed("v1").rows
    except WrongUse as error:
        raise pytest.UsageError(str(error)) from error


def pytest_itemcollected(item: pytest.Item) -> None:
    """Group checks by run, so that one worker has it for all of them; before pytest-xdist looks."""
    if (subject := _subject(item)) is not None:
        run = _scenario_of(item) or "contract"
        item.add_marker(pytest.mark.xdist_group(f"{run}-{subject.name}"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the failures that are known.

    First of all plugins: an expectation is held against every check, and not only the selected.
    """
    _mark_known_failures(config, items)
    if not config.getoption("--nightly"):
        later = [item for item in items if item.get_closest_marker("nightly")]
        if later:
            config.hook.pytest_deselected(items=later)
            items[:] = [item for item in items if not item.get_closest_marker("nightly")]


def _mark_known_failures(config: pytest.Config, items: list[pytest.Item]) -> None:
    checks = [(item, subject) for item in items if (subject := _subject(item)) is not None]
    if not checks:
        return
    try:
        version = require_vllm().vllm or ""
        _require_modules(load(Path(config.getoption("--expectations"))))
        expectations = [
            expectation
            for expectation in load(Path(config.getoption("--expectations")))
            if expectation.speaks_of(version)
        ]
        if not any("::" in argument for argument in config.args):
            _require_matches(expectations, [item for item, _ in checks])
    except WrongUse as error:
        output = getattr(config, "workeroutput", None)
        if output is None:
            raise pytest.UsageError(str(error)) from error
        # A process of pytest-xdist's cannot refuse: it checks nothing, and the printing one does.
        output[_REFUSED] = str(error)
        items.clear()
        return
    # The longest runs first, so that no worker begins one when the others are done.
    items.sort(key=_run_is_short)
    by_name: dict[tuple[str, str], list[Expectation]] = {}
    for expectation in expectations:
        for check in expectation.checks:
            by_name.setdefault((expectation.subject, check), []).append(expectation)
    for item, subject in checks:
        if (reason := unsupported(subject, version)) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
        if subject.name == "bare" and not _bare_holds(item):
            item.add_marker(_known_failure("torch is not patched"))
        if by_name:
            for name in _names(item):
                for expectation in by_name.get((subject.name, name), ()):
                    item.add_marker(_known_failure(f"{expectation.reason} ({expectation.link})"))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over what a process of pytest-xdist's refused to do."""
    if message := getattr(node, "workeroutput", {}).get(_REFUSED):
        node.config.stash[_MESSAGE] = message


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End with the status of wrong use if that is what it was."""
    if _MESSAGE in session.config.stash:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR


def _require_modules(expectations: tuple[Expectation, ...]) -> None:
    """Raise WrongUse for an expectation of a check in a module that the suite does not have."""
    modules = {path.stem.removeprefix("test_") for path in _SUITE.glob("test_*.py")}
    for expectation in expectations:
        for check in expectation.checks:
            if check.partition("::")[0] not in modules:
                raise WrongUse(
                    f"the expectations for {expectation.subject} name {check}, and there is no "
                    "such check: correct the name, or take it out."
                )


def _known_failure(reason: str) -> pytest.MarkDecorator:
    """Expect a finding, and nothing else: an error of the harness is never a known failure."""
    return pytest.mark.xfail(reason=reason, strict=True, raises=pytest.fail.Exception)


def _require_matches(expectations: list[Expectation], items: list[pytest.Item]) -> None:
    """Raise WrongUse for an expectation of a check that does not exist, in a module that does."""
    known = {name for item in items for name in _names(item)}
    modules = {check.partition("::")[0] for check in known}
    for expectation in expectations:
        for check in expectation.checks:
            if check not in known and check.partition("::")[0] in modules:
                raise WrongUse(
                    f"the expectations for {expectation.subject} name {check}, and there is no "
                    "such check: correct the name, or take it out."
                )


def check_id(item: pytest.Item) -> str:
    """Return a check's name, the same for every subject: ``speculation::claim[parameters]``."""
    name = item.stash.get(_CHECK, None)
    if name is None:
        function = getattr(item, "originalname", item.name).removeprefix("test_")
        values = [_label(v) for k, v in _params(item).items() if k != "subject"]
        suffix = f"[{'-'.join(values)}]" if values else ""
        name = item.stash[_CHECK] = f"{_module(item.path)}::{function}{suffix}"
    return name


@functools.cache
def _module(path: Path) -> str:
    return path.stem.removeprefix("test_")


def _names(item: pytest.Item) -> set[str]:
    """The names that an expectation may give a check.

    A row of the contract is ``contract::behaviour[clause@context]``; without the context the name
    is that of all its contexts, each of which must then fail.
    """
    name = check_id(item)
    row = _param(item, "row")
    return {name} if row is None else {name, name.removesuffix(f"@{row.context}]") + "]"}


@pytest.fixture(scope="session")
def runs() -> Iterator[Any]:
    """The session's runs: a fork server, the scenarios it has run, the references."""
    from conformance.scenarios.host import Host
    from conformance.scenarios.runs import Runs

    with Host() as host:
        yield Runs(host)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Send a check's cell along with its report, from whichever process ran it."""
    report: Any = yield
    subject = _subject(item)
    if not _is_check(item):
        return report
    if call.when == "call" or report.outcome != "passed":
        marker = item.get_closest_marker("held_against")
        area = item.path.stem.removeprefix("test_").replace("_", " ")
        of_contract = _param(item, "row")
        row = Row(
            check=check_id(item),
            area=f"{area}, {of_contract.tier}" if of_contract else area,
            claim=_claim(item),
            reference=marker.args[0] if marker else "",
            group=of_contract.family if of_contract else "",
            context=of_contract.context if of_contract else "",
        )
        cell = _cell(report)
        data = {
            "row": dataclasses.asdict(row),
            "subject": subject.name if subject is not None else HARNESS,
            "cell": dataclasses.asdict(cell),
        }
        # As text: what runs tests in parallel carries only plain values from process to process.
        report.user_properties.append(("conformance", json.dumps(data)))
    return report


class _Collector:
    """Fills the report from the test reports, in the process that prints."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, text in report.user_properties:
            if name == "observation" and report.when == "call":
                self.report.observations.append(json.loads(str(text)))
            if name != "conformance":
                continue
            data = json.loads(str(text))
            cell = data["cell"]
            row = {k: v for k, v in data["row"].items() if k != "cells"}
            self.report.add(
                Row(**row),
                data["subject"],
                Cell(State(cell["state"]), cell["detail"], cell["seconds"]),
            )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Collect results where they are printed."""
    if not hasattr(session.config, "workerinput"):
        report = session.config.stash[_REPORT]
        session.config.pluginmanager.register(_Collector(report), "conformance-collector")


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    """Print the table, the sentence, and write the result file."""
    report = config.stash[_REPORT]
    if _MESSAGE in config.stash:
        terminalreporter.write_line(f"ERROR: {config.stash[_MESSAGE]}", red=True)
    if not report.rows:
        return
    report.seconds = time.monotonic() - config.stash[_BEGUN]
    terminalreporter.section("conformance")
    for subject in subjects_of(config):
        if reason := unsupported(subject, installed_versions().vllm or ""):
            terminalreporter.write_line(reason)
    terminalreporter.write_line(render(report))
    terminalreporter.write_line(verdict(report, failed=exitstatus not in (0, 5)))
    directory = config.getoption("--conformance-report")
    if directory:
        path = report.write(Path(directory))
        terminalreporter.write_line(f"Results: {path}")


def _is_check(item: Any) -> bool:
    return _is_of_the_suite(item.path)


@functools.cache
def _is_of_the_suite(path: Path) -> bool:
    return _SUITE in path.parents


def _params(item: Any) -> dict[str, Any]:
    callspec = getattr(item, "callspec", None)
    return dict(callspec.params) if callspec is not None else {}


def _param(item: Any, name: str) -> Any:
    return _params(item).get(name)


def _subject(item: Any) -> Subject | None:
    """The subject of an item of the suite; None for every other test."""
    value = _param(item, "subject")
    return value if isinstance(value, Subject) and _is_check(item) else None


def _bare_holds(item: pytest.Item) -> bool:
    row = _param(item, "row")
    if row is not None:
        return not row.fails_for_bare
    return item.get_closest_marker("bare_holds") is not None


def _scenario_of(item: pytest.Item) -> str | None:
    """The name of the scenario whose run an item looks at."""
    marker = item.get_closest_marker("scenario")
    name = marker.args[0] if marker else _param(item, "scenario")
    return None if name is None else str(name)


def _run_is_short(item: pytest.Item) -> bool:
    """Whether an item's run takes seconds; workers in processes and the real model take longer."""
    from conformance.scenarios.catalogue import SCENARIO

    scenario = SCENARIO.get(_scenario_of(item) or "")
    return not (scenario and (scenario.in_worker_processes or scenario.name == "real"))


def _label(value: Any) -> str:
    return str(getattr(value, "id", None) or getattr(value, "name", value))


def _claim(item: pytest.Item) -> str:
    row = _param(item, "row")
    if row is not None:
        return str(row.id)
    text = getattr(item, "originalname", item.name).removeprefix("test_").replace("_", " ")
    values = [_label(v) for k, v in _params(item).items() if k != "subject"]
    return f"{text} ({', '.join(values)})" if values else text


def _cell(report: pytest.TestReport) -> Cell:
    expected = getattr(report, "wasxfail", None)
    if expected is not None and report.outcome == "skipped":
        return Cell(State.EXPECTED_RED, f"{expected}\n{report.longreprtext}", report.duration)
    if report.outcome == "passed":
        return Cell(State.OK, "", report.duration)
    if report.outcome == "skipped":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        state = State.NOT_CHECKED if reason.startswith("not checked") else State.NOT_APPLICABLE
        return Cell(state, reason, report.duration)
    return Cell(State.RED, report.longreprtext, report.duration)
