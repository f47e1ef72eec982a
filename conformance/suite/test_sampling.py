"""What sampling parameters ask for, held against a sampler in float64 and against grammars.

The raw logits are transformers' in float64, of the very tokens that the runner chose, so a text
that went another way is judged all the same. `conformance.references.sampler` processes them by
the published definitions; it shares no code with vLLM. Where a limit (the k-th token, a mass p)
runs between two tokens that are nearer to each other than the measured bound, either may be left.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from conformance.references.bounds import bound
from conformance.references.expected import (
    conforms,
    distributions,
    ending,
    settings_of,
    text_probabilities,
)
from conformance.references.goodness import fit
from conformance.references.reference import ForcedQuery, SequenceReference
from conformance.references.sampler import Settings, log_softmax
from conformance.scenarios.catalogue import SCENARIOS
from conformance.scenarios.catalogue.sampling import (
    COMPLETIONS,
    DRAWS,
    GRAMMAR,
    PROMPT,
    SAMPLER,
    STOPS,
)
from conformance.scenarios.observation import ChildRun, Generation
from conformance.scenarios.runs import Runs, generations
from conformance.scenarios.scenario import Request, Scenario
from conformance.suite.cases import of_scenario

_SHOWN = 6


def _against(what: str) -> list[Any]:
    """The results of every step that is held against this, in every engine."""
    return [
        of_scenario(s, name)
        for s in SCENARIOS
        if s.kind == "engine"
        for step, name in s.runs
        if step.against == what
    ]


_SAMPLED = _against(SAMPLER)
_DRAWN = _against(DRAWS)


def _mode(scenario: Scenario, step: str) -> str:
    """The engine's ``logprobs_mode``."""
    arguments = {**scenario.engine, **scenario.variants[step.partition("#")[2]]}
    return str(arguments.get("logprobs_mode", "raw_logprobs"))


def _pairs(run: ChildRun, scenario: Scenario, step: str) -> list[tuple[Request, Generation]]:
    return list(zip(scenario.step(step).requests, generations(run, step), strict=True))


def _asked(request: Request) -> str:
    """A request's parameters, as text."""
    plain = {"max_tokens", "logprobs", "detokenize", "ignore_eos"}
    return ", ".join(f"{k}={v}" for k, v in request.sampling if k not in plain) or "no parameters"


def _shown(scenario: Scenario, step: str, wrong: Sequence[str]) -> str:
    more = [f"... and {len(wrong) - _SHOWN} more"] if len(wrong) > _SHOWN else []
    return "\n  ".join((f"{scenario.name}, {step}: {scenario.claim}", *wrong[:_SHOWN], *more))


def _scored(
    runs: Runs, scenario: Scenario, pairs: Sequence[tuple[Request, Generation]]
) -> Sequence[SequenceReference]:
    """The reference's logits at every step of what each request got."""
    return runs.reference(
        scenario.recipe,
        [ForcedQuery(request.prompt, got.tokens, logits=True) for request, got in pairs],
    )


def _tolerance(settings: Settings) -> float:
    """How far a processed log-probability may be off, in nats: errors grow as 1/T."""
    value = bound("processed", "float32").value
    return value if settings.greedy else value / min(1.0, settings.temperature)


@pytest.mark.held_against("a float64 sampler")
@pytest.mark.parametrize(("scenario", "step"), _SAMPLED, indirect=["scenario"])
def test_logprobs_of_the_whole_vocabulary_agree_with_a_float64_sampler(
    completed: ChildRun,
    scenario: Scenario,
    step: str,
    runs: Runs,
    finding: Callable[[str], None],
) -> None:
    """Processed ones are the processed distribution's, raw ones the model's, token by token."""
    import numpy as np

    processed, wrong = _mode(scenario, step) == "processed_logprobs", []
    pairs = _pairs(completed, scenario, step)
    for number, ((request, got), reference) in enumerate(
        zip(pairs, _scored(runs, scenario, pairs), strict=True)
    ):
        settings = settings_of(dict(request.sampling)) if processed else Settings()
        slack = bound("processed", "float32").value
        if len(got.logprobs) != len(got.tokens):
            wrong.append(f"request {number}: log-probabilities of {len(got.logprobs)} tokens")
            continue
        for index, (at, found) in enumerate(
            distributions(request.prompt, reference, settings, slack)
        ):
            row = np.array([got.logprobs[index].get(i, math.nan) for i in range(len(at.logits))])
            said = _difference(row, found if processed else None, at.logits, _tolerance(settings))
            if said:
                wrong.append(f"request {number} ({_asked(request)}), token {index}: {said}")
                break
    if wrong:
        finding(_shown(scenario, step, wrong))


