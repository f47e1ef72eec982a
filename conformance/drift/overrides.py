"""Findings about the methods that CPU runners replace, and about the names that they bind anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conformance.drift.facts import Facts
from conformance.drift.files import is_in
from conformance.drift.judging import Judge, of_v2
from conformance.drift.kernels import place
from conformance.drift.model import Finding, Severity, places
from conformance.drift.shapes import differences
from conformance.drift.side import Cover, Override, Side, is_kernel
from conformance.drift.standins import StandIn
from conformance.surface.model import Row

_OWNERS = {
    "v1": "vllm.v1.worker.gpu_model_runner.GPUModelRunner",
    "v2": "vllm.v1.worker.gpu.model_runner.GPUModelRunner",
    "worker": "vllm.v1.worker.gpu_worker.Worker",
}


def override_findings(before: Judge, after: Judge) -> Iterator[Finding]:
    """Compare what the runner and worker that are judged replace, in both versions."""
    was, now = _judged(before), _judged(after)
    if was is None or now is None:
        return
    who = after.runner or "Upstream"
    for role, methods in now.overrides.items():
        for method, override in methods.items():
            then = was.overrides.get(role, {}).get(method)
            change = _change(method, then, override, who)
            if change is not None:
                yield _override(role, method, change, then, override, after)


def _judged(judge: Judge) -> Side | None:
    if judge.runner:
        return judge.ours
    return judge.facts.upstream if judge.facts is not None else None


def _change(
    method: str, then: Override | None, now: Override, who: str
) -> tuple[Severity, str, str] | None:
    """How bad, what changed and what to do; None where nothing did."""
    known = then.refused if then is not None else ()
    refused = [text for text in now.refused if _plain(text) not in {_plain(t) for t in known}]
    if refused:
        return (
            "error",
            f"the override {method} no longer fits: {'; '.join(refused)}",
            f"{who}: give {method} the signature of what it replaces, or of what it calls.",
        )
    if then is None or then.base is None:
        return None
    if now.base is None:
        return (
            "warning",
            f"the method that the override {method} replaces is gone, and what took its place runs",
            f"{who}: see what took over from {method}, and whether it has to be replaced.",
        )
    if then.called and not now.called:
        return (
            "warning",
            f"nothing calls {method} any more, which is overridden",
            f"{who}: see what took over from {method}, and whether it has to be replaced.",
        )
    changes = differences(then.base, now.base)
    if changes:
        behind = [n for n in now.base.all_names if n not in now.shape.all_names]
        lags = bool(behind) and not now.shape.others
        return (
            "warning" if lags else "note",
            f"the method that the override {method} replaces changed: {'; '.join(changes)}"
            + (f", and the override does not take {', '.join(behind)}" if lags else ""),
            f"{who}: let {method} take {', '.join(behind)}." if lags else "Nothing to do.",
        )
    return None


def _plain(text: str) -> str:
    """A sentence without the place in it, whose line moves."""
    return text.partition(" calls it, and ")[2] or text


def _override(
    role: str,
    method: str,
    change: tuple[Severity, str, str],
    then: Override | None,
    now: Override,
    after: Judge,
) -> Finding:
    severity, message, advice = change
    own = Cover("overridden", f"it replaces {method} ({now.where})")
    other = Cover("not checked", "this rule looks at one runner's methods")
    before = () if then is None else (place(then.base_where or then.where, method),)
    where = now.base_where or now.where
    return Finding(
        rule="OVERRIDE",
        severity=severity,
        attribute=f"{_OWNERS[role]}.{method}",
        message=f"{message[0].upper()}{message[1:]}.",
        advice=advice,
        before=before,
        after=(place(where, method),),
        generation=role if role in ("v1", "v2") else "both",
        host="",
        upstream=other if after.runner else own,
        ours=own if after.runner else other,
    )


def target_findings(
    new: Sequence[Row], before: Judge, after: Judge, supported: str
) -> Iterator[Finding]:
    """Compare the names of vLLM that either CPU side binds anew with what is there."""
    if after.facts is None:
        return
    if after.runner:
        return
    yield from _gone(after.facts.upstream, before, after, after.facts, "upstream", "")
    if after.ours is not None:
        yield from _gone(after.ours, before, after, after.facts, "ours", supported)
    was = before.facts.upstream.unread if before.facts is not None else frozenset()
    for kernel in sorted(after.facts.upstream.unread - was):
        launches = [
            row
            for row in new
            if row.attribute == kernel and row.on_cpu != "false" and not of_v2(row)
        ]
        bound = [s for s in after.facts.upstream.stand_ins if is_kernel(s.target, kernel)]
        if launches and bound:
            yield _unread(kernel, launches, bound[0], after)


def _gone(
    side: Side, before: Judge, after: Judge, facts: Facts, who: str, supported: str
) -> Iterator[Finding]:
    for stand_in in side.stand_ins:
        now = facts.targets.get(stand_in.target)
        then = before.facts.targets.get(stand_in.target) if before.facts is not None else None
        if now is None or now.exists or (then is not None and not then.exists):
            continue
        registered = stand_in.where.startswith("vllm.platforms.")
        if who == "ours":
            tested = is_in(after.vllm, supported)
            severity: Severity = "error" if tested else "warning"
            message = (
                f"{stand_in.target}, which runner_under_test binds anew, is gone: its register "
                "refuses to be applied"
            )
            advice = f"Here: correct the patch's target ({stand_in.where}), or its versions."
        else:
            severity = "error" if registered else "warning"
            message = f"{stand_in.target}, which vLLM's own CPU side binds anew, is gone" + (
                ": its registration raises" if registered else ", and what took its place runs"
            )
            advice = f"Upstream: bind what took the name's place ({stand_in.where})."
        yield Finding(
            rule="PATCH_TARGET",
            severity=severity,
            attribute=stand_in.target,
            message=f"{message}.",
            advice=advice,
            after=(place(stand_in.where),),
            host="a name that is not there is bound, and nothing reads it",
            upstream=Cover("unread", "the name is gone") if who == "upstream" else _NONE,
            ours=Cover("unread", "the name is gone") if who == "ours" else _NONE,
        )


_NONE = Cover("none", "it does nothing about it")


def _unread(kernel: str, launches: Sequence[Row], bound: StandIn, after: Judge) -> Finding:
    on_cpu = [row for row in launches if row.on_cpu == "true"]
    first = (on_cpu or list(launches))[0]
    verdict = after.of(first)
    return Finding(
        rule="PATCH_TARGET",
        severity="error" if on_cpu else "warning",
        attribute=kernel,
        message=(
            f"Kernel {kernel[7:]} is bound for the CPU at {bound.where}, and no launch reads that "
            "name any more: the launch of the original raises TypeError."
        ),
        advice="Upstream: bind the object that the launch reads the kernel from.",
        after=places(launches, first),
        generation=first.generation,
        contexts=first.contexts,
        host=verdict.host,
        upstream=Cover("unread", f"it is bound at {bound.where}, where no launch reads it"),
        ours=verdict.ours,
    )
