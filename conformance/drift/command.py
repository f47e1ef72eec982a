"""``vllm-conformance drift``: sources in, text and exit status out."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version as Release

from conformance.cache import default_cache
from conformance.drift import behaviours, facts, suppressions
from conformance.drift.compare import Version, compare
from conformance.drift.model import Drift
from conformance.report.drift import render
from conformance.surface import releases
from conformance.surface.inventory import INVENTORIES, inventory_of, load
from conformance.surface.sources import open_source
from conformance.target import WrongUse

FORMATS = ("table", "markdown", "json", "sarif", "github", "junit")
FAIL_ON = ("error", "warning", "never")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    old: str
    new: str
    generation: str = "all"
    format: str = "table"
    fail_on: str = "error"
    runner: str | None = None
    runner_source: str | None = None
    suppressions: Path | None = None


def run(options: Options) -> tuple[str, int]:
    """Return what to print, and the exit status: 0, or 1 for findings as bad as ``fail_on``.

    Raises:
        WrongUse: a source cannot be read, or an option cannot be used.
    """
    drift = drift_of(options)
    text = render(drift, options.format, options.fail_on)
    if options.format == "github":
        _summarize(drift)
    return text, int(drift.fails(options.fail_on))


def drift_of(options: Options, cache: Path | None = None) -> Drift:
    """Compare the two vLLMs that the options name."""
    if (options.runner is None) != (options.runner_source is None):
        raise WrongUse(
            "--runner and --runner-source go together: the class, and the package it is in."
        )
    left_out = suppressions.load(options.suppressions) if options.suppressions else ()
    tables = behaviours.load()
    cache = cache or default_cache()
    old, new = versions((options.old, options.new), cache)
    generation = options.generation
    if options.runner is not None and options.runner_source is not None:
        from conformance.drift.runners import Runner

        runner = Runner(options.runner, options.runner_source, cache)
        old = replace(old, side=runner.side(open_source(options.old)))
        new = replace(new, side=runner.side(open_source(options.new)))
        if generation == "all":
            generation = runner.generation
    found = compare(old, new, tables, generation=generation, runner=options.runner or "")
    return suppressions.apply(found, left_out)


def versions(specs: Sequence[str], cache: Path) -> list[Version]:
    """Return what is known of each vLLM; those that have to be read are read side by side."""
    found: dict[str, Version] = {}
    unread = []
    for spec in dict.fromkeys(specs):
        known = _known(spec)
        if known is None:
            unread.append(spec)
        else:
            found[spec] = known
    # Walking is done by a process of its own for each, so threads are enough.
    with ThreadPoolExecutor(max_workers=2) as pool:
        read = pool.map(lambda spec: _read(spec, cache), unread)
        found |= dict(zip(unread, read, strict=True))
    return [found[spec] for spec in specs]


def _read(spec: str, cache: Path) -> Version:
    tree = open_source(spec)
    inventory = inventory_of(tree, cache)
    return Version(inventory, facts.facts_of(tree, inventory, cache))


def _known(spec: str) -> Version | None:
    """A release whose inventory and facts are kept; what lacks the facts is read for them."""
    wanted = releases.parse_release(spec)
    if wanted is None:
        return None
    # 0.32 is 0.32.0.
    version = next(
        (p.stem for p in INVENTORIES.glob("*.json") if Release(p.stem) == Release(wanted.version)),
        None,
    )
    if version is None:
        return None
    inventory = load(INVENTORIES / f"{version}.json")
    found = facts.known(version)
    if found is None:
        try:
            found = facts.facts_of(open_source(spec), inventory, default_cache())
        except WrongUse:
            found = None  # no source at hand: what rests on it is said to be not checked
    return Version(inventory, found)


def _summarize(drift: Drift) -> None:
    """Add the page to the summary of a workflow's step, where there is one."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(render(drift, "markdown", "never"))
    except OSError as error:
        # The annotations are printed all the same.
        print(f"The step's summary cannot be written ({error}).", file=sys.stderr)