def _difference(row: Any, found: Any, logits: Sequence[float], tolerance: float) -> str | None:
    """Say how a row of log-probabilities is not the processed ones, or the raw ones."""
    import numpy as np

    if np.isnan(row).any() or (row == np.inf).any():
        return f"no log-probability for {int((~np.isfinite(row) & (row != -np.inf)).sum())} tokens"
    support = row > -np.inf
    if found is None:
        expected = log_softmax(np.array(logits))
    else:
        for token in np.flatnonzero(support & ~found.possible):
            return f"token {token} has {row[token]:.6g}, and must be excluded"
        for token in np.flatnonzero(~support & found.certain):
            return f"token {token} is excluded, and has {found.logprobs()[token]:.6g}"
        expected = found.logprobs(support)
    if (support != np.isfinite(expected)).any():
        token = int(np.flatnonzero(support != np.isfinite(expected))[0])
        return f"token {token} has {row[token]:.6g}, the reference {expected[token]:.6g}"
    off = np.abs(np.where(support, row - np.where(support, expected, 0.0), 0.0))
    token = int(off.argmax())
    if off[token] > tolerance:
        return (
            f"token {token} has {row[token]:.9g}, the reference {expected[token]:.9g} "
            f"(difference {off[token]:.3g}, bound {tolerance:.3g})"
        )
    return None


@pytest.mark.held_against("a float64 sampler")
@pytest.mark.parametrize(("scenario", "step"), _SAMPLED, indirect=["scenario"])
def test_every_token_drawn_is_one_that_the_parameters_leave(
    completed: ChildRun,
    scenario: Scenario,
    step: str,
    runs: Runs,
    finding: Callable[[str], None],
) -> None:
    """No token is drawn that is excluded; greedy requests take the likeliest of what is left."""
    wrong, pairs = [], _pairs(completed, scenario, step)
    margin = bound("margin", "float32").value
    for number, ((request, _), reference) in enumerate(
        zip(pairs, _scored(runs, scenario, pairs), strict=True)
    ):
        settings = settings_of(dict(request.sampling))
        slack = bound("processed", "float32").value
        for index, (at, found) in enumerate(
            distributions(request.prompt, reference, settings, slack)
        ):
            best = int(found.logits.argmax())
            short = float(found.logits[best] - found.logits[at.token])
            if not found.possible[at.token]:
                wrong.append(
                    f"request {number} ({_asked(request)}), token {index}: {at.token} is excluded"
                )
            elif settings.greedy and short > margin:
                wrong.append(
                    f"request {number} ({_asked(request)}), token {index}: {at.token}, and {best} "
                    f"is likelier by {short:.3g} nats"
                )
    if wrong:
        finding(_shown(scenario, step, wrong))


@pytest.mark.held_against("transformers, float64")
@pytest.mark.parametrize(("scenario", "step"), _against(PROMPT), indirect=["scenario"])
def test_logprobs_of_a_prompt_agree_with_transformers(
    completed: ChildRun,
    scenario: Scenario,
    step: str,
    runs: Runs,
    finding: Callable[[str], None],
) -> None:
    """Every token of a prompt but the first has its own, and those of the likeliest."""
    limit, wrong = bound("logprob", "float32").value, []
    pairs = [pair for pair in _pairs(completed, scenario, step) if len(pair[0].prompt) > 1]
    references = runs.reference(
        scenario.recipe,
        [ForcedQuery(r.prompt[:1], r.prompt[1:], logits=True) for r, _ in pairs],
    )
    for number, ((request, got), reference) in enumerate(zip(pairs, references, strict=True)):
        if len(got.prompt_logprobs) != len(request.prompt) or got.prompt_logprobs[0]:
            wrong.append(
                f"request {number}: {len(got.prompt_logprobs)} positions for a prompt of "
                f"{len(request.prompt)}, the first with {len(got.prompt_logprobs[:1])} tokens"
            )
            continue
        top = dict(request.sampling)["prompt_logprobs"]
        rows = zip(got.prompt_logprobs[1:], reference.steps, strict=True)
        for position, (row, at) in enumerate(rows, start=1):
            expected = log_softmax(_array(at.logits))
            off = {token: abs(value - expected[token]) for token, value in row.items()}
            least = sorted(row.values(), reverse=True)[min(top, len(row)) - 1]
            absent = [t for t, p in enumerate(expected) if t not in row and p > least + limit]
            worst = max(off, key=lambda token: off[token])
            if at.token not in row or len(row) < top or absent or not off[worst] <= limit:
                wrong.append(
                    f"request {number}, position {position} of the prompt (token {at.token}): "
                    f"token {worst} has {row[worst]:.9g}, the reference {expected[worst]:.9g}; "
                    f"{len(row)} tokens, left out {absent}"
                )
                break
    if wrong:
        finding(_shown(scenario, step, wrong))


def _array(values: Sequence[float]) -> Any:
    import numpy as np

    return np.array(values)


@pytest.mark.held_against("the same texts without stops")
@pytest.mark.parametrize(("scenario", "step"), _against(STOPS), indirect=["scenario"])
def test_a_request_ends_where_it_must(
    completed: ChildRun, scenario: Scenario, step: str, finding: Callable[[str], None]
) -> None:
    """At a stop token, a stop text, the end of the text or the limit; with its reason and text."""
    suffix, wrong = step.removeprefix(scenario.step(step).name), []
    whole = {
        request.prompt: got.tokens for request, got in _pairs(completed, scenario, "whole" + suffix)
    }
    for number, (request, got) in enumerate(_pairs(completed, scenario, step)):
        wanted = ending(whole[request.prompt], dict(request.sampling))
        (seen,) = got.completions
        for what in ("tokens", "finish_reason", "stop_reason", "text"):
            if getattr(seen, what) != getattr(wanted, what):
                wrong.append(
                    f"request {number} ({_asked(request)}): {what} {getattr(seen, what)!r}, "
                    f"and not {getattr(wanted, what)!r}"
                )
                break
    if wrong:
        finding(_shown(scenario, step, wrong))


