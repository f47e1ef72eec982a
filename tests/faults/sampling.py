"""Faults of sampling, one class each: what a runner draws, cuts, forgets, or lets through.

An engine takes seconds, so one worker has them all, and each is on while requests name it.
`tests/test_sampling_faults.py` says which requests, and which check must find it. They rebind
functions of vLLM in their own process, which ends with the run.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from runner_under_test.worker import CPUWorker

_SAMPLER = "vllm.v1.sample.sampler"
_CUTS = "vllm.v1.sample.ops.topk_topp_sampler"
_REJECTION = "vllm.v1.sample.rejection_sampler"
_BUILTIN = "vllm.v1.sample.logits_processor.builtin"
_RUNNER = "vllm.v1.worker.gpu_model_runner"


class Fault:
    """Something that a runner does wrong while requests name it."""

    once_the_runner_is_made = False
    """Whether it takes the place of what the runner itself has rebound."""

    def plant(self) -> None:
        """Rebind, with `replace`."""
        raise NotImplementedError

    def is_on(self) -> bool:
        """Whether the requests that came last name it."""
        return Faulty.on == type(self).__name__

    def replace(self, path: str, build: Callable[[Any], Any]) -> None:
        """Call what ``build`` makes of a name of a module, or of a class in it, where it is on."""
        module, _, names = path.partition(":")
        holder: Any = importlib.import_module(module)
        *owners, name = names.split(".")
        for owner in owners:
            holder = getattr(holder, owner)
        static = isinstance(vars(holder).get(name), staticmethod)
        original = getattr(holder, name)
        made = build(original)

        @functools.wraps(original)
        def either(*args: Any, **named: Any) -> Any:
            return (made if self.is_on() else original)(*args, **named)

        setattr(holder, name, staticmethod(either) if static else either)


class Faulty(CPUWorker):
    """Has every fault of this module, each while requests name it in ``extra_args``."""

    on: ClassVar[str | None] = None
    """The fault that the newest requests name."""

    def init_device(self) -> None:
        """Plant the faults, and set up the device."""
        faults = [fault() for fault in Fault.__subclasses__()]
        for fault in faults:
            if not fault.once_the_runner_is_made:
                fault.plant()
        super().init_device()
        for fault in faults:
            if fault.once_the_runner_is_made:
                fault.plant()

    def execute_model(self, scheduler_output: Any) -> Any:
        """Turn on what new requests name."""
        for new in scheduler_output.scheduled_new_reqs:
            Faulty.on = named_by(new.sampling_params)
        return super().execute_model(scheduler_output)


def named_by(sampling_params: Any) -> str | None:
    """The fault that a request names."""
    given: dict[str, str] = sampling_params.extra_args or {}
    return given.get("fault")


class IgnoresTemperature(Fault):
    """Draws at temperature 1."""

    def plant(self) -> None:
        """Leave the logits as they are."""
        self.replace(
            f"{_SAMPLER}:Sampler.apply_temperature",
            lambda _: lambda logits, temperature, all_random: logits,
        )


def _change_cuts(fault: Fault, change: Callable[..., tuple[Any, Any]]) -> None:
    """Change top-k and top-p before they are applied, wherever they are."""

    def build(original: Any) -> Any:
        return lambda logits, k, p: original(logits, *change(logits, k, p))

    fault.replace(f"{_CUTS}:apply_top_k_top_p", build)
    fault.replace(f"{_REJECTION}:apply_top_k_top_p", build)


class CutsOneTooMany(Fault):
    """Leaves k - 1 tokens where k are asked for."""

    def plant(self) -> None:
        """Take one from k, where there are two and it is not off."""
        _change_cuts(
            self,
            lambda logits, k, p: (
                k if k is None else torch.where((k > 1) & (k < logits.shape[1]), k - 1, k),
                p,
            ),
        )


class LeavesOneTooMany(Fault):
    """Leaves k + 1 tokens where k are asked for."""

    def plant(self) -> None:
        """Add one to k, where it is not off."""
        _change_cuts(
            self,
            lambda logits, k, p: (
                k if k is None else torch.where(k < logits.shape[1], k + 1, k),
                p,
            ),
        )


class DoesNotRenormalise(Fault):
    """Reports what a token had before top-k and top-p cut the others."""

    def plant(self) -> None:
        """Take the mass of what was cut away into account."""

        def build(original: Any) -> Any:
            @functools.wraps(original)
            def sampled(self: Any, logits: Any, generators: Any, k: Any, p: Any) -> Any:
                whole = logits.logsumexp(dim=-1, keepdim=True)
                tokens, processed = original(self, logits, generators, k, p)
                if processed is not None:
                    cut = processed > -torch.inf
                    processed = torch.where(cut, logits - whole, processed)
                return tokens, processed

            return sampled

        self.replace(f"{_CUTS}:TopKTopPSampler.forward_cpu", build)


class IgnoresTopP(Fault):
    """Leaves every token, whatever mass was asked for."""

    def plant(self) -> None:
        """Apply no p."""
        _change_cuts(self, lambda logits, k, p: (k, None))


class IgnoresMinP(Fault):
    """Leaves tokens that are too unlikely."""

    def plant(self) -> None:
        """Apply nothing."""
        self.replace(f"{_BUILTIN}:MinPLogitsProcessor.apply", lambda _: lambda self, logits: logits)


class SwapsPenalties(Fault):
    """Penalises each request by its neighbour's numbers."""

    def plant(self) -> None:
        """Turn the rows of the penalties by one."""

        def build(original: Any) -> Any:
            def turned(logits: Any, prompts: Any, *rest: Any) -> Any:
                *penalties, outputs = rest
                return original(logits, prompts, *(p.roll(1) for p in penalties), outputs)

            return turned

        self.replace(f"{_SAMPLER}:apply_all_penalties", build)


