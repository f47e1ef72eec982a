"""Findings about kernels' signatures: whether counterparts take what the launches pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from conformance.drift.judging import Judge, needs, of_v2
from conformance.drift.model import Finding, Severity, Site, path_of, places
from conformance.drift.shapes import Shape, differences
from conformance.drift.side import Cover, Side, is_kernel
from conformance.drift.standins import StandIn
from conformance.surface.model import Call, Row

_COMPILER = frozenset(
    {"num_warps", "num_stages", "num_ctas", "maxnreg", "launch_cooperative_grid", "launch_pdl"}
)
"""Keywords of a launch that are Triton's own, and no parameters of a kernel."""


def findings(
    old: Sequence[Row], new: Sequence[Row], before: Judge, after: Judge
) -> Iterator[Finding]:
    """Compare each kernel that has a counterpart with it, in both versions."""
    if after.facts is None or after.runner:
        return
    for kernel in sorted({row.attribute for row in new if row.kind == "launch"}):
        launches = [row for row in new if row.attribute == kernel and _matters(row)]
        if not launches:
            continue
        upstream = _problems(after.facts.upstream, kernel, launches, after)
        ours = _problems(after.ours, kernel, launches, after)
        changed = _changes(kernel, before, after)
        earlier = [row for row in old if row.attribute == kernel and _matters(row)]
        known = _problems(before.facts.upstream, kernel, earlier, before) if before.facts else ()
        if before.facts is not None and not changed and set(upstream) <= set(known):
            continue
        if changed or upstream or ours:
            yield _finding(kernel, launches, earlier, changed, upstream, ours, after)


def _matters(row: Row) -> bool:
    return row.kind == "launch" and row.on_cpu != "false" and not of_v2(row)


def _problems(
    side: Side | None, kernel: str, launches: Sequence[Row], judge: Judge
) -> tuple[str, ...]:
    """Why a launch would not fit a side's counterpart; empty if it fits, or if there is none."""
    found: list[str] = []
    for stand_in in side.stand_ins if side is not None else ():
        counterpart = stand_in.shape
        if counterpart is None or not is_kernel(stand_in.target, kernel):
            continue
        target = judge.facts.targets.get(stand_in.target) if judge.facts is not None else None
        own = target.shape if target is not None else None
        if _by_name(stand_in, side):
            if own is not None:
                found += _mapped(own, counterpart, positional=side is not judge.ours)
            continue
        for row in launches:
            if row.call is None or own is None:
                continue
            # What the kernel itself would not take is no launch of it, but a call of its owner.
            if own.refuses(_without_options(row.call)) is None:
                refused = counterpart.refuses(row.call)
                if refused is not None:
                    found.append(refused)
    return tuple(dict.fromkeys(found))


def _by_name(stand_in: StandIn, side: Side | None) -> bool:
    """Whether the launch's arguments are bound by the kernel's own parameters first."""
    return stand_in.where.startswith("vllm.platforms.") or (
        side is not None and side.name == "ours"
    )


def _mapped(kernel: Shape, counterpart: Shape, *, positional: bool) -> Iterator[str]:
    """Why arguments that are bound to the kernel's parameters do not fit the counterpart."""
    names, taken = set(kernel.all_names), set(counterpart.all_names)
    if positional and names != taken:
        # Where the names differ they are passed on in the kernel's order.
        count, most = len(kernel.names), len(counterpart.names)
        if count > most:
            yield f"it takes {most} arguments, and the kernel has {count} parameters"
        return
    if not counterpart.others and names - taken:
        yield f"it does not take {', '.join(sorted(names - taken))}"
    required = {*counterpart.names[: counterpart.required], *counterpart.needed}
    if required - names:
        yield f"it needs {', '.join(sorted(required - names))}, which the kernel no longer has"


def _without_options(call: Call) -> Call:
    kept = [text for text in call.keywords if text.partition("=")[0] not in _COMPILER]
    return replace(call, keywords=tuple(kept))


def _changes(kernel: str, before: Judge, after: Judge) -> tuple[str, ...]:
    """What changed in the kernel's own signature, as far as both versions' facts have it."""
    if before.facts is None or after.facts is None:
        return ()
    for target, now in after.facts.targets.items():
        then = before.facts.targets.get(target)
        if is_kernel(target, kernel) and then is not None and then.shape and now.shape:
            return differences(then.shape, now.shape)
    return ()


def _finding(
    kernel: str,
    launches: Sequence[Row],
    earlier: Sequence[Row],
    changed: tuple[str, ...],
    upstream: tuple[str, ...],
    ours: tuple[str, ...],
    after: Judge,
) -> Finding:
    name = kernel.removeprefix("triton:")
    common = [row for row in launches if row.on_cpu == "true" and needs(row) is None]
    severity: Severity = "note"
    parts = [f"Kernel {name}: {'; '.join(changed)}" if changed else f"Kernel {name} is launched"]
    if upstream:
        severity = "error" if common else "warning"
        parts.append(f"vLLM's counterpart for the CPU does not fit: {'; '.join(upstream)}")
    if ours:
        severity = "warning" if severity == "note" else severity
        parts.append(f"ours does not fit: {'; '.join(ours)}")
    if not upstream and not ours:
        parts.append("the counterparts take what it is launched with")
    first = (common or list(launches))[0]
    verdict = after.of(first)
    todo = []
    if upstream:
        todo.append(f"Upstream: let the counterpart of {name} take what the launch passes.")
    if ours:
        todo.append(f"Here: change the implementation of {name} in runner_under_test/kernels.")
    return Finding(
        rule="KERNEL_SIGNATURE",
        severity=severity,
        attribute=kernel,
        message=f"{'; '.join(parts)}.",
        advice=" ".join(todo) or "Nothing to do.",
        before=places(earlier),
        after=places(launches, first),
        generation=first.generation,
        contexts=first.contexts,
        host=verdict.host,
        upstream=Cover("refused", "; ".join(upstream)) if upstream else verdict.upstream,
        ours=Cover("refused", "; ".join(ours)) if ours else verdict.ours,
    )


def place(where: str, function: str = "") -> Site:
    """The site of ``module:line``."""
    module, _, line = where.partition(":")
    return Site(path_of(module), int(line) if line.isdecimal() else 0, function)
