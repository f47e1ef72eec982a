"""``vllm-conformance watch``: what is new on the index, checked, reported, told, and remembered.

In this order for each version: its report is written, who wants to know is told, and only then the
state says that it was checked. Whatever ends a watch in between, the next one does it again, and
nothing is lost.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from conformance.target import WrongUse
from conformance.watch import state as states
from conformance.watch.feed import Feed, open_feed
from conformance.watch.lock import only_one
from conformance.watch.model import Checked, News, NotChecked, Watched, by_version
from conformance.watch.news import PACKAGES, Release, begin, unchecked
from conformance.watch.pages import RENDERERS, to_markdown
from conformance.watch.state import Entry, State
from conformance.watch.telling import Telling
from conformance.watch.web import NotTold

FORMATS = tuple(RENDERERS)
FAIL_ON = ("error", "warning", "never")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    state: Path
    report: Path
    index: str | None = None
    pre: bool = False
    dry_run: bool = False
    format: str = "table"
    fail_on: str = "error"
    notify_github: bool = False
    run_suite: bool = False
    suppressions: Path | None = None


def run(options: Options) -> tuple[str, int]:
    """Return what to print, and the exit status: 0, 1 for findings, 2 for what was not checked.

    Raises:
        WrongUse: an option cannot be used, the state cannot be read, or another watch is at work.
    """
    telling = Telling.from_environment(
        github=options.notify_github, fail_on=options.fail_on, dry=options.dry_run
    )
    # A dry run writes no state, so that it may look at one that it could not lock.
    with nullcontext() if options.dry_run else only_one(options.state):
        known = states.load(options.state)
        with open_feed(options.index) as feed:
            watched = _Watch(options, feed, telling, known or State()).run()
    if options.format == "github":
        watched = _summarize(watched)
    return RENDERERS[options.format](watched), watched.status(options.fail_on)


class _Stop(Exception):
    """Nothing more can be written, so that there is no use in going on."""


@dataclass(slots=True)
class _Watch:
    """One watch, as it goes on."""

    options: Options
    feed: Feed
    telling: Telling
    state: State
    """What the file says, or is to say."""
    seen: State = field(default_factory=State)
    """That, and what was checked but could not be told of: it is compared with all the same."""
    looked_at: dict[str, str] = field(default_factory=dict)
    begun: list[Release] = field(default_factory=list)
    checked: list[Checked] = field(default_factory=list)
    not_checked: list[NotChecked] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def run(self) -> Watched:
        """Look, and check what is new, the oldest first."""
        new = list(self._new())
        self._say_unlisted()
        try:
            if self.begun:
                self._save()
            self.seen = self.state
            for version, group in by_version(new):
                self._version(version, group)
        except _Stop:
            pass
        if self.options.dry_run and new:
            self.told.append("This was a dry run: the state is as it was, and nobody was told.")
        return self._summarized()

    def _new(self) -> Iterator[Release]:
        """The releases that are to be checked; of a package without a state, where it begins."""
        for package in PACKAGES:
            try:
                listed = self.feed.versions(package, pre=self.options.pre)
            except WrongUse as error:
                self.not_checked.append(NotChecked(package, None, str(error)))
                continue
            if not listed:
                continue
            self.looked_at[package] = listed[-1]
            first = begin(listed)
            if not self.state.of(package) and first is not None:
                self.state = self.state.having(package, [Entry(first, "baseline", _today())])
                self.begun.append(Release(package, first))
            for version in unchecked(self.state.of(package), listed):
                yield Release(package, version)
        if not self.looked_at and not self.not_checked:
            raise WrongUse(f"There is no release of {' or '.join(PACKAGES)} there (--index).")

    def _version(self, version: str, group: list[Release]) -> None:
        """Check the releases of one version, report on them, tell of them, and remember them."""
        from conformance.watch.check import Checker
        from conformance.watch.reports import folder_of, write

        checker = Checker(self.feed, self.options.suppressions, self.options.run_suite)
        checked: list[Checked] = []
        not_checked: list[NotChecked] = []
        for release in group:
            folder = folder_of(self.options.report, release)
            found = checker.check(release, self.seen.of(release.package), folder)
            if isinstance(found, NotChecked):
                not_checked.append(found)
                self.not_checked.append(found)
                continue
            checked.append(found)
            self.checked.append(found)
            self.seen = self.seen.having(release.package, [found.entry(_today())])
            try:
                write(self.options.report, found)
            except WrongUse as error:
                self._stop(error)
        try:
            for done in self.telling.tell(News(version, tuple(checked), tuple(not_checked))):
                self.told.append(done)
        except NotTold as error:
            self.troubles.append(f"{error} vLLM {version} is checked and told of again next time.")
            return
        if checked:
            for item in checked:
                package = item.release.package
                self.state = self.state.having(package, [item.entry(_today())])
            self._save()

    def _save(self) -> None:
        if self.options.dry_run:
            return
        try:
            states.save(self.state, self.options.state)
        except WrongUse as error:
            self._stop(error)

    def _stop(self, error: WrongUse) -> None:
        self.troubles.append(str(error))
        raise _Stop from error

    def _say_unlisted(self) -> None:
        """Tell that the index does not answer: silence would pass for nothing new."""
        if not self.not_checked:
            return
        try:
            self.told += self.telling.say([item.text for item in self.not_checked])
        except NotTold as error:
            self.troubles.append(str(error))

    def _summarized(self) -> Watched:
        from conformance.watch.reports import write_summary

        watched = Watched(
            self.looked_at,
            tuple(self.checked),
            tuple(self.not_checked),
            tuple(self.begun),
            tuple(self.told),
            tuple(self.troubles),
        )
        try:
            write_summary(self.options.report, watched)
        except WrongUse as error:
            if str(error) not in watched.troubles:
                return replace(watched, troubles=(*watched.troubles, str(error)))
        return watched


def _summarize(watched: Watched) -> Watched:
    """Add the page to the summary of a workflow's step, where there is one."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return watched
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(to_markdown(watched))
    except OSError as error:
        said = f"The step's summary cannot be written ({error.strerror or error})."
        return replace(watched, troubles=(*watched.troubles, said))
    return watched


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()
