"""All requests at once, until every one of them is finished."""

from __future__ import annotations

from typing import Any


def drive(llm: Any, step: dict[str, Any], adapters: dict[str, str]) -> list[dict[str, Any]]:
    """What each request got, in order, as `observation.Generation.from_json` reads it."""
    outputs = llm.generate(
        [{"prompt_token_ids": request["prompt"]} for request in step["requests"]],
        [sampling_parameters(request) for request in step["requests"]],
        lora_request=[lora_request(request, adapters) for request in step["requests"]]
        if adapters
        else None,
        use_tqdm=False,
    )
    return [described(output) for output in outputs]


def sampling_parameters(request: dict[str, Any]) -> Any:
    """A request's ``SamplingParams``; ``structured`` in them names vLLM's structured outputs."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    given = dict(request["sampling"])
    if "structured" in given:
        given["structured_outputs"] = StructuredOutputsParams(**given.pop("structured"))
    if "logit_bias" in given:  # JSON has no integer keys
        given["logit_bias"] = {int(token): bias for token, bias in given["logit_bias"].items()}
    return SamplingParams(**{"detokenize": False, **given})


def lora_request(request: dict[str, Any], adapters: dict[str, str]) -> Any:
    """The ``LoRARequest`` of a request; None where it uses no adapter."""
    if request["adapter"] is None:
        return None
    from vllm.lora.request import LoRARequest

    name = request["adapter"]
    return LoRARequest(name, sorted(adapters).index(name) + 1, adapters[name])


def described(output: Any) -> dict[str, Any]:
    """A request's output as plain data: its first completion, and all of them."""
    completions = [
        {
            "tokens": list(completion.token_ids),
            "text": completion.text,
            "logprobs": _rows(completion.logprobs),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        for completion in output.outputs
    ]
    return {
        "prompt": list(output.prompt_token_ids),
        "tokens": completions[0]["tokens"],
        "logprobs": completions[0]["logprobs"],
        "prompt_logprobs": _rows(output.prompt_logprobs),
        "cached": output.num_cached_tokens,
        "completions": completions,
    }


def _rows(positions: Any) -> list[dict[int, float]]:
    """Token id to log-probability, by position; a prompt's first position has none."""
    return [
        {token: entry.logprob for token, entry in (position or {}).items()}
        for position in positions or []
    ]
