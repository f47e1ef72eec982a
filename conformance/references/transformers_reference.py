"""The ``transformers`` source: an independent implementation, in float64, in a child process.

Asked for float32 on a GPU it is the source ``cuda``: the same model code, on the device.

`compute` asks a child (``python -m conformance.references.transformers_reference REQUEST ANSWER``)
and needs neither torch nor transformers itself.

Model code in transformers computes norms, rotary angles and the attention softmax in float32
whatever the weights' dtype: it casts. So ``model.double()`` gives float64 sums of float32 parts,
off by up to 7.5e-5 nats (``tiny-llama``, 300 tokens), more than vLLM's float32 is. Here every
cast to a narrower float is redirected to float64, at the level of torch functions, and during the
forward pass a result in a narrower float is an error; ``float64`` in the provenance is thus
checked, not hoped for. vLLM's float32 has the rotary angles rounded to float32: that error belongs
to the bounds, not to the reference.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.references.bounds import bound
from conformance.references.reference import (
    ForcedQuery,
    GreedyQuery,
    Provenance,
    Query,
    ReferenceSet,
    SequenceReference,
    StepReference,
    query_from_json,
    query_to_json,
    reference_set_from_json,
    reference_set_to_json,
)
from conformance.scenarios.recipes import recipe_of

if TYPE_CHECKING:
    import torch

__all__ = ["TOP_K", "ReferenceFailed", "compute"]

TOP_K = 20
"""Likeliest tokens kept per step; as many as vLLM gives by default (``max_logprobs``)."""

_SELF_CHECK = {"float64": 1e-9, "float32": bound("margin", "float32").value}
"""How far a greedy choice may lie below the best token of the pass without cache, in nats."""

_ARITHMETIC = {
    "float64": "casts to narrower floats redirected to float64, narrower results refused",
    "float32": "products in float32, TF32 switched off",
}
_ONE_PASS = "log-probabilities from one pass without it"

_ATTENTION = {"falcon": "sdpa"}
"""By type of model, an attention other than eager. Falcon's eager one adds ALiBi twice: to the
scores, and with the mask."""


class ReferenceFailed(RuntimeError):
    """The child process gave no answer; the message ends with what it said last."""


def compute(
    checkpoint: Path,
    queries: Sequence[Query],
    *,
    top_k: int = TOP_K,
    python: str = sys.executable,
    threads: int = 1,
    timeout: float = 600.0,
    device: str = "cpu",
    dtype: str = "float64",
) -> ReferenceSet:
    """Answers of the checkpoint's model to ``queries``, in order, in float64 on the CPU.

    Or as ``device`` (``cuda``) and ``dtype`` (``float32``) say; log-probabilities are computed from
    the logits in float64 always.

    ``python`` is the interpreter of the child, which must have torch and transformers; with
    ``threads`` = 1 the same machine gives the same bits. ``timeout`` is in seconds.
    Errors: ReferenceFailed when the child fails or takes longer; the child fails for a token id
    outside the vocabulary.
    """
    root = str(Path(__file__).resolve().parents[2])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "NVIDIA_TF32_OVERRIDE": "0",
    }
    request = {
        "queries": [query_to_json(query) for query in queries],
        "top_k": top_k,
        "device": device,
        "dtype": dtype,
    }
    with tempfile.TemporaryDirectory(prefix="reference-") as scratch:
        asked, answered = Path(scratch, "request.json"), Path(scratch, "answer.json")
        asked.write_text(json.dumps({**request, "checkpoint": str(checkpoint)}), encoding="utf-8")
        try:
            done = subprocess.run(
                [python, "-m", "conformance.references.transformers_reference", asked, answered],
                env=environment,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ReferenceFailed(f"no reference after {timeout:.0f} s") from None
        if done.returncode != 0:
            tail = "\n".join(done.stderr.strip().splitlines()[-5:])
            raise ReferenceFailed(f"the reference's process ended with {done.returncode}: {tail}")
        return reference_set_from_json(json.loads(answered.read_text(encoding="utf-8")))


def _float64_mode(*, strict: bool) -> Any:
    """A torch function mode that turns every narrower float asked for into float64.

    ``strict``: a result in a narrower float raises TypeError.
    """
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_leaves, tree_map

    narrow = (torch.float32, torch.float16, torch.bfloat16)
    casts = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)

    def widened(value: Any) -> Any:
        return torch.float64 if isinstance(value, torch.dtype) and value in narrow else value

    def redirected(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = torch.Tensor.double if func in casts else func
        result = func(*tree_map(widened, args), **tree_map(widened, kwargs or {}))
        if strict:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and leaf.dtype in narrow:
                    raise TypeError(f"{func} gave {leaf.dtype} in a float64 computation")
        return result

    return type("Float64", (TorchFunctionMode,), {"__torch_function__": redirected})()


class _Model:
    """A causal language model in one dtype; lives in the child process only."""

    def __init__(self, checkpoint: str, device: str, dtype: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._device, wanted = device, getattr(torch, dtype)
        self._wide = dtype == "float64"
        torch.set_default_dtype(wanted)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        kind = json.loads(Path(checkpoint, "config.json").read_text(encoding="utf-8"))["model_type"]
        self.attention = _ATTENTION.get(kind, "eager")
        self.has_cache = True
        with self._mode(strict=False):
            self._model = AutoModelForCausalLM.from_pretrained(
                checkpoint,
                dtype=wanted,
                attn_implementation=self.attention,
                # One expert after the other: torch's grouped product takes no float64.
                experts_implementation="eager",
                local_files_only=True,
            ).eval()
        self._model.to(device)
        state = dict(self._model.named_parameters()) | dict(self._model.named_buffers())
        for name, tensor in state.items():
            if tensor.is_floating_point() and tensor.dtype != wanted:
                raise TypeError(f"{name} is {tensor.dtype} in a {dtype} model")
        self.vocab_size = int(self._model.config.vocab_size)

    def _mode(self, *, strict: bool) -> Any:
        return _float64_mode(strict=strict) if self._wide else nullcontext()

    def _forward(self, tokens: Sequence[int], cache: Any, use_cache: bool) -> tuple[Any, Any]:
        import torch

        outside = [token for token in tokens if not 0 <= token < self.vocab_size]
        if outside:
            raise ValueError(f"token ids outside the vocabulary of {self.vocab_size}: {outside}")
        ids = torch.tensor([list(tokens)], device=self._device)
        with torch.no_grad(), self._mode(strict=True):
            out = self._model(input_ids=ids, past_key_values=cache, use_cache=use_cache)
        # State-space models keep no keys and values, and name what they keep otherwise.
        self.has_cache = hasattr(out, "past_key_values")
        return out.logits[0], getattr(out, "past_key_values", None)

    def greedy(self, query: GreedyQuery) -> tuple[int, ...]:
        """Likeliest continuation; of equally likely tokens the one with the lowest id.

        A model without a key/value cache gets all tokens at every step.
        """
        tokens: list[int] = []
        pending, cache = list(query.prompt), None
        while len(tokens) < query.max_tokens:
            logits, cache = self._forward(pending, cache, use_cache=True)
            last = logits[-1]
            tokens.append(int((last == last.max()).nonzero()[0]))
            if tokens[-1] in query.stop_ids:
                break
            pending = tokens[-1:] if cache is not None else [*query.prompt, *tokens]
        return tuple(tokens)

    def logits(self, prompt: Sequence[int], continuation: Sequence[int]) -> torch.Tensor:
        """Logits (steps, vocabulary), float64, of a full pass without cache."""
        logits, _ = self._forward([*prompt, *continuation], None, use_cache=False)
        return logits[len(prompt) - 1 : -1].cpu().double()


def _answer(model: _Model, query: Query, top_k: int, dtype: str) -> SequenceReference:
    import torch

    greedy = isinstance(query, GreedyQuery)
    tokens = model.greedy(query) if isinstance(query, GreedyQuery) else query.continuation
    requested = () if isinstance(query, GreedyQuery) else query.requested
    whole = isinstance(query, ForcedQuery) and query.logits
    logits = model.logits(query.prompt, tokens)
    logprobs = torch.log_softmax(logits, dim=-1)
    steps = []
    for index, token in enumerate(tokens):
        row = logprobs[index]
        if not bool(torch.isfinite(row).all()):
            raise ValueError(f"the reference is not finite at step {index}")
        values, ids = torch.sort(row, descending=True, stable=True)
        if greedy and float(values[0] - row[token]) > _SELF_CHECK[dtype]:
            raise ValueError(f"step {index}: with and without cache the best token differs")
        steps.append(
            StepReference(
                token=token,
                logprob=float(row[token]),
                top_ids=tuple(ids[:top_k].tolist()),
                top_logprobs=tuple(values[:top_k].tolist()),
                requested={id_: float(row[id_]) for id_ in (requested[index] if requested else ())},
                logits=tuple(logits[index].tolist()) if whole else (),
            )
        )
    return SequenceReference(
        prompt=query.prompt,
        steps=tuple(steps),
        max_tokens=query.max_tokens if isinstance(query, GreedyQuery) else len(tokens),
        vocab_size=model.vocab_size,
        stop_ids=query.stop_ids if isinstance(query, GreedyQuery) else (),
    )


def main(arguments: list[str]) -> int:
    """The child: reads a request, writes an answer (see `compute`)."""
    import torch
    import transformers

    from conformance.references.recording import machine

    request = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    device, dtype = request["device"], request["dtype"]
    model = _Model(request["checkpoint"], device, dtype)
    answers = [
        _answer(model, query_from_json(query), request["top_k"], dtype)
        for query in request["queries"]
    ]
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    notes = [
        f"{model.attention} attention; {_ARITHMETIC[dtype]}",
        f"greedy tokens chosen {'with' if model.has_cache else 'without'} a key/value cache, "
        f"{_ONE_PASS}",
    ]
    if on_gpu := device.startswith("cuda"):
        where = machine()
        versions |= {"cuda": where["cuda"], "driver": where["driver"]}
        notes.append(f"compute capability {'.'.join(map(str, where['capability']))}")
    name, digest = recipe_of(Path(request["checkpoint"])) or ("unknown", "unknown")
    provenance = Provenance(
        source="cuda" if on_gpu else "transformers",
        versions=versions,
        dtype=dtype,
        recipe=name,
        recipe_hash=digest,
        device=where["device"] if on_gpu else device,
        notes=tuple(notes),
    )
    text = json.dumps(
        reference_set_to_json(ReferenceSet(provenance, tuple(answers))), allow_nan=False
    )
    Path(arguments[1]).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
