"""How bad a site is: whether a CPU gets there, what happens to it there, and who handles it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from conformance.drift.behaviours import Answer, Behaviours
from conformance.drift.facts import Facts
from conformance.drift.model import Severity
from conformance.drift.side import Cover, Side, split_step
from conformance.surface.model import Row

_SOME = (
    (r"vllm\.(model_executor\.)?models\.", "a model of its own kind"),
    (r"vllm\.model_executor\.layers\.quantization", "a quantized model"),
    (r"vllm\.model_executor\.(layers|kernels|warmup|offloader)", "a model that has such a layer"),
    (r"vllm\.lora\.", "LoRA"),
    (
        r"vllm\.v1\.attention\.(backends\.(?!cpu|utils|registry)|ops)",
        "an attention backend of its own",
    ),
    (r"vllm\.distributed\.(?!parallel_state|utils|communication_op)", "a distributed option"),
    (r"vllm\.(third_party|device_allocator|profiler|usage|v1\.hisparse)", "an option of its own"),
    (r"vllm\.v1\.(kv_offload|simple_kv_offload)", "offloading of the KV cache"),
    (r"vllm\.v1\.worker\.(gpu_ubatch|gpu\.ubatch|ubatch)", "microbatches"),
    (r"vllm\.v1\.worker\.gpu\.(mm|pool|lora)", "a model of its own kind"),
    (r"vllm\.v1\.worker\.(mamba_utils|gpu\.model_states\.mamba)", "a Mamba model"),
)
_SPECIAL = tuple((re.compile(pattern), what) for pattern, what in _SOME)
"""Modules that only some models or options lead to, and which."""
_OF_STATE = re.compile(
    r"self\.\w+ is (not )?None( (and|or) self\.\w+ is (not )?None)*: nothing decides"
)
"""Reasons that say what was set up, and nothing of the hardware: they keep no CPU away."""
_MAKERS = {
    "torch.Stream": ("torch.accelerator.current_stream",),
    "torch.cuda.DeviceProperties": ("torch.cuda.get_device_properties",),
    "torch.cuda.Stream": ("torch.cuda.current_stream", "torch.cuda.default_stream"),
}
"""What gives an object beside its class."""
_STEPS = frozenset({"execute", "sample"})
"""What every request goes through: a site that is reached there is no matter of a warm-up only."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a site comes to."""

    severity: Severity
    host: str
    """What a host without an accelerator does with the attribute."""
    because: str
    """The end of a sentence: why it is as bad, and no worse."""
    upstream: Cover
    ours: Cover


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges sites of one vLLM; ``facts`` and ``ours`` are of it, too."""

    vllm: str
    facts: Facts | None
    ours: Side | None
    behaviours: Behaviours
    runner: str = ""
    """Whose runner ``ours`` is, if not this project's: then it is what decides how bad a site is,
    and not vLLM's own CPU side."""

    _known: dict[int, Verdict] = field(default_factory=dict, repr=False, compare=False)
    """By the row's id: rows outlive the comparison, and hashing one takes as long as judging it."""

    @property
    def subject(self) -> str:
        """What a sentence calls the runner that decides."""
        return self.runner or "vLLM's own CPU runner"

    @property
    def torch(self) -> str | None:
        """The torch that this vLLM pins, if that is known."""
        return self.facts.torch if self.facts is not None else None

    def of(self, row: Row) -> Verdict:
        """Return what a site comes to."""
        verdict = self._known.get(id(row))
        if verdict is None:
            verdict = self._known[id(row)] = self._judged(row)
        return verdict

    def _judged(self, row: Row) -> Verdict:
        upstream, ours = self.upstream(row), self.cover(self.ours, row)
        breaks, host = self.breaks(row)
        severity, because = self._severity(row, breaks, ours if self.runner else upstream)
        return Verdict(severity, host, because, upstream, ours)

    def upstream(self, row: Row) -> Cover:
        """What vLLM's own CPU side does; the inventory says what no facts say."""
        words = {
            "rebound": Cover("rebound", "it binds the name anew"),
            "overridden": Cover("overridden", "it replaces a method of the way there"),
            "none": Cover("none", "it does nothing about it"),
        }
        if self.facts is None:
            return words[row.upstream]
        cover = self.facts.upstream.cover(row)
        return words[row.upstream] if cover.state == "none" and row.upstream != "none" else cover

    def cover(self, side: Side | None, row: Row) -> Cover:
        """What another side does."""
        return Cover("not checked", "nothing is known of it") if side is None else side.cover(row)

    def breaks(self, row: Row) -> tuple[bool | None, str]:
        """Whether a site raises on a host without an accelerator (None: not known), and how."""
        if row.attribute.startswith("triton:"):
            if of_v2(row):
                return False, "the V2 runner needs a Triton that compiles kernels for the CPU"
            return True, "without a Triton for the CPU the launch raises TypeError"
        answer: Answer = self.behaviours.of(row.attribute, self.torch)
        if answer.behaviour is None:
            return None, answer.text
        if row.kind == "read" and answer.behaviour.exists and answer.behaviour.how.endswith(")"):
            return False, "it is only named here, and not called"
        return answer.behaviour.breaks, answer.text

    def _severity(self, row: Row, breaks: bool | None, cover: Cover) -> tuple[Severity, str]:
        if row.on_cpu == "false":
            return "note", f"no CPU gets there: {row.reason}"
        if not self.runner and self.has_no_v2 and of_v2(row):
            return "note", "this vLLM has no V2 runner for CPUs"
        refused = self.refused(row)
        if refused is not None:
            return "note", f"{self.subject} refuses to be made with a {refused}"
        if breaks is False:
            return "note", "it does no harm on a CPU"
        if cover.handled:
            return "note", f"{self.subject} handles it: {cover.text}"
        if self._cannot_be_had(row.attribute):
            owner = row.attribute.rpartition(".")[0]
            return (
                "note",
                f"no {owner} can be had on a CPU, so that nothing gets to use its members",
            )
        if breaks is None:
            return "warning", "what it does on a CPU is not measured"
        if row.on_cpu == "unknown" and not _OF_STATE.match(row.reason):
            return "warning", f"whether a CPU gets there is not known: {row.reason}"
        if row.tier == "by-name":
            return "warning", "the way there is known by a method's name only"
        special = needs(row)
        if special is not None:
            return "warning", f"only {special} leads there"
        if cover.state == "in part" and not _STEPS & set(row.contexts):
            return "warning", f"{self.subject} handles one way to it: {cover.text}"
        return "error", f"a CPU gets there, and {self.subject} does not handle it: {cover.text}"

    def refused(self, row: Row) -> str | None:
        """What a site needs that the runner that decides refuses; None if there is nothing."""
        if self.runner or self.facts is None:
            return None
        return self.facts.upstream.refused(row)

    def _cannot_be_had(self, attribute: str) -> bool:
        """Whether it is a member of an object that raises when it is made, and that nobody makes.

        Making it, or asking for it, is a site of its own.
        """
        owner, _, member = attribute.rpartition(".")
        makers = (owner, *_MAKERS.get(owner, ()))
        if not owner.rpartition(".")[2][:1].isupper() or member.startswith("_"):
            return False
        side = self.ours if self.runner else self.facts.upstream if self.facts else None
        if side is None or any(side.rebinds(maker) for maker in makers):
            return False
        answers = [self.behaviours.of(maker, self.torch).behaviour for maker in makers]
        known = [answer for answer in answers if answer is not None]
        return bool(known) and all(answer.breaks for answer in known)

    @property
    def has_no_v2(self) -> bool:
        """Whether this vLLM has no V2 runner for CPUs, as far as its source says."""
        return self.facts is not None and "v2" not in self.facts.upstream.overrides


def of_v2(row: Row) -> bool:
    """Whether only the V2 runner is meant: on a CPU it has a Triton that compiles; V1 has not."""
    return row.generation == "v2"


def needs(row: Row) -> str | None:
    """What has to be asked for so that the chain of a site is taken; None for the common path."""
    for step in row.chain:
        module = split_step(step)[0]
        for pattern, what in _SPECIAL:
            if pattern.match(module):
                return what
    return None
