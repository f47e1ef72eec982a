"""Outcomes of the kernel checks: a kernel is recorded once, and replayed once per subject."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from conformance.kernels.replaying import REPLACED
from conformance.kernels.rows import CALLED, LAUNCHED, OPERATOR, KernelRow
from conformance.kernels.store import key, locked, source_of
from conformance.scenarios.host import Host, HostError
from conformance.scenarios.observation import ChildRun
from conformance.scenarios.runs import Runs
from conformance.target import DEFAULT_SUBJECTS, Subject, installed_versions

EXAMPLES = 200
"""Inputs that are drawn of each kernel."""
NIGHTLY = 50
"""So many times more are drawn with ``--nightly``."""


@dataclass(frozen=True)
class Outcome:
    """What a row came to: ``holds``, ``red``, ``replaced`` (not launched), ``open``."""

    state: str
    text: str = ""


class CannotRecord(Exception):
    """There is no reference for a kernel; the message says why."""


class Records:
    """The records of this session's kernels, made where they are missing."""

    def __init__(self, runs: Runs, examples: int = EXAMPLES) -> None:
        self._runs = runs
        self._examples = examples
        self._failed: dict[str, str] = {}

    def path(self, kernel: str) -> Path:
        """The record of a kernel.

        Raises:
            CannotRecord: there is no triton here, or the kernel cannot be interpreted.
        """
        from conformance.kernels.generators import GENERATOR

        try:
            versions = {
                "vllm": installed_versions().vllm or "",
                "triton": version("triton"),
                "hypothesis": version("hypothesis"),
            }
        except PackageNotFoundError as error:
            raise CannotRecord(
                f"not checked: the package {error.name} is not installed, and the kernel's own "
                f"source cannot be run without it: `uv pip install {error.name}`"
            ) from error
        if kernel in self._failed:
            raise CannotRecord(self._failed[kernel])
        source = source_of(GENERATOR[kernel].module)
        name = kernel.rpartition(":")[2]
        path = (
            self._runs.host.cache
            / "kernels"
            / f"{name}-{key(kernel, source, self._examples, versions)}.json"
        )
        with locked(path):
            if not path.exists():
                self._record(kernel, path)
        return path

    def _record(self, kernel: str, path: Path) -> None:
        arguments = {"kernel": kernel, "examples": self._examples, "path": str(path)}
        try:
            run = self._runs.host.of("v2").run(
                "conformance.kernels.recording:run",
                arguments,
                label=f"{kernel}, in Triton's interpreter",
                limit=max(180.0, 0.3 * self._examples),
            )
        except HostError as error:
            raise CannotRecord(f"not checked: {error}") from error
        if run.failure is not None:
            self._failed[kernel] = f"{kernel} cannot be recorded: {run.failure}"
            raise CannotRecord(self._failed[kernel])
        drawn = run.results["examples"]
        if drawn < self._examples:
            path.unlink()
            self._failed[kernel] = (
                f"the generator of {kernel} gave {drawn} different inputs, and not the "
                f"{self._examples} that were asked for: let it draw from more"
            )
            raise CannotRecord(self._failed[kernel])


class KernelOutcomes:
    """Every row's outcome by subject."""

    def __init__(self, runs: Runs, rows: tuple[KernelRow, ...], examples: int = EXAMPLES) -> None:
        self._runs = runs
        self._records = Records(runs, examples)
        self._rows = rows
        self._examples = examples
        self._results: dict[tuple[str, str], ChildRun] = {}

    def of(self, subject: Subject, row: KernelRow) -> Outcome:
        """Check a row for a subject.

        Raises:
            CannotRecord: the kernel has no reference, though the package triton is here.
        """
        try:
            run = self._replayed(subject, row)
        except CannotRecord as error:
            if not str(error).startswith("not checked"):
                raise
            return Outcome("open", str(error))
        result = run.results.get(f"{row.kernel}|{row.way}")
        if result is None:
            if _known(subject) or _reached(run):
                return Outcome("red", _told(row, f"here: {run.failure or 'nothing was reported'}"))
            return Outcome("open", f"not checked: {(run.failure or '').partition(chr(10))[0]}")
        return judged(row, result, frozenset(run.results[REPLACED]), subject)

    def _replayed(self, subject: Subject, row: KernelRow) -> ChildRun:
        place = row.kernel if _known(subject) else ""
        if (subject.name, place) not in self._results:
            if _known(subject):
                run = self._run("held", {"subject": subject.name, "plant": []}, subject, [row])
            else:
                arguments = {
                    "worker_cls": subject.worker_cls,
                    "model": str(self._runs.model("tiny-llama")),
                    "draft": str(self._runs.model("tiny-llama-draft")),
                }
                run = self._run("engine", arguments, subject, self._rows)
            self._results[subject.name, place] = run
        return self._results[subject.name, place]

    def _run(self, entry: str, arguments: dict[str, Any], subject: Subject, rows: Any) -> ChildRun:
        kernels = {row.kernel for row in rows}
        return self._runs.host.run(
            f"conformance.kernels.replaying:{entry}",
            {
                **arguments,
                "records": [str(self._records.path(kernel)) for kernel in sorted(kernels)],
                "steps": sorted({step for row in self._rows for step in steps(row)}),
            },
            label=f"{subject.name}, {', '.join(sorted(kernels))}",
            limit=max(180.0, 0.1 * self._examples),
        )


