"""Each request by itself, the next one when it is finished."""

from __future__ import annotations

from typing import Any

from conformance.scenarios.driving import generate


def drive(llm: Any, step: dict[str, Any], adapters: dict[str, str]) -> list[dict[str, Any]]:
    """What each request got, in order, as `observation.Generation.from_json` reads it."""
    return [
        output
        for request in step["requests"]
        for output in generate.drive(llm, {**step, "requests": [request]}, adapters)
    ]
