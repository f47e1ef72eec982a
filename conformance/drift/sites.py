"""Findings about sites: what came, moved, went, is called otherwise, or is reached elsewhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from conformance.drift.advice import advice
from conformance.drift.judging import Judge, Verdict
from conformance.drift.model import Finding, Severity, places, rank
from conformance.drift.pairing import Pair, Pairing, is_use
from conformance.drift.side import Cover
from conformance.surface.model import CONTEXTS, Call, Row

_NO_PHASE = frozenset({"stream", "async"})
"""Contexts that say how something is reached, and not when."""


@dataclass(slots=True)
class _Group:
    """Sites that make one finding."""

    rule: str
    attribute: str
    was: str
    change: str
    """What changed, as the beginning of a sentence."""
    severity: Severity
    verdict: Verdict
    contexts: set[str] = field(default_factory=set)
    before: list[Row] = field(default_factory=list)
    after: list[Row] = field(default_factory=list)
    was_upstream: str = ""


def findings(
    pairing: Pairing, old: Iterable[Row], new: Iterable[Row], before: Judge, after: Judge
) -> Iterator[Finding]:
    """Return the findings about the sites of two versions; ``old`` and ``new`` are all rows."""
    return _Sites(pairing, [*old], [*new], before, after).findings()


class _Sites:
    def __init__(
        self, pairing: Pairing, old: list[Row], new: list[Row], before: Judge, after: Judge
    ) -> None:
        self.pairing = pairing
        self.before = before
        self.after = after
        self.old = [row for row in old if is_use(row)]
        self.new = [row for row in new if is_use(row)]
        # The first V2 runner for CPUs makes news of what V2 reached before.
        self._first_v2 = before.has_no_v2 and not after.has_no_v2 and not after.runner
        self._of_v1 = {
            _place(row) for row in self.new if row.generation == "v1" and row.on_cpu != "false"
        }
        self.known = {row.attribute for row in self.old}
        # By generation: what one runner reached says nothing of the other.
        self.contexts: dict[tuple[str, str], set[str]] = defaultdict(set)
        for row in self.old:
            if row.on_cpu != "false":
                self.contexts[row.attribute, row.generation] |= set(row.contexts)
        self.groups: dict[tuple[str, ...], _Group] = {}

    def findings(self) -> Iterator[Finding]:
        for row in self.pairing.come:
            self._come(row)
        for pair in self.pairing.pairs:
            self._changed(pair)
        for group in self.groups.values():
            yield self._finding(group)
        yield from self._removed()

    def _come(self, row: Row) -> None:
        on_cpu = row.on_cpu != "false"
        reached = self._reached(row)
        if row.attribute not in self.known:
            rule = "KERNEL_ADDED" if row.attribute.startswith("triton:") else "ADDED"
            self._add(rule, "new", f"{_name(row)} is reached, which nothing did before", None, row)
        elif on_cpu and not reached:
            change = f"{_name(row)} is reached where a CPU may get, as it was not before"
            self._add("ADDED", "cpu", change, None, row)
        elif on_cpu and (fresh := _fresh(row, reached)):
            change = f"{_name(row)} is reached in {_and(fresh)}, where it was not before"
            self._add("CONTEXT", ",".join(fresh), change, None, row, fresh)
        else:
            self._add("ADDED", "place", f"{_name(row)} is used in another place too", None, row)

    def _changed(self, pair: Pair) -> None:
        before, after = pair.before, pair.after
        if pair.moved:
            change = f"{_name(after)} is used where {before.attribute} was"
            # What broke there before is no news.
            broke = self.before.of(before).severity == "error"
            if broke:
                change += ", which broke there too"
            self._add(
                "MOVED", before.attribute, change, before, after,
                severity="note" if broke else None,
            )  # fmt: skip
            return
        if (
            self._first_v2
            and after.generation == "v2"
            and after.on_cpu != "false"
            and (_place(after) not in self._of_v1)
        ):
            change = f"{_name(after)} is reached by the V2 runner, which CPUs have now"
            self._add("GUARD", "v2", change, before, after)
        elif after.on_cpu != "false" and self._is_admitted(before, after):
            name = self.before.refused(before)
            change = f"{_name(after)} is reached with a {name}, which is refused no longer"
            self._add("GUARD", f"admitted {name}", change, before, after)
        elif before.on_cpu == "false" and after.on_cpu != "false":
            change = f"{_name(after)} is reached where a CPU did not get before ({before.reason})"
            self._add("GUARD", "", change, before, after)
        elif after.on_cpu != "false":
            fresh = _fresh(after, set(before.contexts) | self._reached(after))
            if fresh:
                change = f"{_name(after)} is reached in {_and(fresh)}, where it was not before"
                self._add("CONTEXT", ",".join(fresh), change, before, after, fresh)
            else:
                self._handling(pair)
        self._call(pair)

    def _call(self, pair: Pair) -> None:
        before, after = pair.before, pair.after
        # What a launch passes is the business of the kernels' rule, and an argument is itself one.
        if after.kind != "call" or before.call is None or after.call is None:
            return
        if after.attribute.startswith("triton:"):
            return
        changes = list(_shape_changes(before.call, after.call))
        if not changes:
            return
        verdict = self.after.of(after)
        refused = [
            f"{who} does not fit it: {cover.text}"
            for who, cover in (("vLLM's stand-in", verdict.upstream), ("ours", verdict.ours))
            if cover.state == "refused"
        ]
        severity: Severity = "note"
        if verdict.upstream.state == "refused":
            severity = verdict.severity
        elif verdict.ours.state == "refused" and after.on_cpu == "true":
            severity = "warning"
        change = f"{_name(after)} is called {_and(changes)}"
        if refused:
            change += f"; {'; '.join(refused)}"
        self._add("CALL_SHAPE", "; ".join(changes), change, before, after, severity=severity)

    def _handling(self, pair: Pair) -> None:
        """What upstream's CPU side came to handle, or no longer handles."""
        before, after = pair.before, pair.after
        if after.on_cpu == "false" or self.after.breaks(after)[0] is False:
            return
        was, now = self.before.upstream(before), self.after.upstream(after)
        # One of several ways says too little about what changed; a kernel that is bound where
        # nothing reads it has a finding of its own.
        if was.handled == now.handled or {"in part", "unread"} & {was.state, now.state}:
            return
        rule = "OVERRIDE" if "overridden" in (was.state, now.state) else "PATCH_TARGET"
        if now.handled:
            change = f"{_name(after)} is handled by vLLM's own CPU runner, as it was not before"
        else:
            change = f"{_name(after)} is no longer handled by vLLM's own CPU runner ({was.text})"
        self._add(rule, f"{was.state}->{now.state}", change, before, after, was=was)

    def _is_admitted(self, before: Row, after: Row) -> bool:
        return self.before.refused(before) is not None and self.after.refused(after) is None

    def _reached(self, row: Row) -> set[str]:
        """The phases in which a CPU got to the attribute, with the same runner."""
        return self.contexts.get((row.attribute, row.generation), set())

    def _add(
        self,
        rule: str,
        kind: str,
        change: str,
        before: Row | None,
        after: Row,
        contexts: Iterable[str] = (),
        *,
        severity: Severity | None = None,
        was: Cover | None = None,
    ) -> None:
        verdict = self.after.of(after)
        found = severity or verdict.severity
        key = (rule, after.attribute, kind, found, verdict.upstream.state)
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = _Group(
                rule, after.attribute, before.attribute if before else "", change, found, verdict,
                was_upstream=was.text if was is not None else "",
            )  # fmt: skip
        group.contexts |= set(contexts or after.contexts)
        group.after.append(after)
        if before is not None:
            group.before.append(before)

    def _finding(self, group: _Group) -> Finding:
        first = self._best(group.after)
        verdict = self.after.of(first)
        return Finding(
            rule=group.rule,
            severity=group.severity,
            attribute=group.attribute,
            message=_sentence(group.change, verdict),
            advice=advice(group.severity, first, verdict, self.after.runner),
            before=places(group.before),
            after=places(group.after, first),
            before_attribute=group.was if group.was != group.attribute else "",
            generation=_label(group.after),
            contexts=_order(group.contexts),
            host=verdict.host,
            upstream=verdict.upstream,
            ours=verdict.ours,
            was_upstream=group.was_upstream,
        )

    def _best(self, rows: list[Row]) -> Row:
        """The site to tell of: the worst, with the best known and shortest way."""
        tiers = ("direct", "resolved", "by-name")
        return min(
            rows,
            key=lambda r: (
                rank(self.after.of(r).severity),
                tiers.index(r.tier),
                len(r.chain),
                r.key,
            ),
        )

    def _removed(self) -> Iterator[Finding]:
        left = {row.attribute for row in self.new}
        gone: dict[str, list[Row]] = defaultdict(list)
        moved = {pair.before.attribute for pair in self.pairing.pairs if pair.moved}
        for row in self.pairing.gone:
            if row.attribute not in left and row.attribute not in moved:
                gone[row.attribute].append(row)
        for attribute, rows in gone.items():
            sides = {self.after.runner or "runner_under_test": self.after.ours}
            if self.after.facts is not None:
                sides["vLLM's own CPU runner"] = self.after.facts.upstream
            binders = [who for who, side in sides.items() if side and side.rebinds(attribute)]
            still = f", and {_and(binders)} still bind it anew" if binders else ""
            yield Finding(
                rule="REMOVED",
                severity="note",
                attribute=attribute,
                message=f"{attribute} is no longer reached{still}.",
                advice="See whether the stand-in is of use to anything else, and drop it if not."
                if binders
                else "Nothing to do.",
                before=places(rows),
                generation=_label(rows),
                contexts=_order({context for row in rows for context in row.contexts}),
                host=self.after.breaks(rows[0])[1],
                upstream=self.after.upstream(rows[0]),
                ours=self.after.cover(self.after.ours, rows[0]),
            )