@pytest.mark.held_against("grammars")
@pytest.mark.parametrize(("scenario", "step"), _against(GRAMMAR), indirect=["scenario"])
def test_structured_output_is_in_the_language_of_its_grammar(
    completed: ChildRun, scenario: Scenario, step: str, finding: Callable[[str], None]
) -> None:
    """Texts end by themselves, and are complete: JSON of the schema, a match, one of the choices.

    What is asked for beside them has no grammar, and is none's.
    """
    wrong, seen = [], 0
    for number, (request, got) in enumerate(_pairs(completed, scenario, step)):
        grammar = dict(request.sampling).get("structured")
        if grammar is None:
            continue
        seen += 1
        (completion,) = got.completions
        problem = conforms(completion.text, grammar)
        if completion.finish_reason != "stop":
            problem = f"{completion.text!r} did not end by itself ({completion.finish_reason})"
        if problem:
            wrong.append(f"request {number}: {problem}")
    if wrong or not seen:
        finding(_shown(scenario, step, wrong or ["no request has a grammar"]))


@pytest.mark.parametrize(("scenario", "step"), _against(COMPLETIONS), indirect=["scenario"])
def test_several_completions_are_as_many_as_asked_for_and_distinct(
    completed: ChildRun, scenario: Scenario, step: str, finding: Callable[[str], None]
) -> None:
    """n texts of a request at temperature 1 are n texts; a seed does not make them one."""
    wrong = []
    for number, (request, got) in enumerate(_pairs(completed, scenario, step)):
        texts = [completion.tokens for completion in got.completions]
        if len(texts) != dict(request.sampling)["n"] or len(set(texts)) != len(texts):
            wrong.append(f"request {number} ({_asked(request)}): {texts}")
    if wrong:
        finding(_shown(scenario, step, wrong))


@pytest.mark.held_against("a float64 distribution")
@pytest.mark.parametrize(("scenario", "step"), _DRAWN, indirect=["scenario"])
def test_texts_come_as_often_as_they_should(
    completed: ChildRun,
    scenario: Scenario,
    step: str,
    runs: Runs,
    finding: Callable[[str], None],
) -> None:
    """Of thousands of draws, each text has its share (chi-square, error rate 1e-6 per step).

    Drafts change when a token is computed and not how likely it is: what is accepted, drawn anew
    and added has the target's distribution (Leviathan et al., 2023, theorem 1; Chen et al., 2023).
    The draws' shares that this sees otherwise are at the distance that the text of a finding names.
    """
    pairs = _pairs(completed, scenario, step)
    request, settings = pairs[0][0], settings_of(dict(pairs[0][0].sampling))
    drawn = Counter(got.tokens for _, got in pairs)
    wanted = text_probabilities(
        request.prompt,
        drawn,
        settings,
        lambda queries: runs.reference(scenario.recipe, queries),
    )
    found = fit(drawn, wanted)
    if not found.holds:
        finding(
            f"{scenario.name}, {step}: {scenario.claim}\n  {found}\n  ({_asked(request)}; another "
            f"distribution is seen at a chi-square distance of {found.detectable:.2g})"
        )


@pytest.mark.held_against("two seeds")
@pytest.mark.parametrize(("scenario", "step"), _DRAWN, indirect=["scenario"])
def test_draws_differ(
    completed: ChildRun, scenario: Scenario, step: str, finding: Callable[[str], None]
) -> None:
    """Another seed, or another turn of the engine's own source, gives another text sooner or later.

    A quarter of the draws in a row are not all the same.
    """
    texts = [got.tokens for _, got in _pairs(completed, scenario, step)]
    quarter = len(texts) // 4
    same = [i for i in range(0, len(texts), quarter) if len(set(texts[i : i + quarter])) == 1]
    if same:
        finding(f"{scenario.name}, {step}: {quarter} draws from {same[0]} on are all {texts[0]}")


@pytest.mark.parametrize(
    "scenario",
    [
        of_scenario(s)
        for s in SCENARIOS
        if s.speculative and any(p.values[0] == s.name for p in _DRAWN)
    ],
    indirect=True,
)
def test_draws_come_from_drafts_of_which_some_are_accepted(
    completed: ChildRun, scenario: Scenario, finding: Callable[[str], None]
) -> None:
    """Both ways to a token are taken often, so that the draws' shares speak of both."""
    counts = completed.results["acceptance"]
    drafted, accepted = counts.get("drafted", 0.0), counts.get("accepted", 0.0)
    if not 0.05 * drafted < accepted < 0.95 * drafted or drafted < 1000:
        finding(f"{scenario.name}: {drafted:.0f} tokens were drafted and {accepted:.0f} accepted")
