"""Which site of the old version is which of the new one. Lines never count.

What both runners reach is compared for each of them, for one version may tell them apart where the
other does not. Sites are paired in rounds, each taking what the earlier ones left: the same
attribute in the same function; then in a function of the same name in another module; then, where
a function is gone and another has come, in the one that is used alike; then, at the same place,
another attribute that does the same; at last the same attribute wherever it is as easy to get to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher

from conformance.drift.judging import needs
from conformance.drift.side import split_step
from conformance.surface.model import Row

_ALIKE = 0.6
"""How alike two names must be to be one that was renamed, 0 to 1."""

_NO_USE = ("annotation", "import", "predicate", "class", "write")


@dataclass(frozen=True, slots=True)
class Pair:
    """One site, before and after."""

    before: Row
    after: Row

    @property
    def moved(self) -> bool:
        """Whether it is another attribute now."""
        return self.before.attribute != self.after.attribute


@dataclass(slots=True)
class Pairing:
    """All sites of two versions: paired, gone, come."""

    pairs: list[Pair] = field(default_factory=list)
    gone: list[Row] = field(default_factory=list)
    come: list[Row] = field(default_factory=list)


def is_use(row: Row) -> bool:
    """Whether a row asks something of the device: what is only named breaks nothing."""
    return row.kind not in _NO_USE and not row.attribute.startswith("platform.")


def by_generation(rows: Iterable[Row]) -> list[Row]:
    """Rows with one for each generation in the place of one for both."""
    found = []
    for row in rows:
        if row.generation == "both":
            found += [replace(row, generation="v1"), replace(row, generation="v2")]
        else:
            found.append(row)
    return found


def pair(old: Iterable[Row], new: Iterable[Row]) -> Pairing:
    """Pair the uses of two versions; a row that is of both generations is of none here."""
    result = Pairing(gone=[r for r in old if is_use(r)], come=[r for r in new if is_use(r)])
    functions = _renamed(result.gone, result.come)

    def place(row: Row) -> tuple[str, str]:
        return functions.get((row.module, row.function), (row.module, row.function))

    def last(row: Row) -> str:
        return _last(row.function)

    rounds: tuple[Callable[[Row], Hashable], ...] = (
        lambda row: (row.attribute, row.kind, row.module, row.function, _arguments(row)),
        lambda row: (row.attribute, row.kind, row.module, row.function),
        lambda row: (row.attribute, row.kind, row.function, _arguments(row)),
        lambda row: (row.attribute, row.kind, last(row), _arguments(row)),
        lambda row: (row.attribute, row.kind, last(row)),
        lambda row: (row.attribute, row.kind, *place(row)),
        # A helper that was put between: the same callers lead to the same use.
        lambda row: (row.attribute, row.kind, row.module, _caller(row)),
        lambda row: (equivalent(row.attribute), row.module, row.function),
        lambda row: (equivalent(row.attribute), *place(row)),
        lambda row: (equivalent(row.attribute), last(row)),
        # A use that went from one place to another that is as easy to get to is no new one.
        lambda row: (row.attribute, row.kind, row.on_cpu, needs(row)),
    )
    for key in rounds:
        _round(result, lambda row, key=key: (row.generation, key(row)))  # type: ignore[misc]
    _kernels(result, place)
    return result


def equivalent(attribute: str) -> str:
    """One name for what does the same under torch.cuda, torch.accelerator and torch."""
    for prefix in ("torch.cuda.memory.", "torch.cuda.", "torch.accelerator.", "torch."):
        if attribute.startswith(prefix):
            name = attribute[len(prefix) :]
            return _SAME.get(name, name)
    return attribute


_SAME = {
    "current_device": "current_device_index",
    "device": "device_index",
    "mem_get_info": "get_memory_info",
    "set_device": "set_device_index",
}
"""Names of torch.cuda whose counterpart in torch.accelerator is called otherwise."""


def _round(result: Pairing, key: Callable[[Row], Hashable]) -> None:
    waiting: dict[Hashable, list[Row]] = defaultdict(list)
    for row in result.gone:
        waiting[key(row)].append(row)
    left = []
    taken: set[int] = set()
    for row in result.come:
        candidates = waiting.get(key(row))
        if not candidates:
            left.append(row)
            continue
        best = min(range(len(candidates)), key=lambda i: _distance(candidates[i], row))
        before = candidates.pop(best)
        taken.add(id(before))
        result.pairs.append(Pair(before, row))
    result.gone = [row for row in result.gone if id(row) not in taken]
    result.come = left


def _distance(one: Row, other: Row) -> tuple[object, ...]:
    """What decides between several candidates; those of one order stay in it."""
    return (
        one.attribute != other.attribute,
        one.module != other.module,
        one.function != other.function,
        one.on_cpu != other.on_cpu,
        _arguments(one) != _arguments(other),
        one.guards != other.guards,
        one.line,
    )


def _kernels(result: Pairing, place: Callable[[Row], Hashable]) -> None:
    """Pair launches at one place whose kernels have names alike: a kernel that was renamed."""
    gone = [row for row in result.gone if row.attribute.startswith("triton:")]
    for row in [row for row in result.come if row.attribute.startswith("triton:")]:
        near = [
            other
            for other in gone
            if other.generation == row.generation
            and (place(other) == place(row) or other.module == row.module)
        ]
        scored = [
            (_likeness(_plain(other.attribute), _plain(row.attribute)), other) for other in near
        ]
        best = max(scored, key=lambda item: (item[0], -item[1].line), default=None)
        if best is not None and best[0] >= _ALIKE:
            gone.remove(best[1])
            result.gone.remove(best[1])
            result.come.remove(row)
            result.pairs.append(Pair(best[1], row))


def _plain(kernel: str) -> str:
    """A kernel's name without what its form adds: the method of a class, underscores, case."""
    name = kernel.removeprefix("triton:").removesuffix(".kernel")
    return name.lower().replace("_", "").replace("kernel", "").replace("triton", "")


def _renamed(gone: Sequence[Row], come: Sequence[Row]) -> dict[tuple[str, str], tuple[str, str]]:
    """New functions that are old ones under another name: of one module or class, used alike."""
    before = _uses(gone)
    after = _uses(come)
    old = {key: uses for key, uses in before.items() if key not in after}
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for key, uses in after.items():
        if key in before:
            continue
        best: tuple[float, tuple[str, str]] | None = None
        for other, others in old.items():
            if other[0] != key[0] and other[1] != key[1]:
                continue
            shared = len(uses & others) / len(uses | others)
            likeness = _likeness(_last(other[1]), _last(key[1]))
            score = (shared + likeness) / 2
            if shared and score >= _ALIKE and (best is None or score > best[0]):
                best = (score, other)
        if best is not None:
            found[key] = best[1]
            del old[best[1]]
    return found


def _uses(rows: Iterable[Row]) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in rows:
        found[row.module, row.function].add(equivalent(row.attribute))
    return found


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one, other, autojunk=False).ratio()


def _last(function: str) -> str:
    return function.rpartition(".")[2]


def _caller(row: Row) -> str:
    """The function that leads to the site's own, by the chain that is told."""
    return split_step(row.chain[-2])[1] if len(row.chain) > 1 else row.function


def _arguments(row: Row) -> str:
    return row.call.text if row.call is not None else ""
