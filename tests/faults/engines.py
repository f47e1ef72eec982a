"""Faults of whole runners, which show in an engine's run: one worker class for each.

`tests/test_engine_faults.py` names the scenario for each, and the check that must find it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import torch

from runner_under_test.patches import REGISTER
from runner_under_test.worker import CPUWorker

_kept: list[Any] = []


class LeavesAThread(CPUWorker):
    """Starts a thread that nobody ends."""

    def init_device(self) -> None:
        """Start it."""
        threading.Thread(target=threading.Event().wait, name="left", daemon=True).start()
        super().init_device()


class KeepsTheWeights(CPUWorker):
    """Keeps a view of each weight, whose tensors themselves are freed."""

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load, and keep the views."""
        super().load_model(*args, **kwargs)
        _kept.extend(p.detach().view(-1) for p in self.model_runner.model.parameters())


class KeepsTheKVCache(CPUWorker):
    """Keeps the KV caches."""

    def shutdown(self) -> None:
        """Keep them, and shut down."""
        _kept.extend(self.model_runner.kv_caches)
        super().shutdown()


class KeepsItsPatches(CPUWorker):
    """Holds the patches once more than it releases them."""

    def init_device(self) -> None:
        """Hold them once more."""
        REGISTER.hold()
        super().init_device()


class LeavesAFile(CPUWorker):
    """Leaves a file in the temporary directory."""

    def init_device(self) -> None:
        """Write it."""
        Path(tempfile.gettempdir(), "left-by-a-worker").write_text("left")
        super().init_device()


class Complains(CPUWorker):
    """Writes a traceback at shutdown, and goes on."""

    def shutdown(self) -> None:
        """Shut down, and complain."""
        super().shutdown()
        sys.stderr.write("Traceback (most recent call last):\nValueError: swallowed\n")


class ExitsAtShutdown(CPUWorker):
    """Ends the process with status 0 in the middle of its shutdown."""

    def shutdown(self) -> None:
        """Exit, as if all were well."""
        os._exit(0)


class FailsToExecute(CPUWorker):
    """Raises in its first step."""

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        """Raise what torch raises without an accelerator."""
        raise RuntimeError("Cannot access accelerator device when none is available.")


class ChangesThreads(CPUWorker):
    """Leaves torch with another number of threads."""

    def shutdown(self) -> None:
        """Shut down with three threads."""
        super().shutdown()
        torch.set_num_threads(3)


class LosesTheStream(CPUWorker):
    """Returns to the default stream in every step, whoever's context it is in."""

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        """Make the default stream current, and run the step."""
        torch.cuda.set_stream(torch.cuda.Stream(stream_id=0))
        return super().execute_model(*args, **kwargs)


class SeesNoMemory(CPUWorker):
    """Finds no memory free, as a spawned worker once did."""

    def compile_or_warm_up_model(self) -> Any:
        """Warm up, and forget the memory."""
        result = super().compile_or_warm_up_model()
        torch.accelerator.get_memory_info = lambda device=None: (0, 2**34)
        return result


class _Rewrites(CPUWorker):
    """Changes the tokens that were sampled."""

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample, and rewrite what came of it."""
        output = super().sample_tokens(grammar_output)
        rows = output.sampled_token_ids
        output.sampled_token_ids = [self.rewritten(list(row), len(rows)) for row in rows]
        return output

    def rewritten(self, tokens: list[int], requests: int) -> list[int]:
        """Return other tokens for a request among so many."""
        raise NotImplementedError


class SwapsTokens(_Rewrites):
    """Answers with one token only."""

    def rewritten(self, tokens: list[int], requests: int) -> list[int]:
        """Token 3, whatever was sampled."""
        return [3 for _ in tokens]


class AnswersByTheBatch(_Rewrites):
    """Answers otherwise when there are neighbours."""

    def rewritten(self, tokens: list[int], requests: int) -> list[int]:
        """The next token id, in a batch."""
        return [token + 1 if requests > 1 else token for token in tokens]


class AnswersByTheCache(_Rewrites):
    """Answers otherwise when there is a prefix cache, always in the same way."""

    def rewritten(self, tokens: list[int], requests: int) -> list[int]:
        """The next token id, with a cache."""
        caching = self.vllm_config.cache_config.enable_prefix_caching
        return [token + 1 if caching else token for token in tokens]


class ForgetsSeeds(_Rewrites):
    """Draws from a source that no seed has a hold on."""

    def rewritten(self, tokens: list[int], requests: int) -> list[int]:
        """A token of its own choice."""
        return [6 + os.urandom(1)[0] for _ in tokens]


class IgnoresSeeds(_Rewrites):
    """Gives the same tokens for every seed."""

    def rewritten(self, tokens: list[int], requests: int) -> list[int]:
        """A token that no seed changes."""
        return [7 for _ in tokens]


class ShiftsLogprobs(CPUWorker):
    """Reports log-probabilities that are a little off."""

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample, and shift them by a hundredth."""
        output = super().sample_tokens(grammar_output)
        if output.logprobs is not None:
            output.logprobs.logprobs[:] += 0.01
        return output


class DraftsNothingGood(CPUWorker):
    """Proposes token 0 always, so that nothing is accepted."""

    def take_draft_token_ids(self) -> Any:
        """Take the drafts, and put token 0 in their place."""
        drafts = super().take_draft_token_ids()
        if drafts is not None:
            drafts.draft_token_ids = [[0 for _ in row] for row in drafts.draft_token_ids]
        return drafts


class BuildsAnother(CPUWorker):
    """Passes for another class than was asked for."""

    def shutdown(self) -> None:
        """Shut down, and become its base."""
        super().shutdown()
        self.__class__ = CPUWorker
