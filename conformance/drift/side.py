"""A CPU side: what a runner's package binds anew and overrides, and what of a row that covers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from conformance.drift.shapes import Shape
from conformance.drift.standins import StandIn
from conformance.surface.model import Row

State = Literal[
    "rebound",
    "overridden",
    "in part",
    "for construction",
    "refused",
    "incomplete",
    "unread",
    "none",
    "not checked",
]
"""``rebound`` and ``overridden`` handle a site. ``in part``: a method of one way to it is
overridden, and there are others. ``for construction``: rebound only while the runner is made.
``refused``: what stands there does not take the call. ``incomplete``: it lacks the member.
``unread``: a name is bound that no launch reads."""

_MAKING = frozenset({"init", "import"})
_ENTRIES = {
    "compile_or_warm_up_model": "profile",
    "determine_available_memory": "profile",
    "init_device": "init",
    "load_model": "load",
    "sleep": "load",
    "wake_up": "load",
}
"""Methods of the worker that an engine calls, and the phase that each alone stands for."""
_ADDED = frozenset({"spec-decode", "stream", "async", "import"})
"""Contexts that a function adds by itself, whichever entry point leads to it."""
_DENIED = re.compile(r"not \(|.* is None$")
"""Guards that hold where an option is not asked for."""
_FACTORY = "torch.empty"


@dataclass(frozen=True, slots=True)
class Cover:
    """What a side does about one site, and how that is known."""

    state: State
    text: str

    @property
    def handled(self) -> bool:
        """Whether the site does what it should, as far as the source says."""
        return self.state in ("rebound", "overridden")


@dataclass(frozen=True, slots=True)
class Override:
    """A method of a GPU runner or worker that a subclass replaces.

    ``base`` is the replaced method's signature, None if no base class has it. ``called`` says
    whether anything calls it; ``refused`` are calls that do not fit, as sentences.
    """

    where: str
    shape: Shape
    calls_super: bool
    base: Shape | None
    base_where: str = ""
    called: bool = True
    refused: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary."""
        return {
            "where": self.where,
            "shape": self.shape.to_json(),
            "super": self.calls_super,
            "base": None if self.base is None else self.base.to_json(),
            "base_where": self.base_where,
            "called": self.called,
            "refused": list(self.refused),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Override:
        """Read what `to_json` gave."""
        return cls(
            where=data["where"],
            shape=Shape.from_json(data["shape"]),
            calls_super=data["super"],
            base=None if data["base"] is None else Shape.from_json(data["base"]),
            base_where=data["base_where"],
            called=data["called"],
            refused=tuple(data["refused"]),
        )


@dataclass(frozen=True, slots=True)
class Side:
    """One CPU side. ``overrides`` is by role, ``v1``, ``v2`` or ``worker``, and by method."""

    name: str
    stand_ins: tuple[StandIn, ...] = ()
    overrides: Mapping[str, Mapping[str, Override]] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    """Kernels, as ``triton:NAME``, that are bound where no launch reads them."""
    refuses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By role, attributes that have to be None or false where a runner or worker is made."""

    def cover(self, row: Row) -> Cover:
        """Say what this side does about a site."""
        overridden = self._overridden(row)
        if overridden is not None and overridden.handled:
            return overridden
        bound = self._bound(row)
        if bound.state == "none" and overridden is not None:
            return overridden
        return bound

    def refused(self, row: Row) -> str | None:
        """What a site needs that the runner refuses when it is made; None if there is nothing."""
        for role, names in self.refuses.items():
            if role in ("v1", "v2") and role != row.generation:
                continue
            for name in names:
                asked = any(name in g and not _DENIED.match(g) for g in row.guards)
                if asked or (name == "speculative_config" and speculates(row)):
                    return name
        return None

    def rebinds(self, attribute: str) -> bool:
        """Whether the side binds an attribute anew, or the class that it is a member of."""
        return any(True for _ in self._candidates(attribute))

    def _overridden(self, row: Row) -> Cover | None:
        in_part = None
        for text in row.chain:
            module, function = split_step(text)[:2]
            for stand_in in self.stand_ins:
                # A function or class of vLLM on the way that something else stands in for.
                if f"{module}.{function}.".startswith(f"{stand_in.target}."):
                    return Cover("overridden", f"it binds {stand_in.target} ({stand_in.where})")
            role = role_of(module, function)
            if role is None:
                continue
            method = function.rpartition(".")[2]
            override = self.overrides.get(role, {}).get(method)
            if override is None or override.calls_super:
                continue
            where = f"it replaces {function}"
            phase = _ENTRIES.get(method)
            if role == "worker" and phase and set(row.contexts) - _ADDED - {phase}:
                in_part = Cover("in part", f"{where}, which is not the only way there")
            else:
                return Cover("overridden", where)
        return in_part

    def _bound(self, row: Row) -> Cover:
        found: list[Cover] = []
        for stand_in, member in self._candidates(row.attribute):
            found.append(self._judged(row, stand_in, member))
            if found[-1].handled:
                return found[-1]
        if found:
            return found[0]
        if row.attribute == "pin_memory=True" and self.rebinds(_FACTORY):
            return Cover("rebound", "it rebinds torch's factories")
        return Cover("none", "it does nothing about it")

    def _candidates(self, attribute: str) -> list[tuple[StandIn, str]]:
        """Stand-ins for a name or for its class, with the member that is asked of the class."""
        found = []
        for stand_in in self.stand_ins:
            if attribute.startswith("triton:"):
                if is_kernel(stand_in.target, attribute):
                    found.append((stand_in, ""))
            elif stand_in.target == attribute:
                found.append((stand_in, ""))
            elif attribute.startswith(f"{stand_in.target}."):
                found.append((stand_in, attribute[len(stand_in.target) + 1 :]))
        return found

    def _judged(self, row: Row, stand_in: StandIn, member: str) -> Cover:
        where = f"it binds {stand_in.target} ({stand_in.where})"
        if row.attribute in self.unread:
            return Cover("unread", f"{where}, and the launches read another name")
        if stand_in.scoped and not member and not _is_construction(row):
            return Cover("for construction", f"{where} only while the runner is made")
        shape = stand_in.shape
        if member:
            if stand_in.members is not None and member not in stand_in.members:
                return Cover("incomplete", f"{where}, and what stands there has no {member}")
            shape = (stand_in.members or {}).get(member)
        elif stand_in.target.startswith("torch.Tensor.") and shape is not None:
            shape = replace(
                shape, names=shape.names[1:], required=max(0, shape.required - 1)
            )  # the tensor itself
        refused = shape.refuses(row.call) if shape is not None and row.kind == "call" else None
        if refused is not None:
            return Cover("refused", f"{where}, and {refused}")
        return Cover("rebound", where)


def _is_construction(row: Row) -> bool:
    """Whether a site is reached while the runner is made, and at no other time."""
    if set(row.contexts) <= _MAKING | _ADDED:
        return True
    return row.function.endswith(".__init__") and role_of(row.module, row.function) is not None


def speculates(row: Row) -> bool:
    """Whether the way to a site leads through what only speculation runs."""
    return any(
        split_step(step)[0].startswith("vllm.v1.spec_decode.")
        or split_step(step)[0] == "vllm.v1.sample.rejection_sampler"
        for step in row.chain
    )


def split_step(text: str) -> tuple[str, str, int]:
    """The module, function and line of a step of a chain."""
    module, _, rest = text.partition(":")
    function, _, line = rest.rpartition(":")
    return module, function, int(line) if line.isdecimal() else 0


def role_of(module: str, function: str) -> str | None:
    """The role whose class a method belongs to; None for any other function."""
    owner = function.rpartition(".")[0]
    if module == "vllm.v1.worker.gpu_worker" and owner == "Worker":
        return "worker"
    if module == "vllm.v1.worker.worker_base" and owner == "WorkerBase":
        return "worker"
    if module == "vllm.v1.worker.gpu_model_runner" and owner == "GPUModelRunner":
        return "v1"
    if module == "vllm.v1.worker.gpu.model_runner" and owner == "GPUModelRunner":
        return "v2"
    return None


def is_kernel(target: str, attribute: str) -> bool:
    """Whether a bound name is the kernel ``triton:NAME``; methods keep their class."""
    name = attribute.removeprefix("triton:")
    return target == name or target.endswith(f".{name}")
