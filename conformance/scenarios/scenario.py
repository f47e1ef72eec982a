"""What a scenario is: engine runs, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from packaging.specifiers import SpecifierSet

TRANSFORMERS = "transformers"
"""Greedy tokens, and log-probabilities where they were asked for, are held against transformers."""


@dataclass(frozen=True)
class Request:
    """A prompt, as token ids, and its parameters by vLLM's names.

    ``adapter`` names the recipe of a LoRA adapter that the request uses.
    """

    prompt: tuple[int, ...]
    sampling: tuple[tuple[str, Any], ...] = ()
    adapter: str | None = None

    @property
    def max_tokens(self) -> int:
        """How many tokens are to be generated at most."""
        return int(dict(self.sampling)["max_tokens"])

    @property
    def logprobs(self) -> int | None:
        """How many log-probabilities per token are asked for."""
        return dict(self.sampling).get("logprobs")


@dataclass(frozen=True)
class Step:
    """Requests that are given to the engine together, inside a stream's context if so asked.

    ``call`` is the module of `conformance.scenarios.driving` that does it. ``against`` says what
    the outputs are held against (`TRANSFORMERS`, or None: the checks of the step's own kind say).
    ``same_as`` names earlier steps whose requests, in order, must get the same tokens; a step with
    fewer requests is held against as many of the other's.
    """

    name: str
    requests: tuple[Request, ...]
    inside_stream: bool = False
    call: str = "generate"
    against: str | None = None
    same_as: tuple[str, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    """What the call needs besides the requests."""

    @property
    def logprobs(self) -> int | None:
        """The number of log-probabilities that every request asks for, if all ask for as many."""
        asked = {request.logprobs for request in self.requests}
        return asked.pop() if len(asked) == 1 else None


@dataclass(frozen=True)
class Refusal:
    """A vLLM that does not run a scenario on a CPU, and says so.

    ``message`` is a part of its own error's text; ``versions`` (PEP 440) are those that refuse.
    A run that fails otherwise, or does not fail, is a finding. ``subjects`` is empty for all.
    """

    message: str
    versions: str = ""
    subjects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scenario:
    """One or more engines, one after the other in one process, under a subject's runner.

    ``engine`` holds arguments of ``LLM`` over the defaults of `conformance.scenarios.engine`;
    ``draft`` names the recipe of a draft model. ``variants`` are the engines: a name, and arguments
    over ``engine`` (``speculative_config`` over ``speculative``; None takes one away). Every engine
    runs all steps, and they must all give the same tokens. A step's results in a variant are named
    ``step#variant``; those of the variant with the empty name, ``step``.

    ``kind`` is ``engine`` (in the child's own process), ``bench`` or ``serve`` (the vllm command,
    with worker processes). ``threads`` is how many torch computes with in the child; several
    children run at once, and threads of theirs that wait for each other cost more than they bring.
    ``versions`` (PEP 440) are the releases that have what it is about. ``nightly``: it takes long,
    and runs only with ``--nightly``. ``adapters`` are the recipes of LoRA adapters. ``on_v2``: it
    is run on the V2 runner too, whose kernels are interpreted.
    """

    name: str
    claim: str
    recipe: str
    steps: tuple[Step, ...] = ()
    engine: dict[str, Any] = field(default_factory=dict)
    speculative: dict[str, Any] = field(default_factory=dict)
    draft: str | None = None
    variants: dict[str, dict[str, Any]] = field(default_factory=lambda: {"": {}})
    threads: int = 1
    kind: str = "engine"
    environment: dict[str, str] = field(default_factory=dict)
    limit: float = 180.0
    versions: str = ""
    refusals: tuple[Refusal, ...] = ()
    nightly: bool = False
    adapters: tuple[str, ...] = ()
    on_v2: bool = True

    @property
    def in_worker_processes(self) -> bool:
        """Whether the workers live in processes of their own."""
        return self.kind != "engine" or "tensor_parallel_size" in self.engine

    @property
    def dtype(self) -> str:
        """What the engines compute in."""
        return str(self.engine.get("dtype", "float32"))

    @property
    def runs(self) -> tuple[tuple[Step, str], ...]:
        """Every step in every engine, with the name of its results."""
        return tuple(
            (step, f"{step.name}#{variant}" if variant else step.name)
            for variant in self.variants
            for step in self.steps
        )

    def step(self, name: str) -> Step:
        """Return a step by its name, or by that of its results."""
        return next(step for step in self.steps if step.name == name.partition("#")[0])

    def exists_in(self, vllm: str) -> bool:
        """Whether a release of vLLM has what this is about."""
        return contains(self.versions, vllm)

    def refusal(self, vllm: str, subject: str) -> Refusal | None:
        """What a release of vLLM says to a subject instead of running this; None if it runs."""
        for refusal in self.refusals:
            named = not refusal.subjects or subject in refusal.subjects
            if named and contains(refusal.versions, vllm):
                return refusal
        return None

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, for the child."""
        return asdict(self)


def requests(prompts: tuple[tuple[int, ...], ...], **sampling: Any) -> tuple[Request, ...]:
    """The same sampling parameters for several prompts."""
    return tuple(Request(prompt, tuple(sampling.items())) for prompt in prompts)


def contains(versions: str, vllm: str) -> bool:
    """Whether a set of versions (PEP 440) has a release of vLLM; the empty set has all."""
    return not versions or SpecifierSet(versions).contains(vllm, prereleases=True)
