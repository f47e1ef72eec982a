"""The rows of the contract: what is reached, times what must hold of it there, in three tiers.

``presence``: the attribute is there, and of the right kind for how sites use it. ``signature``: it
takes every call shape of its sites, and what the GPU's own takes. ``behaviour``: the clauses.

What a CPU surely reaches must do as a GPU does. Of what it may reach only by a way that nothing
proves, a refusal counts as well, as long as it says so: what it must not do is answer wrongly.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet

from conformance.contract import CLAUSES
from conformance.contract.attributes import ATTRIBUTE
from conformance.contract.clause import Clause
from conformance.contract.reached import NO_ATTRIBUTES, Shape, Use, uses
from conformance.surface.model import Inventory
from conformance.target import installed_versions

Tier = Literal["presence", "signature", "behaviour"]
TIERS: tuple[Tier, ...] = ("presence", "signature", "behaviour")

REFUSES = "a-launch-without-its-arguments-is-refused"
"""What holds of every kernel, whether or not anything stands in for it: no launch is silent."""

_BEYOND = "vllm."
"""Clauses on functions of vLLM's own, which no surface has; they belong to sampling."""


_IN_USE = frozenset({"call", "launch", "predicate", "read", "argument"})
"""Kinds of use that ask something of an attribute; the others only name it."""


def _in_use(context: str) -> frozenset[str]:
    """A read while a module is imported keeps the attribute for later, and asks nothing of it."""
    return _IN_USE - {"read"} if context == "import" else _IN_USE


@dataclass(frozen=True)
class ContractRow:
    """One check of the contract: ``what`` must hold of an attribute, or of several, in a context.

    ``what`` is empty for presence, a call shape for signature, and a clause's name for behaviour.
    """

    tier: Tier
    name: str
    """The attribute, or the clause's name for behaviour."""
    context: str
    uses: tuple[Use, ...]
    shape: Shape | None = None
    clause: Clause | None = None

    @property
    def id(self) -> str:
        """Its name among all rows of its tier: ``torch.cuda.Event(blocking=)@execute``."""
        return f"{self.name}{self.shape if self.shape is not None else ''}@{self.context}"

    @property
    def family(self) -> str:
        """What it is told together with: the attribute's home, or the clause's module."""
        if self.clause is not None:
            return self.clause.name.partition("/")[0]
        if self.name.startswith("triton:"):
            return "Triton kernels" if self.tier != "behaviour" else "kernels"
        return ".".join(self.name.split(".")[: 2 if self.name.startswith("torch.") else 1])

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes that it speaks of and that are reached in this context."""
        return tuple(use.attribute for use in self.uses)

    def is_certain(self, cut: frozenset[str] = frozenset()) -> bool:
        """Whether a CPU surely reaches what it speaks of; see `Use.is_certain`.

        What nothing on the surface has (functions of vLLM's own) is taken for reached.
        """
        kinds = None if self.tier == "presence" else _in_use(self.context)
        shape = self.shape if self.uses and self.shape in self.uses[0].shapes else None
        return not self.uses or any(use.is_certain(cut, kinds, shape) for use in self.uses)

    @property
    def fails_for_bare(self) -> bool:
        """Whether unpatched torch is known not to do as a GPU does: what no CPU build does.

        A build for CUDA answers some calls without a device too; there nothing is known before.
        """
        return (
            self.clause is not None
            and not self.clause.bare_holds
            and self.is_certain()
            and _torch_is_a_cpu_build()
        )


@functools.cache
def _torch_is_a_cpu_build() -> bool:
    return (installed_versions().torch or "").endswith("+cpu")


@dataclass(frozen=True)
class Contract:
    """All rows for one vLLM and one runner generation, and what has no contract."""

    rows: tuple[ContractRow, ...]
    uncovered: tuple[Use, ...]
    """Uses of attributes for which nothing says what must hold; there should be none."""

    @classmethod
    def of(cls, inventory: Inventory, generation: str) -> Contract:
        """Make the rows of what an inventory says is reached."""
        found = uses(inventory, generation)
        covered = {name for clause in CLAUSES for name in clause.attributes}
        return cls(
            tuple(_rows(found, inventory.vllm)),
            tuple(use for use in found if not _has_contract(use, covered)),
        )


def _has_contract(use: Use, covered: set[str]) -> bool:
    if use.attribute.startswith("triton:"):
        # What a launch computes is a clause's to say. Where no launch is certain a refusal will do,
        # and where vLLM's own CPU worker replaces the way to it, presence says all there is to say.
        launched = any(s.on_cpu == "true" and s.upstream != "overridden" for s in use.sites)
        return use.attribute in covered or not launched
    return use.attribute in covered and (
        use.attribute in ATTRIBUTE
        or use.attribute in NO_ATTRIBUTES
        or use.attribute.startswith("platform.")
    )


def _rows(found: tuple[Use, ...], vllm: str) -> Iterator[ContractRow]:
    by_place = {(use.attribute, use.context): use for use in found}
    contexts = sorted({use.context for use in found})
    for use in found:
        if use.attribute in NO_ATTRIBUTES:
            continue
        yield ContractRow("presence", use.attribute, use.context, (use,))
        for shape in _shapes(use):
            yield ContractRow("signature", use.attribute, use.context, (use,), shape=shape)
        if use.attribute.startswith("triton:"):
            name = f"{use.attribute}/{REFUSES}"
            yield ContractRow("behaviour", name, use.context, (use,))
    for clause in CLAUSES:
        if clause.versions and not SpecifierSet(clause.versions).contains(vllm, prereleases=True):
            continue
        if all(name.startswith(_BEYOND) for name in clause.attributes):
            yield ContractRow("behaviour", clause.name, "sample", (), clause=clause)
            continue
        for context in contexts:
            there = [by_place.get((name, context)) for name in clause.attributes]
            reached = tuple(use for use in there if use is not None)
            if any(use.kinds & _in_use(context) for use in reached) or (
                reached and clause.bare_holds
            ):
                yield ContractRow("behaviour", clause.name, context, reached, clause=clause)


def _shapes(use: Use) -> tuple[Shape, ...]:
    attribute = ATTRIBUTE.get(use.attribute)
    calls = use.kinds & {"call", "launch", "predicate"}
    own = attribute.gpus if attribute is not None and calls else ()
    return tuple(sorted({*use.shapes, *own}))
