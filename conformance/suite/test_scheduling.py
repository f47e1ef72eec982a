"""What a scheduler and its block pool did, where tokens cannot show it.

A cache that is never hit, a request that is never put off and a draft that is never accepted give
the right tokens. Each engine's counts are held against what its arguments must lead to: caching by
the rule that the longest run of whole blocks is found that earlier requests computed (vLLM's
"Automatic Prefix Caching"), the rest by what would make the scenario be about nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest

from conformance.scenarios.catalogue import SCENARIOS, scheduling, speculation
from conformance.scenarios.observation import ChildRun, Generation
from conformance.scenarios.runs import generations
from conformance.scenarios.scenario import Request, Scenario, Step
from conformance.suite.cases import of_scenario

_ENGINES = [s for s in SCENARIOS if s.kind == "engine"]


def _variants(argument: str) -> list[Any]:
    """Every engine of a scenario whose variants give an argument."""
    return [
        of_scenario(s, variant)
        for s in _ENGINES
        for variant, arguments in s.variants.items()
        if argument in arguments
    ]


_DROPPING = {"eagle", "eagle3", "mtp", "dflash"}
"""The speculative methods that compute the last cached block anew."""


def _method(scenario: Scenario, variant: str) -> str | None:
    """The speculative method of one of a scenario's engines; None where it has none."""
    config = scenario.variants[variant].get("speculative_config", scenario.speculative)
    return config["method"] if config else None


_CACHING = _variants("enable_prefix_caching")
_BUDGETED = _variants("max_num_batched_tokens")
_SIZED = _variants("num_gpu_blocks_override")
_STAGGERED = [
    of_scenario(s)
    for s in _ENGINES
    if any(dict(step.options).get("every") for step in s.steps if step.call == "staggered")
]
_SPECULATING = [
    of_scenario(s, variant)
    for s in (*scheduling.SCENARIOS, *speculation.SCENARIOS)
    for variant in s.variants
    if _method(s, variant)
]


def _name(result: str, variant: str) -> str:
    return f"{result}#{variant}" if variant else result


def _schedule(run: ChildRun, variant: str) -> dict[str, Any]:
    return dict(run.results[_name("scheduling", variant)])


def whole_blocks(prompt: Sequence[int], computed: Iterable[Sequence[int]], block: int) -> int:
    """How many tokens of a prompt are in whole blocks that begin another sequence as well.

    ``computed`` are tokens whose keys and values were computed. A prompt's last token is always
    computed anew, for its logits.
    """
    longest = 0
    for sequence in computed:
        same = next(
            (i for i, (a, b) in enumerate(zip(prompt, sequence, strict=False)) if a != b),
            min(len(prompt), len(sequence)),
        )
        longest = max(longest, same)
    return min(longest, len(prompt) - 1) // block * block


def _with_earlier(
    scenario: Scenario, run: ChildRun, variant: str
) -> Iterator[tuple[Step, int, Request, Generation, list[Any], list[Any]]]:
    """Each request, with what steps before its own computed, and what its own step's others did.

    Of what was generated, the last token is in no cache. Adapters share nothing.
    """
    earlier: list[tuple[str | None, tuple[int, ...]]] = []
    for step in scenario.steps:
        pairs = list(zip(step.requests, generations(run, _name(step.name, variant)), strict=False))
        computed = [(r.adapter, r.prompt + g.tokens[:-1]) for r, g in pairs]
        for number, (request, generation) in enumerate(pairs):
            own = request.adapter
            beside = computed[:number] + computed[number + 1 :]
            yield (
                step,
                number,
                request,
                generation,
                [tokens for adapter, tokens in earlier if adapter == own],
                [tokens for adapter, tokens in beside if adapter == own],
            )
        earlier += computed


