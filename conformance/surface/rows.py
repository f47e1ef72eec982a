"""From what the solver found to the rows of an inventory: sites, worlds, reasons."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from conformance.surface import contexts, torch_api
from conformance.surface.graph import Guard, Occurrence, Value
from conformance.surface.model import Call, Kind, OnCpu, Row
from conformance.surface.program import Class, Function
from conformance.surface.reach import Chain, Reach
from conformance.surface.solver import Solver
from conformance.surface.upstream import Upstream
from conformance.surface.worlds import GENERATION, GPU, ON_CPU, SURELY, on_cpu

_PREDICATES = ("is_", "has_", "support", "use_", "uses_", "can_")
_LONGEST = 120
_MOST_KERNELS = 6
"""A launch of more kernels than this is a helper that launches what it is given."""
_Generation = Literal["v1", "v2"]
_VERDICTS: tuple[OnCpu, ...] = ("false", "unknown", "true")
_GENERATIONS: tuple[_Generation, ...] = ("v1", "v2")


@dataclass(frozen=True, slots=True)
class Starts:
    """Where a generation's walk starts: classes that drive it, and their methods."""

    owners: list[Class]
    entries: list[Function]


@dataclass(slots=True)
class _Site:
    """One attribute at one place, with the worlds in which it is reached there."""

    function: Function
    occurrence: Occurrence
    attribute: str
    kind: Kind
    mask: int
    guessed: bool


@dataclass(frozen=True, slots=True)
class _Way:
    """How one generation reaches a site, and whether on a CPU."""

    site: _Site
    generation: _Generation
    chain: Chain
    contexts: int
    guessed: bool
    on_cpu: OnCpu

    @property
    def rank(self) -> tuple[int, bool]:
        """The more a way proves, the higher."""
        return _VERDICTS.index(self.on_cpu), not self.guessed


def rows(solver: Solver, starts: dict[str, Starts], upstream: Upstream) -> Iterator[Row]:
    """All rows of a walk."""
    return _Rows(starts, upstream).build(solver.functions)


