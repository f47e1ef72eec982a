"""The kinds of drift, as data. Each has a pair of small vLLMs in ``tests/drift_cases/``."""

from __future__ import annotations

from conformance.drift.model import Rule

_GETS_THERE = (
    "It is an error where a CPU surely gets there on the runner's common path, what it does raises "
    "on a host without an accelerator, and vLLM's own CPU runner does not handle it; a warning "
    "where one of these is not known, or where only some models or options lead there; else a note."
)

RULES: tuple[Rule, ...] = (
    Rule(
        "ADDED",
        "newly reached",
        "error",
        "The runner reaches an attribute of the device that it did not reach, or reaches it at a "
        f"place where it did not. {_GETS_THERE}",
        "https://github.com/vllm-project/vllm/pull/25011",
    ),
    Rule(
        "MOVED",
        "another name at the same place",
        "error",
        "A place uses another attribute than before for the same end, torch.accelerator.X for "
        "torch.cuda.X above all, which may raise where the old one did nothing. "
        f"{_GETS_THERE}",
        "https://github.com/vllm-project/vllm/issues/30679",
    ),
    Rule(
        "REMOVED",
        "no longer reached",
        "note",
        "Nothing reaches an attribute any more. A stand-in for it may be of no use now.",
        "https://github.com/vllm-project/vllm/pull/39798",
    ),
    Rule(
        "CALL_SHAPE",
        "called with other arguments",
        "error",
        "A call passes arguments that it did not pass. It is an error where the stand-in of vLLM's "
        "own CPU runner does not take them on a path that a CPU surely takes.",
        "https://github.com/vllm-project/vllm/pull/47868",
    ),
    Rule(
        "CONTEXT",
        "reached in another phase",
        "error",
        "An attribute is reached in a phase in which it was not: in the shutdown above all, where "
        f"what raises ends a worker after its work is done. {_GETS_THERE}",
        "https://github.com/vllm-project/vllm/issues/41033",
    ),
    Rule(
        "GUARD",
        "a CPU gets there now",
        "error",
        "A place that was closed to a CPU is open to it: a condition of the platform changed, or "
        f"one around a call on the way. {_GETS_THERE}",
        "https://github.com/vllm-project/vllm/issues/42924",
    ),
    Rule(
        "KERNEL_ADDED",
        "a kernel is launched",
        "error",
        "The runner launches a Triton kernel that it did not launch. vLLM has no Triton on a CPU "
        "unless a backend for it is installed, and the launch of what is left of the kernel raises "
        "TypeError: somebody has to write a counterpart. It is an error on the common path of the "
        "V1 runner, where upstream has none; V2 needs a Triton that compiles for the CPU anyway.",
        "https://github.com/vllm-project/vllm/issues/37546",
    ),
    Rule(
        "KERNEL_SIGNATURE",
        "a kernel takes other arguments",
        "error",
        "A kernel has parameters, or a launch passes arguments, that the CPU's counterpart does "
        "not take. It is an error where the launch would raise.",
        "https://github.com/vllm-project/vllm/pull/41932",
    ),
    Rule(
        "OVERRIDE",
        "an overridden method changed",
        "error",
        "A method that vLLM's CPU runner or worker replaces has another signature, went away, or "
        "is called by nobody any more; or it is replaced no longer, and the GPU's runs. "
        "It is an error where a call does not fit, or where the GPU's method uses what raises.",
        "https://github.com/vllm-project/vllm/pull/28824",
    ),
    Rule(
        "PATCH_TARGET",
        "a patched name changed",
        "error",
        "A name that a CPU side binds anew is gone, is no longer what the code reads, is newly "
        "bound, or no longer bound. It is an error where the code now reads what was replaced.",
        "https://github.com/vllm-project/vllm/pull/39798",
    ),
    Rule(
        "TORCH",
        "torch behaves otherwise",
        "error",
        "The torch that the new version pins does something else with a name on the surface, on a "
        "host without an accelerator. It is an error where it raises now, on a path that a CPU "
        "surely takes and nobody handles.",
        "https://github.com/pytorch/pytorch/issues/193951",
    ),
)

BY_ID = {rule.id: rule for rule in RULES}