@pytest.mark.held_against("the rule of whole blocks")
@pytest.mark.parametrize(("scenario", "variant"), _CACHING, indirect=["scenario"])
def test_what_was_computed_before_is_found_in_the_cache_and_nothing_else(
    completed: ChildRun, scenario: Scenario, variant: str, finding: Callable[[str], None]
) -> None:
    """With the cache off, no token of a prompt comes from it; with it on, all that were there do.

    What a step's own requests compute may be found by those beside them, or not yet. Heads that
    need the target's hidden states give up the last block, whose states are not kept
    (``disable_eagle_block_drop`` in vLLM's `SpeculativeConfig`), and a small cache may have lost
    what was in it.
    """
    arguments = {**scenario.engine, **scenario.variants[variant]}
    block, wrong = arguments.get("block_size", 128), []
    for step, number, request, generation, earlier, beside in _with_earlier(
        scenario, completed, variant
    ):
        least = whole_blocks(request.prompt, earlier, block)
        most = whole_blocks(request.prompt, earlier + beside, block)
        if _method(scenario, variant) in _DROPPING:
            least = max(0, least - block)
        if _schedule(completed, variant)["preempted"]:
            least = 0
        if not arguments["enable_prefix_caching"]:
            least = most = 0
        cached = generation.cached
        if cached is None or not least <= cached <= most:
            wrong.append(
                f"{step.name}, request {number}: {cached} of {len(request.prompt)} prompt tokens "
                f"came from the cache, and {least} to {most} were to"
            )
    if wrong:
        finding("\n  ".join((f"{_name(scenario.name, variant)}:", *wrong)))


@pytest.mark.parametrize(("scenario", "variant"), _CACHING, indirect=["scenario"])
def test_a_cache_that_is_on_is_hit(
    completed: ChildRun, scenario: Scenario, variant: str, finding: Callable[[str], None]
) -> None:
    """vLLM's own counter of hits says so too, and says none where the cache is off."""
    on = {**scenario.engine, **scenario.variants[variant]}["enable_prefix_caching"]
    hits = _schedule(completed, variant)["found_in_cache"]
    if bool(hits) != on:
        finding(
            f"{_name(scenario.name, variant)}: the prefix cache is {'on' if on else 'off'}, and "
            f"{hits} tokens were found in it"
        )


@pytest.mark.parametrize(("scenario", "variant"), _BUDGETED, indirect=["scenario"])
def test_prompts_over_the_budget_are_computed_in_parts_and_others_are_not(
    completed: ChildRun, scenario: Scenario, variant: str, finding: Callable[[str], None]
) -> None:
    """No step has more tokens than ``max_num_batched_tokens``, and it decides what is split."""
    budget = scenario.variants[variant]["max_num_batched_tokens"]
    lengths = [[len(request.prompt) for request in step.requests] for step in scenario.steps]
    schedule = _schedule(completed, variant)
    name = _name(scenario.name, variant)
    if schedule["largest"] > budget:
        finding(f"{name}: a step had {schedule['largest']} tokens, and may have {budget}")
    if max(map(max, lengths)) > budget and not schedule["split"]:
        finding(f"{name}: prompts of {max(map(max, lengths))} tokens were not split at {budget}")
    if max(map(sum, lengths)) <= budget and schedule["split"]:
        finding(f"{name}: {schedule['split']} steps computed parts of prompts that fit in one")


