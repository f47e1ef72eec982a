"""Requests that join one by one, while earlier ones are running and leaving.

Options: ``every``, how many engine steps are taken between two of them; ``leading``, how many of
the last ones come first.
"""

from __future__ import annotations

from typing import Any

from conformance.scenarios.driving._stepwise import Stepwise


def drive(llm: Any, step: dict[str, Any], adapters: dict[str, str]) -> list[dict[str, Any]]:
    """What each request got, in order, as `observation.Generation.from_json` reads it."""
    options, engine = dict(step["options"]), Stepwise(llm, step, adapters)
    numbers = list(range(len(step["requests"])))
    following = len(numbers) - options.get("leading", 0)
    for number in numbers[following:] + numbers[:following]:
        engine.add(number)
        for _ in range(options["every"]):
            engine.step()
    engine.finish()
    return [engine.got(number) for number in numbers]