class V2Outcomes:
    """How V2 kernels compare with their references; each is checked once."""

    def __init__(self, host: Host, examples: int = EXAMPLES) -> None:
        self._host = host
        self._examples = examples

    def of(self, name: str, ignoring: dict[str, Any] | None = None) -> str | None:
        """What is wrong with a kernel; None if nothing is. See `checking.run` for ``ignoring``."""
        if find_spec("hypothesis") is None:
            return (
                "not checked: the package hypothesis is not installed: `uv pip install hypothesis`"
            )
        from conformance.kernels.references import REFERENCE

        versions = REFERENCE[f"triton:{name}"].versions
        vllm = installed_versions().vllm or "0"
        if not SpecifierSet(versions).contains(vllm, prereleases=True):
            return f"not checked: the reference of {name} is for vLLM {versions}"
        try:
            run = self._host.of("v2").run(
                "conformance.kernels.checking:run",
                {
                    "kernel": f"triton:{name}",
                    "examples": self._examples,
                    "ignoring": ignoring or {},
                },
                label=f"{name}, against its reference",
                limit=max(180.0, 0.3 * self._examples),
            )
        except HostError as error:
            return f"not checked: {error}"
        if "outcome" not in run.results:
            return f"{name} cannot be run by Triton's interpreter: {run.failure}"
        drawn, failed, smallest = run.results["outcome"]
        if drawn < self._examples:
            return f"{drawn} different inputs of {name} were drawn, and not {self._examples}"
        if failed:
            return f"{name}: {failed} of {drawn} launches differ; the smallest:\n  {smallest}"
        return None


def steps(row: KernelRow) -> tuple[str, ...]:
    """The steps of the chains to a row's sites, ``module:function`` each."""
    return tuple(":".join(step.split(":")[:2]) for site in row.sites for step in site.chain)


def judged(
    row: KernelRow, result: dict[str, Any], replaced: frozenset[str], subject: Subject
) -> Outcome:
    """What a child's result of a row comes to.

    A kernel that nothing stands in for is red, unless the subject replaces a step of the way to
    each of its launches: then none of them happens, and no one is misled by an error.
    """
    if result["parameters"] is None and result["failed"] == 0:
        return Outcome("holds")
    answered = result["examples"] - result["raised"] - result["refused"]
    cut = [next((step for step in _of_site(site) if step in replaced), None) for site in row.sites]
    if subject.name != "bare" and answered == 0 and cut and all(cut):
        return Outcome(
            "replaced",
            f"nothing stands in for it, and nothing launches it: {subject.name} replaces "
            f"{', '.join(sorted({str(step) for step in cut}))} on the way",
        )
    lines = []
    if result["failed"]:
        raised = f", {result['raised']} of them by an error" if result["raised"] else ""
        lines.append(
            f"{result['failed']} of {result['examples']} launches differ from the GPU's kernel"
            f"{raised}; the smallest:"
        )
        lines.append(result["smallest"])
    if result["parameters"] is not None:
        lines.append(f"parameters: {result['parameters']}")
    return Outcome("red", _told(row, *lines))


def _of_site(site: Any) -> list[str]:
    return [":".join(step.split(":")[:2]) for step in site.chain]


def _told(row: KernelRow, *lines: str) -> str:
    from conformance.kernels.generators import GENERATOR

    generator = GENERATOR[row.kernel]
    way = {
        LAUNCHED: "launched",
        CALLED: f"through {generator.through}",
        OPERATOR: "by the CPU's own operator",
    }[row.way]
    return "\n".join([f"{row.kernel}, {way}", *lines, f"  launched at: {row.where}"]).replace(
        "\n", "\n  "
    )


def _known(subject: Subject) -> bool:
    return subject.name in DEFAULT_SUBJECTS


def _reached(run: ChildRun) -> bool:
    """Whether an engine came to where kernels are replayed."""
    return REPLACED in run.results