class ForgetsThePrompt(Fault):
    """Penalises no token for being in the prompt."""

    def plant(self) -> None:
        """Apply penalties to prompts of nothing but padding."""

        def build(original: Any) -> Any:
            def without(logits: Any, prompts: Any, *rest: Any) -> Any:
                return original(logits, torch.full_like(prompts, logits.shape[1]), *rest)

            return without

        self.replace(f"{_SAMPLER}:apply_all_penalties", build)


class ForgetsDrafts(Fault):
    """Penalises drafted positions as if no draft were before them."""

    def plant(self) -> None:
        """Repeat each request's output for each of its drafts."""

        def outputs(tokens: list[list[int]], drafts: list[list[int]] | None = None) -> Any:
            return [out for out, row in zip(tokens, drafts or (), strict=False) for _ in row]

        self.replace(
            f"{_REJECTION}:RejectionSampler._combine_outputs_with_spec_tokens", lambda _: outputs
        )


class LetsBadWordsThrough(Fault):
    """Excludes bad words of one token only."""

    def plant(self) -> None:
        """Leave the others out."""

        def build(original: Any) -> Any:
            def first_only(logits: Any, words: dict[int, list[list[int]]], past: Any) -> None:
                short = {row: [w for w in ids if len(w) == 1] for row, ids in words.items()}
                original(logits, short, past)

            return first_only

        self.replace(f"{_SAMPLER}:apply_bad_words", build)


class DraftsBadWords(Fault):
    """Excludes no bad word where there is a draft."""

    def plant(self) -> None:
        """Leave the logits as they are."""
        self.replace(f"{_REJECTION}:apply_bad_words_with_drafts", lambda _: lambda *args: None)


class LetsOthersThan(Fault):
    """Draws tokens that are not among the allowed ones."""

    def plant(self) -> None:
        """Put the first excluded token in the place of each that was drawn."""

        def build(original: Any) -> Any:
            def sampled(self: Any, logits: Any, sampling_metadata: Any, **named: Any) -> Any:
                mask = sampling_metadata.allowed_token_ids_mask
                output = original(self, logits, sampling_metadata, **named)
                if mask is not None:
                    for row in mask.any(dim=-1).nonzero().flatten().tolist():
                        output.sampled_token_ids[row, 0] = int(mask[row].nonzero()[0])
                return output

            return sampled

        self.replace(f"{_SAMPLER}:Sampler.forward", build)


class BiasesTheNextToken(Fault):
    """Adds each bias to the token after the one it is for."""

    def plant(self) -> None:
        """Apply at one id further."""

        def build(original: Any) -> Any:
            def shifted(self: Any, logits: Any) -> Any:
                return original(self, logits.roll(-1, dims=-1)).roll(1, dims=-1)

            return shifted

        self.replace(f"{_BUILTIN}:LogitBiasLogitsProcessor.apply", build)


class StopsTooEarly(Fault):
    """Does not exclude stop tokens before the minimum."""

    def plant(self) -> None:
        """Apply nothing."""
        name = f"{_BUILTIN}:MinTokensLogitsProcessor"
        self.replace(f"{name}.apply", lambda _: lambda self, logits: logits)
        self.replace(
            f"{name}.apply_with_spec_decode", lambda _: lambda self, logits, drafts: logits
        )


class SharesASeed(Fault):
    """Gives every seeded request the same seed."""

    def plant(self) -> None:
        """Seed with 0, whatever was asked for."""

        def build(original: Any) -> Any:
            def with_one_seed(self: Any, scheduler_output: Any) -> Any:
                for new in scheduler_output.scheduled_new_reqs:
                    if new.sampling_params.seed is not None:
                        new.sampling_params.seed = 0
                return original(self, scheduler_output)

            return with_one_seed

        self.replace(f"{_RUNNER}:GPUModelRunner._update_states", build)


