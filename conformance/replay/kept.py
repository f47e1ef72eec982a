"""Looks at the sources of releases, by what is kept of them; nothing is installed or run.

Of releases of which nothing is kept the sources can be fetched and walked, which takes half a
minute each the first time; they are looked at only where that is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from conformance.cache import default_cache
from conformance.drift import facts
from conformance.drift.command import Options, drift_of, versions
from conformance.drift.compare import Version as Release
from conformance.drift.facts import Facts
from conformance.drift.model import Drift, Finding
from conformance.replay.history import BindingLook, CoverLook, DriftLook, SurfaceLook
from conformance.replay.model import Answer
from conformance.report.findings_text import place
from conformance.surface.inventory import known_path
from conformance.surface.model import Inventory, Row
from conformance.target import WrongUse

Static = DriftLook | SurfaceLook | CoverLook | BindingLook


def answer(look: Static, version: str, *, fetch: bool = False) -> Answer:
    """Ask one version; it is not checked where nothing is kept of it, unless it may be fetched.

    Raises:
        WrongUse: it is to be fetched, and cannot be.
    """
    if not fetch and not all(is_kept(name) for name in needed(look, version)):
        return Answer(
            "not checked",
            "needs the sources of a release of which nothing is kept: `vllm-conformance replay "
            "--fetch`",
        )
    match look:
        case DriftLook():
            return _drift_answer(look, version)
        case SurfaceLook():
            return _surface_answer(look, version)
        case CoverLook():
            return _cover_answer(look, version)
        case BindingLook():
            return _binding_answer(look, version)


def _drift_answer(look: DriftLook, version: str) -> Answer:
    step = _drift(look.old, version)
    near = [f for f in step.findings if f.attribute == look.attribute]
    found = [finding for finding in near if _is_meant(look, finding)]
    if found:
        return _red(_told(finding) for finding in found)
    milder = [finding for finding in near if finding.rule == look.rule]
    if milder:
        return Answer("green", _told(milder[0]), tuple(_told(f) for f in milder[1:]))
    return Answer("green", f"{look.old} to {version} has no {look.rule} of {look.attribute}")


def _is_meant(look: DriftLook, finding: Finding) -> bool:
    return (
        (finding.rule, finding.severity) == (look.rule, look.severity)
        and look.generation in ("", finding.generation)
        and (not look.function or any(site.function == look.function for site in finding.sites))
        and (not look.context or look.context in finding.contexts)
        and look.upstream in ("", finding.upstream.state)
    )


def _told(finding: Finding) -> str:
    return f"{finding.severity} {finding.rule} at {place(finding.site)}: {finding.message}"


def _surface_answer(look: SurfaceLook, version: str) -> Answer:
    near = _sites(look, version)
    rows = [row for row in near if look.upstream in ("", row.upstream)]
    if rows:
        return _red(_site(row, f"vLLM's CPU runner: {row.upstream}") for row in rows)
    if near:
        return Answer("green", _site(near[0], f"vLLM's CPU runner: {near[0].upstream}"))
    return Answer("green", f"{version} has no such site of {look.attribute}")


def _cover_answer(look: CoverLook, version: str) -> Answer:
    side = _known_facts(version).upstream
    covers = [(row, side.cover(row)) for row in _sites(look, version)]
    bad = [_site(row, cover.text) for row, cover in covers if cover.state == look.cover]
    if bad:
        return _red(bad)
    if covers:
        row, cover = covers[0]
        return Answer("green", _site(row, cover.text))
    return Answer("green", f"{version} has no such site of {look.attribute}")


def _binding_answer(look: BindingLook, version: str) -> Answer:
    bound = [
        item for item in _known_facts(version).upstream.stand_ins if item.target == look.stand_in
    ]
    kept = [item for item in bound if not item.scoped]
    if kept:
        return _red(f"{look.stand_in} is bound at {i.where}, and never put back" for i in kept)
    if bound:
        return Answer("green", f"{look.stand_in} is bound at {bound[0].where}, and put back")
    return Answer("green", f"{version} does not bind {look.stand_in}")


def _sites(look: SurfaceLook | CoverLook, version: str) -> list[Row]:
    return [
        row
        for row in _inventory(version).rows
        if row.attribute == look.attribute
        and look.module in ("", row.module)
        and look.function in ("", row.function)
        and (look.generation == "" or row.generation in (look.generation, "both"))
        and (look.context == "" or look.context in row.contexts)
        and look.on_cpu in ("", row.on_cpu)
    ]


def _site(row: Row, says: str) -> str:
    path = row.module.replace(".", "/")
    return f"{row.attribute} at {path}.py:{row.line} {row.function}: {says}"


def _red(texts: Iterable[str]) -> Answer:
    first, *rest = texts
    return Answer("red", first, tuple(rest))


def needed(look: Static, version: str) -> tuple[str, ...]:
    """The releases that a look at a version rests on."""
    return (look.old, version) if isinstance(look, DriftLook) else (version,)


def is_kept(version: str) -> bool:
    """Whether the inventory and the facts of a release are committed."""
    return known_path(version).is_file() and facts.known(version) is not None


@functools.cache
def _drift(old: str, new: str) -> Drift:
    return drift_of(Options(old, new))


@functools.cache
def _release(version: str) -> Release:
    (found,) = versions((version,), default_cache())
    return found


def _inventory(version: str) -> Inventory:
    return _release(version).inventory


def _known_facts(version: str) -> Facts:
    found = _release(version).facts
    if found is None:
        raise WrongUse(
            f"The facts of vLLM {version} cannot be read: `python -m conformance.drift.facts "
            f"{version}` says why."
        )
    return found