def _shape_changes(before: Call, after: Call) -> Iterator[str]:
    old = {text.partition("=")[0] for text in before.keywords}
    new = {text.partition("=")[0] for text in after.keywords}
    if new - old:
        yield f"with {_and(sorted(new - old))}"
    if old - new:
        yield f"without {_and(sorted(old - new))}"
    if len(before.positional) != len(after.positional):
        yield f"with {len(after.positional)} positional arguments for {len(before.positional)}"


def _sentence(change: str, verdict: Verdict) -> str:
    host = f"{verdict.host}; " if verdict.severity != "note" and verdict.host else ""
    return f"{change}: {host}{verdict.because}."


def _name(row: Row) -> str:
    return f"Kernel {row.attribute[7:]}" if row.attribute.startswith("triton:") else row.attribute


def _fresh(row: Row, known: set[str]) -> tuple[str, ...]:
    """The phases of a row that are new; a counterpart of a kernel serves in every phase."""
    if row.attribute.startswith("triton:"):
        return ()
    return _order(set(row.contexts) - known - _NO_PHASE)


def _place(row: Row) -> tuple[str, int, str]:
    return row.module, row.line, row.attribute


def _label(rows: Iterable[Row]) -> str:
    found = {row.generation for row in rows}
    return found.pop() if len(found) == 1 else "both"


def _order(contexts: set[str]) -> tuple[str, ...]:
    return tuple(context for context in CONTEXTS if context in contexts)


def _and(texts: Iterable[str]) -> str:
    *most, last = texts
    return f"{', '.join(most)} and {last}" if most else last
