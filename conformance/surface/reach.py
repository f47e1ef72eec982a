"""How functions are reached: shortest chains from the entry points, and contexts, by proof."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from conformance.surface import contexts
from conformance.surface.graph import Guard
from conformance.surface.model import Tier
from conformance.surface.program import Class, Function
from conformance.surface.worlds import GENERATION, GPU, PERHAPS, SURELY

_LEVELS = ((SURELY, True), (PERHAPS, True), (GPU, True), (PERHAPS, False), (GPU, False))
"""Worlds, and whether only proven calls count; the first that reaches a function is told."""


_WIDTH = len(contexts.BIT)
_ALL = (1 << _WIDTH) - 1
_ONES = sum(1 << (index * _WIDTH) for index in range(len(_LEVELS)))


_SPREADS: dict[int, int] = {0: 0}


def _spread(bits: int) -> int:
    """All bits of each level that has any."""
    known = _SPREADS.get(bits)
    if known is not None:
        return known
    spread = 0
    for index in range(len(_LEVELS)):
        group = _ALL << (index * _WIDTH)
        if bits & group:
            spread |= group
    _SPREADS[bits] = spread
    return spread


class Step(NamedTuple):
    """How a function was reached: from which one, at which line, under which conditions."""

    caller: Function | None
    line: int
    guard: Guard | None
    by_name: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """The way from an entry point to a function, without the last line."""

    functions: tuple[Function, ...]
    lines: tuple[int, ...]
    """Where in each function the next one is called; one shorter than ``functions``."""
    guards: tuple[Guard, ...]
    tier: Tier
    by_name: Function | None
    """The last function that was reached by its name only."""

    def text(self, line: int) -> tuple[str, ...]:
        """Steps as ``module:function:line``, down to a line of the last function."""
        return tuple(
            f"{function.module.name}:{function.qualname}:{at}"
            for function, at in zip(self.functions, (*self.lines, line), strict=True)
        )


@dataclass(slots=True)
class _Level:
    steps: dict[Function, Step]
    chains: dict[Function, Chain] = field(default_factory=dict)


class Reach:
    """What one runner generation reaches, with the best proof there is."""

    def __init__(
        self,
        generation: str,
        entries: list[Function],
        bodies: list[Function],
        owners: Iterable[Class],
    ) -> None:
        self.generation = generation
        self._own: set[Class] = {base for owner in owners for base in owner.mro}
        self._levels = [
            self._level(entries, bodies, GENERATION[generation] & worlds, proven)
            for worlds, proven in _LEVELS
        ]
        self._bits = self._contexts(entries, bodies)

    def of(self, function: Function) -> tuple[Chain, int] | None:
        """The chain to a function, and its contexts as bits; None if it is not reached."""
        for index, level in enumerate(self._levels):
            if function in level.steps:
                bits = self._bits.get(function, 0) >> (index * _WIDTH) & _ALL
                return self._chain(level, function), bits
        return None

    def _level(
        self, entries: list[Function], bodies: list[Function], mask: int, proven: bool
    ) -> _Level:
        steps: dict[Function, Step] = {}
        queue: deque[Function] = deque()
        guessed: deque[tuple[Function, Function, int, Guard | None]] = deque()
        for start in (*entries, *bodies):
            if start.mask & mask and start not in steps:
                steps[start] = Step(None, 0, None, False)
                queue.append(start)
        while queue or guessed:
            if queue:
                caller = queue.popleft()
                for key, (worlds, guard) in caller.edges.items():
                    if not worlds & mask or key[0] in steps:
                        continue
                    callee, line, _, by_name = key
                    if by_name:
                        guessed.append((caller, callee, line, guard))
                        continue
                    steps[callee] = Step(caller, line, guard, False)
                    queue.append(callee)
            elif proven:
                break
            else:
                caller, callee, line, guard = guessed.popleft()
                if callee not in steps:
                    steps[callee] = Step(caller, line, guard, True)
                    queue.append(callee)
        return _Level(steps)

    def _contexts(self, entries: list[Function], bodies: list[Function]) -> dict[Function, int]:
        """The contexts of every function at all levels, ``_WIDTH`` bits for each level."""
        masks = [GENERATION[self.generation] & worlds for worlds, _ in _LEVELS]
        proven = [is_proven for _, is_proven in _LEVELS]
        found: dict[Function, int] = {}
        owns: dict[Function, int] = {}
        everywhere: dict[tuple[int, bool], int] = {}
        outgoing: dict[Function, list[tuple[Function, int, int]]] = {}
        queue: deque[Function] = deque()

        def levels(worlds: int, by_name: bool) -> int:
            """All bits of the levels at which an edge counts."""
            key = (worlds, by_name)
            bits = everywhere.get(key)
            if bits is None:
                bits = 0
                for index, mask in enumerate(masks):
                    if worlds & mask and not (by_name and proven[index]):
                        bits |= _ALL << (index * _WIDTH)
                everywhere[key] = bits
            return bits

        def arrive(function: Function, bits: int) -> None:
            own = owns.get(function)
            if own is None:
                if function.own_contexts is None:
                    function.own_contexts = contexts.own(function)
                own = owns[function] = function.own_contexts * _ONES
            where = _spread(bits)
            if function.is_module:  # whoever imports it, and when
                bits = where & (contexts.BIT["import"] * _ONES)
            bits |= where & own
            known = found.get(function, 0)
            if bits & ~known:
                found[function] = known | bits
                queue.append(function)

        for entry in entries:
            arrive(entry, levels(entry.mask, False) & (contexts.of_entry(entry) * _ONES))
        for body in bodies:
            arrive(body, levels(body.mask, False) & (contexts.BIT["import"] * _ONES))
        stream = contexts.BIT["stream"] * _ONES
        while queue:
            caller = queue.popleft()
            bits = found[caller]
            edges = outgoing.get(caller)
            if edges is None:
                joined: dict[tuple[Function, int], int] = {}
                for (callee, _, in_stream, by_name), (worlds, _) in caller.edges.items():
                    counts = everywhere.get((worlds, by_name))
                    if counts is None:
                        counts = levels(worlds, by_name)
                    if counts:
                        key = (callee, stream if in_stream else 0)
                        joined[key] = joined.get(key, 0) | counts
                edges = outgoing[caller] = [(c, extra, m) for (c, extra), m in joined.items()]
            for callee, extra, mask in edges:
                passed = bits & mask
                if passed & ~found.get(callee, 0) or extra:
                    arrive(callee, passed | (_spread(passed) & extra))
        return found

    def _chain(self, level: _Level, function: Function) -> Chain:
        known = level.chains.get(function)
        if known is not None:
            return known
        functions, lines = [function], list[int]()
        guards: list[Guard] = []
        by_name: Function | None = None
        step = level.steps[function]
        while (caller := step.caller) is not None:
            if step.by_name and by_name is None:
                by_name = functions[-1]
            if caller.kind != "hub":  # a hub is no function of the tree: its caller calls
                functions.append(caller)
                lines.append(step.line)
                if step.guard is not None:
                    guards.append(step.guard)
            step = level.steps[caller]
        tier: Tier = "resolved"
        if by_name is not None:
            tier = "by-name"
        elif all(f.cls in self._own for f in functions):
            tier = "direct"
        chain = Chain(
            tuple(reversed(functions)), tuple(reversed(lines)), tuple(guards), tier, by_name
        )
        level.chains[function] = chain
        return chain