@pytest.mark.parametrize(("scenario", "variant"), _SIZED, indirect=["scenario"])
def test_requests_are_put_off_where_the_cache_is_small_and_nowhere_else(
    completed: ChildRun, scenario: Scenario, variant: str, finding: Callable[[str], None]
) -> None:
    """A batch that outgrows the KV cache is preempted; one that fits is not (vLLM's counter).

    Of the blocks that were asked for, vLLM keeps one for itself (`BlockPool`'s null block).
    """
    arguments = {**scenario.engine, **scenario.variants[variant]}
    schedule, block = _schedule(completed, variant), arguments["block_size"]
    needed = max(
        sum(-(-(len(r.prompt) + r.max_tokens - 1) // block) for r in step.requests)
        for step in scenario.steps
    )
    if schedule["blocks"] != arguments["num_gpu_blocks_override"] - 1:
        finding(
            f"{_name(scenario.name, variant)}: {schedule['blocks']} blocks can be had, and "
            f"{arguments['num_gpu_blocks_override']} were asked for"
        )
    if (schedule["preempted"] > 0) != (needed > schedule["blocks"]):
        finding(
            f"{_name(scenario.name, variant)}: {needed} blocks are needed at once, "
            f"{schedule['blocks']} are there, and {schedule['preempted']} requests were preempted"
        )


@pytest.mark.parametrize("scenario", _STAGGERED, indirect=True)
def test_requests_join_a_running_batch(
    completed: ChildRun, scenario: Scenario, finding: Callable[[str], None]
) -> None:
    """Requests that are added between steps begin while others are running."""
    for variant in scenario.variants:
        if not _schedule(completed, variant)["joined"]:
            finding(f"{_name(scenario.name, variant)}: no request began while another was running")


@pytest.mark.parametrize("scenario", [of_scenario(s) for s in _ENGINES], indirect=True)
def test_no_request_and_no_block_is_left_in_use(
    completed: ChildRun, scenario: Scenario, finding: Callable[[str], None]
) -> None:
    """When all requests have ended, by themselves or aborted, every block is free again."""
    for variant in scenario.variants:
        schedule, name = _schedule(completed, variant), _name(scenario.name, variant)
        if schedule["requests_left"]:
            finding(f"{name}: the scheduler still has requests {schedule['requests_left']}")
        if schedule["blocks_free"] != schedule["blocks"]:
            finding(
                f"{name}: {schedule['blocks_free']} of {schedule['blocks']} blocks are free after "
                "all requests have ended"
            )


@pytest.mark.parametrize(("scenario", "variant"), _SPECULATING, indirect=["scenario"])
def test_drafts_are_made_and_some_of_them_are_accepted(
    completed: ChildRun, scenario: Scenario, variant: str, finding: Callable[[str], None]
) -> None:
    """Speculation took place: tokens were drafted, and not all and not none were accepted."""
    counts = completed.results[_name("acceptance", variant)]
    drafted, accepted = counts.get("drafted", 0), counts.get("accepted", 0)
    if not 0 < accepted < drafted:
        finding(
            f"{_name(scenario.name, variant)}: {drafted:.0f} tokens were drafted and "
            f"{accepted:.0f} accepted"
        )


@pytest.mark.scenario("async-scheduling")
def test_asynchronous_scheduling_is_off_on_a_cpu(
    completed: ChildRun, scenario: Scenario, finding: Callable[[str], None]
) -> None:
    """``CpuPlatform.check_and_update_config`` turns it off. Where it is on, it is to be covered."""
    for variant in scenario.variants:
        if (name := _schedule(completed, variant)["scheduler"]) != "Scheduler":
            finding(
                f"{_name(scenario.name, variant)}: the engine schedules with {name}: this vLLM "
                "has asynchronous scheduling on a CPU, and the scenarios do not cover it"
            )


RESIDENT_BYTES_PER_ROUND = 3000
"""How much more resident memory a round may leave behind: 4 times what was measured at most.

Measured on 2026-12-01 with the scenario itself (vLLM 0.32.0, 140 rounds of 16 steps): nothing
without speculation, 102,400 bytes with a draft model, 731 in a round. This is for memory that
neither Python nor torch knows of; of what is kept in each step, 200 bytes are seen.
"""


def grown(usage: Sequence[dict[str, int]], rounds: int) -> str | None:
    """Say what a process holds more of at the last look than at the first; None if nothing.

    ``usage`` is as `driving.endure` has it, and ``rounds`` lie between its first and last look.
    What is kept in each step, or for each request, is one thing more in each round at least; a
    look makes a few objects of its own, and of tensors and open files it makes none.
    """
    first, last = usage[0], usage[-1]
    allowed = {"tensors": 0, "tensor_bytes": 0, "descriptors": 0, "objects": rounds - 1}
    more = [
        f"{name}: {', '.join(str(look[name]) for look in usage)}"
        for name, least in allowed.items()
        if last[name] - first[name] > least
    ]
    resident = last["resident_bytes"] - first["resident_bytes"]
    if resident > RESIDENT_BYTES_PER_ROUND * rounds:
        more.append(f"resident memory: {resident} bytes more after {rounds} rounds")
    return "; ".join(more) or None


_ENDURING = [
    of_scenario(s, name) for s in _ENGINES for step, name in s.runs if step.call == "endure"
]


@pytest.mark.parametrize(("scenario", "step"), _ENDURING, indirect=["scenario"])
def test_nothing_grows_over_thousands_of_steps(
    completed: ChildRun, scenario: Scenario, step: str, finding: Callable[[str], None]
) -> None:
    """Tensors, objects, open files and resident memory are what they were thousands of steps ago.

    Looked at after a collection of garbage, between the same requests over and over.
    """
    options = dict(scenario.step(step).options)
    usage = completed.results[step][0]["usage"]
    if more := grown(usage, options["rounds"] - options["settled"]):
        finding(f"{scenario.name}, {step}: the process holds more than before: {more}")