class LikesEvenTokens(Fault):
    """Draws tokens of even ids a fifth more often than it should."""

    def plant(self) -> None:
        """Add to their logits what makes it so, after the log-probabilities were taken."""

        def build(original: Any) -> Any:
            @functools.wraps(original)
            def sampled(self: Any, logits: Any, generators: Any, k: Any, p: Any) -> Any:
                logits[:, ::2] += 0.6
                return original(self, logits, generators, k, p)

            return sampled

        self.replace(f"{_CUTS}:TopKTopPSampler.forward_cpu", build)


class AcceptsAlways(Fault):
    """Accepts every draft that has any probability."""

    def plant(self) -> None:
        """Draw 0 for every acceptance."""
        self.replace(
            f"{_REJECTION}:generate_uniform_probs",
            lambda _: (
                lambda tokens, drafts, generators, device: torch.zeros(
                    tokens, dtype=torch.float64, device=device
                )
            ),
        )


class RecoversFromTheTarget(Fault):
    """Draws anew from the target's distribution, the rejected draft included."""

    def plant(self) -> None:
        """Draw as if no draft had been made."""

        def build(original: Any) -> Any:
            def recovered(*args: Any) -> Any:
                named = list(args)
                named[3] = torch.full_like(named[3], -1)  # drafts
                if named[4] is not None:
                    named[4] = torch.zeros_like(named[4])  # their probabilities
                return original(*named)

            return recovered

        self.replace(f"{_REJECTION}:sample_recovered_tokens", build)


class ShiftsPromptLogprobs(Fault):
    """Reports each prompt token's log-probabilities one position late."""

    def plant(self) -> None:
        """Turn the rows by one."""

        def build(original: Any) -> Any:
            def turned(self: Any, *args: Any, **kwargs: Any) -> Any:
                rows = original(self, *args, **kwargs)
                return {
                    request: tensors and type(tensors)(*(t.roll(1, 0) for t in tensors[:3]))
                    for request, tensors in rows.items()
                }

            return turned

        self.replace(f"{_RUNNER}:GPUModelRunner._get_prompt_logprobs_dict", build)


class IgnoresGrammars(Fault):
    """Applies no grammar's mask."""

    def plant(self) -> None:
        """Leave the logits as they are."""
        self.replace(f"{_RUNNER}:apply_grammar_bitmask", lambda _: lambda *args: None)


class MasksItsNeighbours(Fault):
    """Applies a grammar's mask to the row before as well."""

    def plant(self) -> None:
        """Apply it, and cut the first row by what is cut in the last one."""

        def build(original: Any) -> Any:
            def masked(scheduled: Any, grammar: Any, batch: Any, logits: Any) -> None:
                original(scheduled, grammar, batch, logits)
                logits.masked_fill_(torch.isneginf(logits).any(dim=0), -torch.inf)

            return masked

        self.replace(f"{_RUNNER}:apply_grammar_bitmask", build)


class IgnoresStopTexts(Fault):
    """Goes on after a stop text."""

    def plant(self) -> None:
        """Find none; it is the same process that looks for them."""
        self.replace(
            "vllm.v1.engine.detokenizer:check_stop_strings", lambda _: lambda *args, **named: None
        )


class IgnoresStopTokens(Fault):
    """Goes on after a stop token."""

    def plant(self) -> None:
        """Schedule as if the request had none."""

        def build(original: Any) -> Any:
            def stopped(request: Any, max_model_len: int) -> Any:
                request.sampling_params.stop_token_ids = []
                return original(request, max_model_len)

            return stopped

        self.replace("vllm.v1.core.sched.scheduler:check_stop", build)


class DrawsOneText(Fault):
    """Gives the completions of one request the same seed."""

    def plant(self) -> None:
        """Seed each of them alike. They are made before the worker sees what the request names."""

        def build(original: Any) -> Any:
            def child(parent: Any, index: int) -> Any:
                given = original(parent, index)
                if named_by(given) == type(self).__name__:
                    given.seed = 0
                return given

            return child

        self.replace(
            "vllm.v1.engine.parallel_sampling:ParentRequest._get_child_sampling_params", build
        )

    def is_on(self) -> bool:
        """Leave it to the request."""
        return True


class KeepsDiscardedDraws(Fault):
    """Does not take back what it drew for a prompt that goes on, and says nothing."""

    once_the_runner_is_made = True

    def plant(self) -> None:
        """Do what the stand-in stands in for."""
        self.replace(f"{_RUNNER}:GPUModelRunner._sample", lambda stand_in: stand_in.__wrapped__)
