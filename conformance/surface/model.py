"""What the surface is made of: sites, and the inventory that holds them. Plain data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

SCHEMA = "vllm-conformance/surface/1"

Kind = Literal[
    "call", "read", "write", "annotation", "argument", "launch", "predicate", "import", "class"
]
Tier = Literal["direct", "resolved", "by-name"]
OnCpu = Literal["true", "false", "unknown"]

GENERATIONS = ("v1", "v2")

CONTEXTS = (
    "import",
    "init",
    "load",
    "profile",
    "execute",
    "sample",
    "spec-decode",
    "stream",
    "async",
    "shutdown",
)


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments that a site passes, as source text.

    ``keywords`` are ``name=value``; a ``*x`` or ``**x`` is kept as it is written.
    """

    positional: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The arguments as one would write them."""
        return ", ".join((*self.positional, *self.keywords))


@dataclass(frozen=True, slots=True)
class Row:
    """One site of the surface, and how a runner reaches it.

    ``line`` to ``end_line`` is the expression that names the attribute. ``chain`` starts at a
    runner's or worker's entry point and ends at the site's function; each step is
    ``module:function:line``, the line being where the next step is called, at the end the site's.
    ``guards`` are the conditions in force, outermost first. ``reason`` says why ``on_cpu`` is what
    it is. ``upstream`` is what vLLM's own CPU runner does about it: ``rebound`` (it assigns the
    attribute), ``overridden`` (its runner or worker replaces a method of the chain) or ``none``.

    A site that the generations reach has one row, or one for each if ``on_cpu`` differs.
    """

    attribute: str
    kind: Kind
    module: str
    function: str
    line: int
    end_line: int
    contexts: tuple[str, ...]
    tier: Tier
    chain: tuple[str, ...]
    guards: tuple[str, ...]
    generation: Literal["v1", "v2", "both"]
    on_cpu: OnCpu
    reason: str
    call: Call | None = None
    upstream: Literal["rebound", "overridden", "none"] = "none"

    @property
    def key(self) -> tuple[Any, ...]:
        """What rows are sorted by, and two rows never share."""
        return (
            self.module,
            self.line,
            self.attribute,
            self.kind,
            self.function,
            self.end_line,
            self.generation,
        )

    def to_json(self) -> dict[str, Any]:
        """The row as in ``surface --format json``; ``on_cpu`` is true, false or ``"unknown"``."""
        on_cpu: Any = {"true": True, "false": False}.get(self.on_cpu, "unknown")
        return {
            "attribute": self.attribute,
            "kind": self.kind,
            "module": self.module,
            "function": self.function,
            "line": self.line,
            "end_line": self.end_line,
            "contexts": list(self.contexts),
            "tier": self.tier,
            "chain": list(self.chain),
            "guards": list(self.guards),
            "generation": self.generation,
            "on_cpu": on_cpu,
            "reason": self.reason,
            "call": None
            if self.call is None
            else {
                "positional": list(self.call.positional),
                "keywords": list(self.call.keywords),
            },
            "upstream": self.upstream,
        }


@dataclass(frozen=True, slots=True)
class Inventory:
    """The surface of one vLLM: what its runners reach of the device."""

    vllm: str
    rows: tuple[Row, ...]

    @classmethod
    def of(cls, vllm: str, rows: Iterable[Row]) -> Inventory:
        """Rows in their stable order."""
        return cls(vllm, tuple(sorted(rows, key=lambda row: row.key)))

    def generation(self, generation: str) -> tuple[Row, ...]:
        """The rows that one runner generation, ``v1`` or ``v2``, reaches."""
        return tuple(row for row in self.rows if row.generation in (generation, "both"))
