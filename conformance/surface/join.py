"""The join of the two measurements of the surface: what the walker says, what the recorder saw.

The inventory and the touches have to be of the same vLLM: sites are matched by module and line.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from conformance.surface.model import GENERATIONS, Inventory, Row
from conformance.surface.recorder import Touch
from conformance.target import WrongUse

_DEFINED_IN = re.compile(r"^torch\.cuda\.(?:streams|graphs|memory|random)(?![^.])")
"""Modules whose public names ``torch.cuda`` has as well."""

_MEMBER = re.compile(r"^torch\.(?:cuda\.)?(?:Event|Stream)\.(\w+)$")
"""Events and streams of torch and of torch.cuda have the same members, and one expression may give
either; ``current_stream()`` names no class at all."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One site as the recorder saw it, in all runs and phases together."""

    attribute: str
    module: str
    function: str
    line: int
    end_line: int
    phases: tuple[str, ...]
    outcomes: tuple[str, ...]
    count: int

    @property
    def place(self) -> str:
        """Where it is, for a sentence."""
        phases = ", ".join(self.phases)
        name = "phase" if len(self.phases) == 1 else "phases"
        return f"{self.module}:{self.line} ({self.function}), in {name} {phases}"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A site that was reached on the CPU, and the row that says it is not."""

    row: Row
    seen: Seen


@dataclass(frozen=True, slots=True)
class Join:
    """Each site of one runner generation, by who knows of it.

    ``both`` and ``static_only`` are the walker's rows; ``dynamic_only`` and ``contradicted`` are
    bugs of the walker. The runs were not obliged to reach all, so ``static_only`` is no fault.
    """

    generation: str
    both: tuple[Row, ...]
    static_only: tuple[Row, ...]
    dynamic_only: tuple[Seen, ...]
    contradicted: tuple[Contradiction, ...]

    @property
    def holds(self) -> bool:
        """Whether the recorder saw nothing that the walker denies."""
        return not self.dynamic_only and not self.contradicted

    @property
    def counts(self) -> dict[str, int]:
        """How many sites there are of each kind; ``folded`` of the static ones are off the CPU."""
        return {
            "both": len(self.both),
            "static_only": len(self.static_only),
            "folded": sum(row.on_cpu == "false" for row in self.static_only),
            "dynamic_only": len(self.dynamic_only),
            "contradicted": len(self.contradicted),
        }

    def sentences(self) -> tuple[str, ...]:
        """What is wrong with the walker: a sentence for each site, and how to reproduce it."""
        return (
            *(sentence(seen) for seen in self.dynamic_only),
            *(
                f"{found.seen.attribute} is reached at {found.seen.place}, and the static surface "
                f"says that it is not reached on the CPU ({found.row.reason or 'without a reason'})"
                f": a bug of the walker; {_reproduce(found.row.attribute)}"
                for found in self.contradicted
            ),
        )


def sentence(seen: Seen) -> str:
    """Say that a site is missing from the static surface."""
    return (
        f"{seen.attribute} is reached at {seen.place}, and the static surface has no such site: "
        f"a bug of the walker; {_reproduce(seen.attribute)}"
    )


def join(inventory: Inventory, touches: Iterable[Touch], generation: str = "v1") -> Join:
    """Join the rows of a runner generation with the touches of any number of its runs.

    A touch counts if vLLM's code made it, with a runner or worker on the stack or while importing.

    Raises:
        WrongUse: there is no such runner generation.
    """
    if generation not in GENERATIONS:
        raise WrongUse(
            f"{generation!r} is no runner generation: give one of {', '.join(GENERATIONS)}."
        )
    rows = inventory.generation(generation)
    by_module: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_module[row.module].append(row)
    touched: set[Row] = set()
    dynamic_only: list[Seen] = []
    contradicted: list[Contradiction] = []
    for seen in sites(touches):
        matching = [row for row in by_module[seen.module] if matches(row, seen)]
        touched.update(matching)
        if not matching:
            dynamic_only.append(seen)
        # One expression may have several rows; it is reached if one of them may be.
        elif all(row.on_cpu == "false" for row in matching):
            contradicted.append(Contradiction(matching[0], seen))
    return Join(
        generation=generation,
        both=tuple(row for row in rows if row in touched),
        static_only=tuple(row for row in rows if row not in touched),
        dynamic_only=tuple(dynamic_only),
        contradicted=tuple(contradicted),
    )


def sites(touches: Iterable[Touch]) -> tuple[Seen, ...]:
    """Put the touches that count together by site, in a stable order."""
    groups: dict[tuple[str, int, str, str, int], list[Touch]] = defaultdict(list)
    for touch in touches:
        if touch.by_vllm and (touch.under_runner or touch.importing):
            key = (touch.module, touch.line, touch.attribute, touch.function, touch.end_line)
            groups[key].append(touch)
    return tuple(
        Seen(
            attribute=attribute,
            module=module,
            function=function,
            line=line,
            end_line=end_line,
            phases=tuple(sorted({touch.phase for touch in group})),
            outcomes=tuple(sorted({touch.outcome for touch in group})),
            count=sum(touch.count for touch in group),
        )
        for (module, line, attribute, function, end_line), group in sorted(groups.items())
    )


def matches(row: Row, seen: Seen) -> bool:
    """Whether a row is about what was seen: the same attribute, in lines that overlap.

    Overlap, and not equality: for a call over several lines Python gives the line of the name.
    """
    return (
        row.module == seen.module
        and row.line <= seen.end_line
        and seen.line <= row.end_line
        and same_attribute(row.attribute, seen.attribute)
    )


def same_attribute(static: str, dynamic: str) -> bool:
    """Whether two names, the walker's and the recorder's, are of one thing.

    The walker's may go on: it says ``torch.cuda.Stream.priority_range`` of a member that is read
    from the class, where the recorder sees ``torch.cuda.Stream``.
    """
    if static == dynamic or static.startswith(f"{dynamic}."):
        return True
    ours, theirs = canonical(static), canonical(dynamic)
    if ours == theirs or ours.startswith(f"{theirs}."):
        return True
    members = _MEMBER.match(ours), _MEMBER.match(theirs)
    return members[0] is not None and members[1] is not None and members[0][1] == members[1][1]


def canonical(attribute: str) -> str:
    """Return the public name: ``torch.cuda.streams.Event`` is ``torch.cuda.Event``."""
    return _DEFINED_IN.sub("torch.cuda", attribute)


def _reproduce(attribute: str) -> str:
    return f"reproduce it with `vllm-conformance surface --explain {attribute}`."
