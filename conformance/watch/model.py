"""What a watch comes to. Plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from packaging.version import Version

from conformance.drift.model import Drift
from conformance.report.findings_text import sums
from conformance.watch.news import Release
from conformance.watch.state import Entry, Outcome
from conformance.watch.suite import SuiteResult

SCHEMA = "vllm-conformance/watch-report/1"


@dataclass(frozen=True, slots=True)
class Checked:
    """A release that was wholly checked."""

    release: Release
    against: str
    drift: Drift
    suite: SuiteResult | None = None
    command: str = ""
    """What runs the suite on it, where that was not asked for and could be done."""

    def fails(self, fail_on: str) -> bool:
        """Whether a finding is as bad as that; a check of the suite that fails is an error."""
        red = self.suite is not None and not self.suite.conforms
        return self.drift.fails(fail_on) or (red and fail_on != "never")

    @property
    def outcome(self) -> Outcome:
        """In a word: warnings count as findings too, notes do not."""
        if self.fails("warning"):
            return "findings"
        return "incomplete" if self.incomplete else "clean"

    @property
    def incomplete(self) -> bool:
        """Whether a part of it could not be compared."""
        return bool(self.drift.not_checked) or bool(self.suite and self.suite.not_checked)

    @property
    def text(self) -> str:
        """One sentence, or two with the suite's."""
        found = f"{self.release.label} against {self.against}: {sums(self.drift)}."
        return f"{found} {self.suite.text}" if self.suite else found

    def entry(self, date: str) -> Entry:
        """Its line in the state."""
        return Entry(
            self.release.version,
            self.outcome,
            date,
            self.against,
            self.drift.count("error"),
            self.drift.count("warning"),
            "" if self.suite is None else "conforms" if self.suite.conforms else "findings",
        )


@dataclass(frozen=True, slots=True)
class NotChecked:
    """A release, or all releases of a package, of which nothing can be said, and why."""

    package: str
    version: str | None
    reason: str

    @property
    def text(self) -> str:
        """One sentence."""
        name = (
            f"{self.package} {self.version}" if self.version else f"New releases of {self.package}"
        )
        return f"{name}: not checked: {self.reason}"


@dataclass(frozen=True, slots=True)
class Watched:
    """One watch. ``begun`` is where packages begin that had no state; ``troubles`` are sentences
    about what could be neither written nor told."""

    looked_at: Mapping[str, str]
    """The newest release that the index has of each package."""
    checked: tuple[Checked, ...] = ()
    not_checked: tuple[NotChecked, ...] = ()
    begun: tuple[Release, ...] = ()
    told: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()

    @property
    def is_quiet(self) -> bool:
        """Whether there is nothing to say but that nothing is new."""
        return not (self.checked or self.not_checked or self.begun or self.troubles)

    def status(self, fail_on: str) -> int:
        """The exit status: 1 for findings, 2 for what was not checked, written or told."""
        if self.troubles:
            return 2
        if any(item.fails(fail_on) for item in self.checked):
            return 1
        return 2 if self.not_checked else 0

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary with its schema."""
        return {
            "schema": SCHEMA,
            "looked_at": dict(self.looked_at),
            "checked": [_checked(item) for item in self.checked],
            "not_checked": [
                {"package": item.package, "version": item.version, "reason": item.reason}
                for item in self.not_checked
            ],
            "begun": [{"package": item.package, "version": item.version} for item in self.begun],
            "told": list(self.told),
            "troubles": list(self.troubles),
        }


@dataclass(frozen=True, slots=True)
class News:
    """All that a watch found out about one version, whichever packages bring it."""

    version: str
    checked: tuple[Checked, ...]
    not_checked: tuple[NotChecked, ...]

    @property
    def is_clean(self) -> bool:
        """Whether all of it was checked, and wholly, and nothing is to be done."""
        return not self.not_checked and all(item.outcome == "clean" for item in self.checked)

    def fails(self, fail_on: str) -> bool:
        """Whether any release of the version does."""
        return any(item.fails(fail_on) for item in self.checked)

    @property
    def text(self) -> str:
        """A line for each release."""
        checked = [item.text for item in self.checked]
        return "\n".join([*checked, *(item.text for item in self.not_checked)])


def by_version(releases: Iterable[Release]) -> list[tuple[str, list[Release]]]:
    """Releases in groups of one version, the oldest first."""
    ordered = sorted(releases, key=lambda release: release.order)
    groups = groupby(ordered, key=lambda release: Version(release.version))
    return [(str(version), list(group)) for version, group in groups]


def _checked(item: Checked) -> dict[str, Any]:
    suite = item.suite
    return {
        "package": item.release.package,
        "version": item.release.version,
        "against": item.against,
        "outcome": item.outcome,
        "drift": item.drift.to_json(),
        "suite": None
        if suite is None
        else {
            "conforms": suite.conforms,
            "red": dict(suite.red),
            "not_checked": suite.not_checked,
        },
        "command": item.command or None,
    }
