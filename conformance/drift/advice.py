"""What to do about a finding: one or two sentences that say who edits what."""

from __future__ import annotations

from conformance.drift.judging import Verdict
from conformance.drift.model import Severity
from conformance.surface.model import Row


def advice(severity: Severity, row: Row, verdict: Verdict, runner: str = "") -> str:
    """Say what to do about a site; ``runner`` is whose business it is, if not upstream's."""
    if row.on_cpu == "false":
        return (
            "Nothing to do on a CPU; a runner of another platform that inherits this code has to "
            "cover it."
        )
    if severity == "note":
        return "Nothing to do."
    if runner:
        method = row.function.rpartition(".")[2]
        return (
            f"{runner}: bind {row.attribute} anew, or override {method}, where the platform's "
            "torch does not do by itself what CUDA's does."
        )
    return " ".join(part for part in (_upstream(row, verdict), _ours(row, verdict)) if part)


def _upstream(row: Row, verdict: Verdict) -> str:
    name = row.attribute
    match verdict.upstream.state:
        case "incomplete":
            return f"Upstream: give the stand-in the member {name.rpartition('.')[2]}."
        case "refused":
            return (
                f"Upstream: let the stand-in take what the call passes ({verdict.upstream.text})."
            )
        case "for construction":
            return f"Upstream: bind {name} for good, and not only while the runner is made."
        case "unread":
            return "Upstream: bind the name that the launch reads."
        case "in part" if not name.startswith("triton:"):
            return "Upstream: see which way a CPU takes, and bind the name if it is another one."
        case _:
            pass
    if name.startswith("triton:"):
        return f"Upstream: register a counterpart of {name[7:]} for the CPU."
    if "=" in name:
        return f"Upstream: ask the platform before passing {name}."
    return (
        f"Upstream: bind {name} anew on the CPU side, or ask the platform before "
        f"{row.function.rpartition('.')[2]} uses it."
    )


def _ours(row: Row, verdict: Verdict) -> str:
    cover = verdict.ours
    if cover.state == "not checked":
        return ""
    if cover.handled:
        return f"Here: covered ({cover.text}); --worker-cls serves with it."
    match cover.state:
        case "incomplete" | "refused":
            return f"Here: widen the stand-in ({cover.text})."
        case _ if row.attribute.startswith("triton:"):
            return "Here: write the kernel in runner_under_test/kernels, and list it there."
        case _:
            return f"Here: add a patch for {row.attribute}, and a clause that fails without it."
