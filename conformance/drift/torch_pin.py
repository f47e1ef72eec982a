"""Findings about torch: what the one that the new version pins does otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conformance.drift.advice import advice
from conformance.drift.judging import Judge
from conformance.drift.model import Finding, Severity, places, rank
from conformance.drift.pairing import is_use
from conformance.surface.model import Row


def findings(new: Sequence[Row], before: Judge, after: Judge) -> Iterator[Finding]:
    """Compare the measured behaviours of the two torches, for every name that is used."""
    old_table = before.behaviours.table(before.torch)
    new_table = after.behaviours.table(after.torch)
    if old_table is None or new_table is None or old_table is new_table:
        return
    uses: dict[str, list[Row]] = {}
    for row in new:
        if is_use(row) and row.on_cpu != "false":
            uses.setdefault(row.attribute, []).append(row)
    for attribute, rows in sorted(uses.items()):
        then, now = old_table.attributes.get(attribute), new_table.attributes.get(attribute)
        if then is None or now is None:
            continue
        if (then.breaks, then.raises, then.exists) == (now.breaks, now.raises, now.exists):
            continue
        first = min(rows, key=lambda row: (rank(after.of(row).severity), row.key))
        verdict = after.of(first)
        severity: Severity = "note"
        if now.breaks and not then.breaks:
            severity = verdict.severity
        yield Finding(
            rule="TORCH",
            severity=severity,
            attribute=attribute,
            message=(
                f"{attribute} behaves otherwise: {then.text} (torch {old_table.torch}), and "
                f"{now.text} (torch {new_table.torch})."
            ),
            advice=advice(severity, first, verdict, after.runner),
            after=places(rows, first),
            generation=first.generation,
            contexts=first.contexts,
            host=verdict.host,
            upstream=verdict.upstream,
            ours=verdict.ours,
        )


def not_checked(before: Judge, after: Judge) -> Iterator[str]:
    """Say which torch is not measured."""
    if before.torch is None or after.torch is None:
        missing = [judge.vllm for judge in (before, after) if judge.torch is None]
        yield (
            f"TORCH: which torch vLLM {' and '.join(missing)} pins is not known, so that "
            "behaviours were not compared."
        )
        return
    if before.torch == after.torch:
        return
    missing = [
        judge.torch
        for judge in (before, after)
        if judge.torch is not None and judge.behaviours.table(judge.torch) is None
    ]
    if missing:
        yield (
            f"TORCH: torch {' and '.join(missing)} is not measured: `python -m "
            "conformance.drift.measure` measures the one that is installed."
        )
