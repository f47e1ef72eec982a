"""Requests that are added to an engine by name, and steps that are taken one by one."""

from __future__ import annotations

from typing import Any

from conformance.scenarios.driving.generate import (
    described,
    lora_request,
    sampling_parameters,
)


class Stepwise:
    """An engine whose requests come and go between its steps."""

    def __init__(self, llm: Any, step: dict[str, Any], adapters: dict[str, str]) -> None:
        self._engine = llm.llm_engine
        self._requests = step["requests"]
        self._adapters = adapters
        self._finished: dict[str, Any] = {}

    def add(self, number: int) -> None:
        """Add one of the step's requests, by its number."""
        request = self._requests[number]
        adapter = lora_request(request, self._adapters)
        self._engine.add_request(
            str(number),
            {"prompt_token_ids": request["prompt"]},
            sampling_parameters(request),
            **({"lora_request": adapter} if adapter else {}),
        )

    def abort(self, number: int) -> None:
        """Abort a request that was added."""
        self._engine.abort_request([str(number)])

    def step(self) -> None:
        """Take one step, if there is anything to do."""
        if self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished:
                    self._finished[output.request_id] = output

    def finish(self) -> None:
        """Step until no request is left."""
        while self._engine.has_unfinished_requests():
            self.step()

    def has_finished(self, number: int) -> bool:
        """Whether a request has all its tokens."""
        return str(number) in self._finished

    def got(self, number: int) -> dict[str, Any]:
        """What a request got that has finished; KeyError for one that was aborted."""
        return described(self._finished[str(number)])
