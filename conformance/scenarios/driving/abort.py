"""Requests of which the last few are aborted while the others go on.

Options: ``aborted``, how many, and ``after``, how many engine steps are taken before that. They are
added before the others, so that in a batch the rows of those that stay move up.
"""

from __future__ import annotations

from typing import Any

from conformance.scenarios.driving._stepwise import Stepwise


def drive(llm: Any, step: dict[str, Any], adapters: dict[str, str]) -> list[dict[str, Any]]:
    """What each request that was not aborted got, in order.

    Raises:
        RuntimeError: one of those that were to be aborted had finished by then.
    """
    options, engine = dict(step["options"]), Stepwise(llm, step, adapters)
    numbers = list(range(len(step["requests"])))
    staying = numbers[: len(numbers) - options["aborted"]]
    aborted = numbers[len(staying) :]
    for number in aborted + staying:
        engine.add(number)
    for _ in range(options["after"]):
        engine.step()
    if early := [number for number in aborted if engine.has_finished(number)]:
        raise RuntimeError(f"requests {early} were to be aborted, and had finished")
    for number in aborted:
        engine.abort(number)
    engine.finish()
    return [engine.got(number) for number in staying]
