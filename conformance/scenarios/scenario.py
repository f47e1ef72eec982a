"""What a scenario is: one engine run, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Request:
    """A prompt, as token ids, and its sampling parameters by vLLM's names."""

    prompt: tuple[int, ...]
    sampling: tuple[tuple[str, Any], ...] = ()

    @property
    def max_tokens(self) -> int:
        """How many tokens are to be generated at most."""
        return int(dict(self.sampling)["max_tokens"])


@dataclass(frozen=True)
class Step:
    """Requests that are given to the engine together, inside a stream's context if so asked."""

    name: str
    requests: tuple[Request, ...]
    inside_stream: bool = False


@dataclass(frozen=True)
class Scenario:
    """One run of a model under a subject's runner.

    ``engine`` holds arguments of ``LLM`` over the defaults of `conformance.scenarios.engine`;
    ``draft`` names the recipe of a draft model. ``kind`` is ``engine`` (in the child's own
    process), ``bench`` or ``serve`` (the vllm command, with worker processes). ``threads`` is how
    many torch computes with in the child; several children run at once, and threads of theirs that
    wait for each other cost more than they bring.
    """

    name: str
    claim: str
    recipe: str
    steps: tuple[Step, ...] = ()
    engine: dict[str, Any] = field(default_factory=dict)
    speculative: dict[str, Any] = field(default_factory=dict)
    draft: str | None = None
    engines: int = 1
    threads: int = 1
    kind: str = "engine"
    environment: dict[str, str] = field(default_factory=dict)
    limit: float = 180.0

    @property
    def in_worker_processes(self) -> bool:
        """Whether the workers live in processes of their own."""
        return self.kind != "engine" or "tensor_parallel_size" in self.engine

    def step(self, name: str) -> Step:
        """Return one step by its name."""
        return next(step for step in self.steps if step.name == name)

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary, for the child."""
        return asdict(self)


def requests(prompts: tuple[tuple[int, ...], ...], **sampling: Any) -> tuple[Request, ...]:
    """The same sampling parameters for several prompts."""
    return tuple(Request(prompt, tuple(sampling.items())) for prompt in prompts)