class _Rows:
    def __init__(self, starts: dict[str, Starts], upstream: Upstream) -> None:
        self.upstream = upstream
        self.reaches = {
            generation: Reach(generation, start.entries, _bodies(start.owners), start.owners)
            for generation, start in starts.items()
        }
        self.owners = {owner for start in starts.values() for owner in start.owners}
        self._texts: dict[int, str] = {}

    def build(self, functions: list[Function]) -> Iterator[Row]:
        for copies in _copies(functions):
            sites: dict[tuple[str, str, int], list[_Site]] = {}
            for function in copies:
                for site in _sites(function):
                    key = (site.attribute, site.kind, site.occurrence.line)
                    sites.setdefault(key, []).append(site)
            for same in sites.values():
                yield from self._rows(same)

    def _rows(self, sites: list[_Site]) -> Iterator[Row]:
        """A row for all generations that reach a site, or one for each if a CPU tells them apart.

        What only one generation proves would else be said of the other too.
        """
        ways = [way for generation in _GENERATIONS if (way := self._way(sites, generation))]
        if not ways:
            return
        if len({way.on_cpu for way in ways}) == 1:
            best = min(ways, key=lambda way: way.chain.by_name is not None)
            label: Literal["v1", "v2", "both"] = "both" if len(ways) == 2 else best.generation
            bits = 0
            for way in ways:
                bits |= way.contexts
            yield self._row(best, label, bits)
            return
        for way in ways:
            yield self._row(way, way.generation, way.contexts)

    def _way(self, sites: list[_Site], generation: _Generation) -> _Way | None:
        """The best way of a generation to a site, with the contexts of all that are as good."""
        best: _Way | None = None
        for site in sites:
            mask = site.mask & GENERATION[generation]
            reached = self.reaches[generation].of(site.function) if mask else None
            if reached is None:
                continue
            chain, bits = reached
            guessed = site.guessed or chain.by_name is not None
            verdict = on_cpu(mask & ~SURELY if guessed else mask)
            way = _Way(site, generation, chain, bits, guessed, verdict)
            if best is None or way.rank > best.rank:
                best = way
            elif way.rank == best.rank:
                best = replace(best, contexts=best.contexts | bits)
        return best

    def _row(self, way: _Way, label: Literal["v1", "v2", "both"], bits: int) -> Row:
        site = way.site
        occurrence = site.occurrence
        if occurrence.guard.in_stream:
            bits |= contexts.BIT["stream"]
        return Row(
            attribute=site.attribute,
            kind=site.kind,
            module=site.function.module.name,
            function=site.function.qualname,
            line=occurrence.line,
            end_line=occurrence.end_line,
            contexts=contexts.names(bits),
            tier="by-name" if way.guessed else way.chain.tier,
            chain=way.chain.text(occurrence.line),
            guards=tuple(self._guards(occurrence.guard)),
            generation=label,
            on_cpu=way.on_cpu,
            reason=self._reason(way),
            call=self._call(occurrence.call) if occurrence.call is not None else None,
            upstream=self._upstream(site.attribute, way.generation, way.chain),
        )

    def _upstream(
        self, attribute: str, generation: str, chain: Chain
    ) -> Literal["rebound", "overridden", "none"]:
        for function in chain.functions:
            if function.cls is None or "." not in function.qualname:
                continue
            for owner in self.owners:
                if function.cls in owner.mro:
                    role = "worker" if owner.qualname == "Worker" else generation
                    if self.upstream.overrides(role, function.name):
                        return "overridden"
        return "rebound" if self.upstream.rebinds(attribute) else "none"

    def _reason(self, way: _Way) -> str:
        site = way.site
        guard, chain = site.occurrence.guard, way.chain
        if way.on_cpu == "false":
            closed = self._closed(guard, way.generation)
            if closed is not None:
                return closed
            for function, around in zip(reversed(chain.functions), chain.guards, strict=False):
                closed = self._closed(around, way.generation)
                if closed is not None:
                    return f"{function.qualname} is called only where not so: {closed}"
            if site.function.mask & GENERATION[way.generation] & ON_CPU:
                return "its object is made only where a CPU does not get"
            return "only a GPU platform leads here"
        if way.on_cpu == "unknown":
            for start in (guard, *chain.guards):
                for inner in _outward(start):
                    own = inner.own & GENERATION[way.generation]
                    if own & ON_CPU and not own & SURELY and inner.condition:
                        text = self._text(inner.condition)
                        return f"{text}: nothing decides this for a CPU"
            if chain.by_name is not None:
                return f"{chain.by_name.qualname} is reached by its name only"
            if site.guessed:
                return "the object's type is not known"
            return "its object comes from where a condition is not decided"
        return "no condition on the way excludes a CPU"

    def _closed(self, guard: Guard, generation: _Generation) -> str | None:
        """The outermost condition that no CPU passes, as a sentence."""
        found = None
        for inner in _outward(guard):
            if not inner.own & GENERATION[generation] & ON_CPU:
                if inner.condition is None:
                    found = "an annotation is never evaluated here"
                else:
                    state = "false" if inner.holds else "true"
                    found = f"{self._text(inner.condition)} is {state} on a CPU"
        return found

    def _guards(self, guard: Guard) -> Iterator[str]:
        conditions = [(g.condition, g.holds) for g in _outward(guard) if g.condition is not None]
        texts = (
            self._text(condition) if holds else f"not ({self._text(condition)})"
            for condition, holds in reversed(conditions)
        )
        yield from dict.fromkeys(texts)

    def _call(self, node: ast.Call) -> Call:
        return Call(
            positional=tuple(self._text(argument) for argument in node.args),
            keywords=tuple(
                f"{k.arg}={self._text(k.value)}" if k.arg else f"**{self._text(k.value)}"
                for k in node.keywords
            ),
        )

    def _text(self, node: ast.expr) -> str:
        text = self._texts.get(id(node))
        if text is None:
            text = " ".join(ast.unparse(node).split())
            text = text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
            self._texts[id(node)] = text
        return text


def _copies(functions: list[Function]) -> Iterator[list[Function]]:
    """Functions that have a site, those of one definition together."""
    groups: dict[int, list[Function]] = {}
    for function in functions:
        if function.occurrences:
            groups.setdefault(id(function.node), []).append(function)
    yield from groups.values()


def _sites(function: Function) -> Iterator[_Site]:
    sites: dict[tuple[str, str, int], _Site] = {}
    for occurrence in function.occurrences:
        for attribute, kind, mask, guessed in _found(function, occurrence):
            site = _Site(function, occurrence, attribute, kind, mask, guessed)
            key = (attribute, kind, occurrence.line)
            sites[key] = _joined(sites[key], site) if key in sites else site
    yield from sites.values()


