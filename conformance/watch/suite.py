"""The suite on a new release of the CPU build: which commands run it, and what it said."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.report.model import Report, State
from conformance.target import WrongUse
from conformance.watch.news import Release

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, where this is one."""
_LIMIT = 2 * 3600.0  # seconds for all steps; on two cores the suite takes six minutes
_LOG = "suite.log"
_SAYS_WHY = f"{_LOG} in the folder of its report says why"
_ENV = "ENV"  # stands for the environment's folder in what is shown
_REPORT = "REPORT"  # and this for the report's


@dataclass(frozen=True, slots=True)
class Plan:
    """Commands, one after the other, in which ``ENV`` and ``REPORT`` stand for folders.

    They are run in the checkout.
    """

    steps: tuple[tuple[str, ...], ...]
    variables: Mapping[str, str]

    @property
    def text(self) -> str:
        """As somebody would type it in the checkout."""
        variables = "".join(f"{name}={shlex.quote(v)} " for name, v in self.variables.items())
        return " && ".join(
            f"{variables if step[0] == 'uv' else ''}{shlex.join(step)}" for step in self.steps
        )


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """What the suite came to: red cells by subject, and cells that were not checked."""

    conforms: bool
    red: Mapping[str, int]
    not_checked: int
    report: Path

    @property
    def text(self) -> str:
        """One sentence."""
        found = [f"{count:,} of {subject}" for subject, count in self.red.items() if count]
        rest = f"; {self.not_checked:,} were not checked" if self.not_checked else ""
        what = f"checks fail: {', '.join(found)}" if found else "no check fails"
        return f"The suite was run, and {what}{rest}."


def plan(release: Release, links: Sequence[str] = (), root: Path | None = None) -> Plan | None:
    """Return what runs the suite on a release, None where this is no checkout.

    A version that has a lock has a tox environment; any other gets an environment of its own.
    """
    root = root or ROOT
    if not (root / "pyproject.toml").is_file():
        return None
    number = release.version.replace(".", "")
    if (root / "requirements" / f"lock-{number}.txt").is_file():
        return Plan((("tox", "run", "-e", f"v{number}", "--", "--report", _REPORT),), {})
    folders = [*links, *os.environ.get("PIP_FIND_LINKS", "").split()]
    install = ["uv", "pip", "install", "--python", f"{_ENV}/bin/python"]
    for folder in folders:
        install += ["--find-links", folder]
    if not any(next(Path(folder).glob("torch-*+cpu-*.whl"), None) for folder in folders):
        install += ["--torch-backend", "cpu"]  # torch's CPU build is on an index of its own
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return Plan(
        (
            ("uv", "venv", "--python", python, _ENV),
            (*install, ".[real]", f"{release.package}=={release.version}"),
            (f"{_ENV}/bin/vllm-conformance", "doctor", "--mend"),
            (f"{_ENV}/bin/vllm-conformance", "run", "--report", _REPORT),
        ),
        {"UV_EXCLUDE": "requirements/exclude.txt"},
    )


def run(steps: Plan, report: Path, root: Path | None = None) -> SuiteResult:
    """Run a plan's commands; their output is kept in ``suite.log`` beside the results.

    Raises:
        WrongUse: one could not be run, or ended without results.
    """
    report = report.resolve()
    log = report / _LOG
    try:
        report.mkdir(parents=True, exist_ok=True)
        (report / "results.json").unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix="watch-suite-") as folder, log.open("wb") as output:
            places = {_ENV: str(Path(folder, "env")), _REPORT: str(report)}
            environment = {**os.environ, **steps.variables}
            status = 0
            for step in steps.steps:
                status = _run(_placed(step, places), environment, output.fileno(), root or ROOT)
                if status:
                    break
    except OSError as error:
        raise WrongUse(
            f"the suite's report cannot be written ({error.strerror or error})."
        ) from error
    return _result(report, status)


def _placed(step: Sequence[str], places: Mapping[str, str]) -> list[str]:
    found = []
    for word in step:
        head, slash, tail = word.partition("/")
        found.append(f"{places.get(head, head)}{slash}{tail}")
    return found


def _run(command: list[str], environment: Mapping[str, str], output: int, root: Path) -> int:
    # An environment's commands lie beside its Python, which may be run without being activated.
    places = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    program = shutil.which(command[0], path=places)
    if program is None:
        raise WrongUse(
            f"the suite was not run, as there is no {command[0]}: install requirements/tox.txt."
        )
    process = subprocess.Popen(
        [program, *command[1:]],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment,
        cwd=root,
        start_new_session=True,
    )
    try:
        return process.wait(_LIMIT)
    except subprocess.TimeoutExpired:
        raise WrongUse(f"the suite did not end within {_LIMIT / 3600:g} hours.") from None
    finally:
        if process.poll() is None:  # it, and all that it started
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _result(report: Path, status: int) -> SuiteResult:
    path = report / "results.json"
    try:
        found = Report.from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise WrongUse(
            f"the suite ended with status {status} and without results: {_SAYS_WHY}."
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise WrongUse(f"the suite's {path.name} is none that is read here ({error}).") from error
    if found.conforms != (status == 0):
        raise WrongUse(
            f"the suite ended with status {status}, which its results do not explain: {_SAYS_WHY}."
        )
    return SuiteResult(
        found.conforms,
        {subject: found.count(subject, State.RED) for subject in found.subjects},
        sum(found.count(subject, State.NOT_CHECKED) for subject in found.subjects),
        path,
    )
