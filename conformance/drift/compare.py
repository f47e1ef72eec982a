"""Two vLLMs in, their drift out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from conformance.drift import kernels, ours, overrides, pairing, sites, torch_pin
from conformance.drift.behaviours import Behaviours
from conformance.drift.facts import Facts
from conformance.drift.judging import Judge
from conformance.drift.model import Drift, Finding, Uncovered, places
from conformance.drift.rules import RULES
from conformance.drift.side import Side
from conformance.surface.model import Inventory, Row

_NEWS = ("ADDED", "MOVED", "CONTEXT", "GUARD", "KERNEL_ADDED")


@dataclass(frozen=True, slots=True)
class Version:
    """One side of a comparison: a surface, and what else is known of that vLLM."""

    inventory: Inventory
    facts: Facts | None = None
    side: Side | None = None


def compare(
    old: Version,
    new: Version,
    behaviours: Behaviours,
    *,
    generation: str = "all",
    runner: str = "",
) -> Drift:
    """Compare two vLLMs.

    ``runner`` names somebody else's runner: each version's ``side`` is what that does on it, takes
    the place of this project's, and decides how bad a finding is.
    """
    before, after = _judge(old, behaviours, runner), _judge(new, behaviours, runner)
    old_rows, new_rows = _rows(old, generation), _rows(new, generation)
    paired = pairing.pair(old_rows, new_rows)
    found = [
        *sites.findings(paired, old_rows, new_rows, before, after),
        *kernels.findings(old_rows, new_rows, before, after),
        *_of_generation(overrides.override_findings(before, after), generation),
        *overrides.target_findings(new_rows, before, after, "" if runner else ours.supported()),
        *torch_pin.findings(new_rows, before, after),
    ]
    return Drift.of(
        old.inventory.vllm,
        new.inventory.vllm,
        found,
        torch=(before.torch, after.torch),
        rules=RULES,
        not_checked=tuple(_not_checked(before, after)),
        runner=runner,
        uncovered=tuple(uncovered(new_rows, found, after)) if runner else (),
    )


def uncovered(rows: Iterable[Row], found: Iterable[Finding], judge: Judge) -> Iterator[Uncovered]:
    """What a runner leaves alone of all that its vLLM reaches: an entry for each attribute.

    Sites that no CPU reaches are left out: what only a GPU platform leads to is as closed to a
    platform that vLLM does not know.
    """
    news = {finding.attribute for finding in found if finding.after and finding.rule in _NEWS}
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if not pairing.is_use(row) or row.on_cpu == "false":
            continue
        if judge.breaks(row)[0] is not False and not judge.cover(judge.ours, row).handled:
            groups.setdefault(row.attribute, []).append(row)
    for attribute, group in groups.items():
        sure = [row for row in group if row.on_cpu == "true" and row.tier != "by-name"]
        first = min(group, key=lambda row: (row not in sure, len(row.chain), row.key))
        yield Uncovered(
            attribute,
            judge.cover(judge.ours, first),
            places(group, first),
            len(sure),
            attribute in news,
        )


def _judge(version: Version, behaviours: Behaviours, runner: str) -> Judge:
    name = version.inventory.vllm
    side = version.side if runner else ours.side(name)
    return Judge(name, version.facts, side, behaviours, runner)


def _rows(version: Version, generation: str) -> list[Row]:
    rows = pairing.by_generation(version.inventory.rows)
    return [row for row in rows if generation in ("all", row.generation)]


def _of_generation(found: Iterable[Finding], generation: str) -> Iterator[Finding]:
    for finding in found:
        if generation in ("all", finding.generation) or finding.generation == "both":
            yield finding


def _not_checked(before: Judge, after: Judge) -> Iterator[str]:
    missing = [judge.vllm for judge in (before, after) if judge.facts is None]
    if missing:
        yield (
            f"OVERRIDE, KERNEL_SIGNATURE, PATCH_TARGET: there is no source of vLLM "
            f"{' and '.join(missing)} at hand, so that what its CPU side replaces was not compared."
        )
    if after.facts is not None and after.ours is not None and not after.runner:
        unknown = [
            stand_in.target
            for stand_in in after.ours.stand_ins
            if stand_in.target.startswith("vllm.") and stand_in.target not in after.facts.targets
        ]
        if unknown:
            yield (
                f"PATCH_TARGET, KERNEL_SIGNATURE: whether vLLM {after.vllm} has "
                f"{', '.join(unknown)}: `python -m conformance.drift.facts {after.vllm}` reads it."
            )
    yield from torch_pin.not_checked(before, after)