def _found(function: Function, occurrence: Occurrence) -> Iterator[tuple[str, Kind, int, bool]]:
    """What an occurrence reaches: attribute, kind, worlds, and whether it is a guess."""
    # On a GPU no condition is decided.
    here = function.mask & (occurrence.guard.mask | GPU)
    kind: Kind = occurrence.kind  # type: ignore[assignment]
    name = occurrence.attribute
    if kind == "argument":
        yield name, kind, here, False
        return
    values = occurrence.base.values if occurrence.base is not None else {}
    if kind == "launch":
        yield from _launched(values, here)
        return
    if kind == "call":
        called = values if not name else occurrence.callee.values if occurrence.callee else {}
        behind: dict[Value, int] = {}
        for value, worlds in called.items():
            for kernel, others in _kernels_behind(value).items():
                behind[kernel] = behind.get(kernel, 0) | (worlds & others)
        yield from _launched(behind, here)
    if not name:  # a call of a name
        for value, worlds in values.items():
            if value.kind == "external" and torch_api.is_device(value.name):
                yield value.name, kind, here & worlds, False
        return
    known = False
    if occurrence.callee is not None:  # an alias that is called
        for value, worlds in occurrence.callee.values.items():
            if value.kind == "external" and torch_api.is_device(value.name) and here & worlds:
                known = True
                yield value.name, kind, here & worlds, False
    for value, worlds in values.items():
        attribute = _attribute(value, name)
        if attribute is None:
            known |= value.kind in ("instance", "module", "class", "external instance")
        elif attribute.startswith("platform."):
            known = True
            yield attribute, "predicate", here, False
        elif here & worlds:
            known = True
            yield attribute, kind, here & worlds, False
    if not known:
        guess = _guess(occurrence)
        if guess is not None:
            yield guess, kind, here, True


def _launched(values: dict[Value, int], here: int) -> Iterator[tuple[str, Kind, int, bool]]:
    kernels = [v for v in values if v.function is not None and v.function.kind == "kernel"]
    if len(kernels) <= _MOST_KERNELS:
        for value in kernels:
            assert value.function is not None
            name = value.function.qualname.rpartition("<locals>.")[2]
            yield f"triton:{name}", "launch", here & values[value], False


def _kernels_behind(value: Value) -> dict[Value, int]:
    """Kernels that a call launches through a helper.

    A decorator was given one beside the function that is called, or the object that is called has
    one among its methods.
    """
    found: dict[Value, int] = {}
    if value.function is not None and value.function.kind != "kernel":
        for node in value.function.decorated_with:
            found.update(node.values)
    elif value.kind == "instance" and value.cls is not None and _is_callable(value.cls):
        for base in value.cls.mro:
            for name, method in base.methods.items():
                if method.kind == "kernel":
                    found.update(base.attributes[name].values)
    return found


def _is_callable(cls: Class) -> bool:
    return any("__call__" in base.methods for base in cls.mro)


def _joined(one: _Site, other: _Site) -> _Site:
    """Two occurrences of one attribute on one line: the one with more worlds stands for both."""
    better = one if one.mask & SURELY or not other.mask & ON_CPU else other
    better.mask = one.mask | other.mask
    better.guessed = one.guessed and other.guessed
    return better


def _bodies(owners: list[Class]) -> list[Function]:
    """The modules that are imported before any entry point can run."""
    bodies: dict[Function, None] = {}
    for owner in owners:
        program = owner.module.program
        parts = owner.module.name.split(".")
        names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
        for name in (*names, "vllm.platforms.cpu", "vllm.platforms.cuda"):
            module = program.module(name)
            if module is not None:
                bodies[module.body] = None
    return list(bodies)


def _attribute(value: Value, name: str) -> str | None:
    """The surface's name of an attribute read from a value, or None."""
    match value.kind:
        case "external":
            if not value.name.startswith("torch"):
                return None
            full = torch_api.canonical(f"{value.name}.{name}")
            if full in torch_api.NAMESPACES or torch_api.is_leaf(value.name):
                return None
            return full if torch_api.is_device(full) else None
        case "external instance":
            if value.name == "torch.Tensor":
                return f"torch.Tensor.{name}" if name in torch_api.TENSOR_METHODS else None
            return f"{value.name}.{name}" if torch_api.is_member(value.name, name) else None
        case "instance" if name.startswith(_PREDICATES):
            assert value.cls is not None
            if any(
                base.qualname == "Platform" and base.module.name.startswith("vllm.platforms")
                for base in value.cls.mro
            ):
                return f"platform.{name}"
            return None
        case _:
            return None


def _guess(occurrence: Occurrence) -> str | None:
    """What a member's name, and that of its object, say when nothing else is known."""
    name = occurrence.attribute
    if occurrence.kind in ("write", "annotation", "class"):
        return None
    if name in torch_api.TENSOR_METHODS:
        return f"torch.Tensor.{name}" if occurrence.kind == "call" else None
    if name in torch_api.MEMBERS:
        return f"{torch_api.MEMBERS[name]}.{name}"
    for word, (owner, members) in torch_api.AMBIGUOUS_MEMBERS.items():
        if name in members and word in occurrence.owner.lower():
            return f"{owner}.{name}"
    return None


def _outward(guard: Guard) -> Iterator[Guard]:
    current: Guard | None = guard
    while current is not None:
        yield current
        current = current.outer
