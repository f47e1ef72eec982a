"""Applying patches and taking them back, exactly.

A name may be held in more places than the one it is defined in: ``from torch.cuda import Stream``
copies the binding into the importing module. Applying therefore rebinds every copy that a loaded
vLLM module holds, and restoring rebinds every copy that a module took in the meantime.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from packaging.specifiers import SpecifierSet

from runner_under_test.patches.patch import (
    AcceleratorPresent,
    Patch,
    PatchError,
    PatchTargetMissing,
)

_ABSENT = object()
_SEARCHED_PACKAGES = ("vllm",)


@dataclass
class Applied:
    """A patch in force: where it sits, what was there, and who else held that."""

    patch: Patch
    holder: Any
    attribute: str
    own: Any
    """What the holder's own namespace had under the name; absent if it was inherited."""
    original: Any
    replacement: Any
    copies: list[tuple[Any, str]] = field(default_factory=list)


@dataclass(frozen=True)
class PatchRow:
    """One line of the register's report."""

    name: str
    state: str
    """``applied``, ``not applied``, ``not needed here``, ``left out`` or ``overwritten``."""
    copies: tuple[str, ...]
    patch: Patch


class Register:
    """A set of patches that is applied as a whole, held by its users and restored with the last.

    Thread-safe. Applying twice is applying once.
    """

    def __init__(self, patches: Iterable[Patch]) -> None:
        self.patches: tuple[Patch, ...] = tuple(patches)
        names = [patch.name for patch in self.patches]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise PatchError(f"patched twice in one register: {', '.join(twice)}")
        self._applied: list[Applied] = []
        self._left_out: frozenset[str] = frozenset()
        self._users = 0
        self._lock = threading.RLock()

    def apply(self, without: Iterable[str] = ()) -> None:
        """Rebind every name of the register except those in ``without`` (``"*"`` means all).

        Raises:
            AcceleratorPresent: torch sees an accelerator; nothing is changed.
            PatchTargetMissing: a name does not exist; what was applied is restored first.
            PatchError: ``without`` names no patch of this register.
        """
        with self._lock:
            left_out = self.names_left_out(without)
            if self._applied:
                if left_out != self._left_out:
                    raise PatchError(
                        "the patches are applied already, with another choice left out; "
                        "restore() first"
                    )
                self._reassert()
                return
            refuse_on_accelerator()
            _let_dynamo_find_the_originals()
            self._left_out = left_out
            try:
                for patch in self.patches:
                    if patch.name not in left_out and is_needed(patch):
                        self._applied.append(_apply(patch))
            except BaseException:
                self.restore()
                raise

    def restore(self) -> None:
        """Put back what was there, newest first, whoever still holds the register."""
        with self._lock:
            while self._applied:
                _restore(self._applied.pop())
            self._left_out = frozenset()
            self._users = 0

    def hold(self, without: Iterable[str] = ()) -> None:
        """Apply the register on behalf of one more user."""
        with self._lock:
            self.apply(without)
            self._users += 1

    def release(self) -> None:
        """One user has ended; the last one takes the patches along."""
        with self._lock:
            if self._users > 1:
                self._users -= 1
            elif self._users == 1:
                self.restore()

    @property
    def is_applied(self) -> bool:
        """Whether any patch is in force."""
        return bool(self._applied)

    @property
    def applied(self) -> tuple[Applied, ...]:
        """The patches in force, in the order of their application."""
        return tuple(self._applied)

    def report(self) -> tuple[PatchRow, ...]:
        """A row for each patch: its state, and the modules whose own copy was rebound."""
        with self._lock:
            in_force = {applied.patch.name: applied for applied in self._applied}
            rows = []
            for patch in self.patches:
                applied = in_force.get(patch.name)
                copies: tuple[str, ...] = ()
                if applied is not None:
                    copies = tuple(f"{_name_of(holder)}.{key}" for holder, key in applied.copies)
                    bound = getattr(applied.holder, applied.attribute, _ABSENT)
                    state = "applied" if bound is applied.replacement else "overwritten"
                elif patch.name in self._left_out:
                    state = "left out"
                elif self._applied and not is_needed(patch):
                    state = "not needed here"
                else:
                    state = "not applied"
                rows.append(PatchRow(patch.name, state, copies, patch))
            return tuple(rows)

    def _reassert(self) -> None:
        """Bind every replacement again where something else was bound over it.

        vLLM registers its own CPU kernels whenever a worker is built, over ours if another worker
        of this process holds the patches.
        """
        for applied in self._applied:
            bound = getattr(applied.holder, applied.attribute)
            if bound is not applied.replacement:
                for place, key in _places(bound, applied.patch.owners):
                    setattr(place, key, applied.replacement)
                setattr(applied.holder, applied.attribute, applied.replacement)

    def names_left_out(self, without: Iterable[str]) -> frozenset[str]:
        """Return the patches that ``without`` names (``"*"`` means all).

        Raises:
            PatchError: it names one that this register does not have.
        """
        names = {patch.name for patch in self.patches}
        wanted = frozenset(without)
        if "*" in wanted:
            return frozenset(names)
        unknown = sorted(wanted - names)
        if unknown:
            raise PatchError(
                f"no patch is called {', '.join(unknown)}; "
                f"the names are: {', '.join(sorted(names))}"
            )
        return wanted


def refuse_on_accelerator() -> None:
    """Raise AcceleratorPresent if torch can use an accelerator on this host."""
    import torch

    if torch.accelerator.is_available():
        device = torch.accelerator.current_accelerator()
        raise AcceleratorPresent(
            f"this host has an accelerator ({device}): the CPU runner's patches would break it. "
            "Use vLLM's own worker here, or hide the device (CUDA_VISIBLE_DEVICES='')."
        )


def _let_dynamo_find_the_originals() -> None:
    """Let Dynamo make its table of functions to be handled, before any of them is replaced.

    The table is made once, at the first trace, and its keys are what torch's names are bound to
    then. A stand-in for ``torch.accelerator.synchronize`` among them would be handled as the
    original is, which asserts that there is an accelerator.
    """
    from torch._dynamo.variables.torch import TorchInGraphFunctionVariable

    make = getattr(TorchInGraphFunctionVariable, "_get_handlers", None)
    if make is not None:
        make()


def is_needed(patch: Patch) -> bool:
    """Whether the patch belongs to the installed vLLM and to this process."""
    if patch.versions:
        from vllm import __version__

        if not SpecifierSet(patch.versions).contains(__version__, prereleases=True):
            return False
    return patch.condition is None or patch.condition()


def resolve(target: str) -> tuple[Any, str]:
    """Return the object that holds the last name of a dotted path, and that name.

    Raises PatchTargetMissing if there is no such name.
    """
    *path, attribute = target.split(".")
    for length in range(len(path), 0, -1):
        try:
            holder: Any = importlib.import_module(".".join(path[:length]))
        except ModuleNotFoundError:
            continue
        break
    else:
        raise PatchTargetMissing(f"{target}: no module of that path can be imported")
    for name in path[length:]:
        holder = getattr(holder, name, _ABSENT)
    if holder is _ABSENT or not hasattr(holder, attribute):
        raise PatchTargetMissing(
            f"{target} does not exist in the installed torch and vLLM: "
            "its patch is out of date (correct its target, or remove it)"
        )
    return holder, attribute


def _apply(patch: Patch) -> Applied:
    holder, attribute = resolve(patch.target)
    original = getattr(holder, attribute)
    applied = Applied(
        patch=patch,
        holder=holder,
        attribute=attribute,
        own=vars(holder).get(attribute, _ABSENT),
        original=original,
        replacement=patch.build(original),
    )
    applied.copies = [
        place for place in _places(original, patch.owners) if place != (holder, attribute)
    ]
    for place, key in applied.copies:
        setattr(place, key, applied.replacement)
    setattr(holder, attribute, applied.replacement)
    return applied


def _restore(applied: Applied) -> None:
    if applied.own is _ABSENT:
        delattr(applied.holder, applied.attribute)
    else:
        setattr(applied.holder, applied.attribute, applied.own)
    for place, key in _places(applied.replacement, applied.patch.owners):
        setattr(place, key, applied.original)
    if applied.patch.undo is not None:
        applied.patch.undo()


def _places(value: Any, owners: tuple[str, ...]) -> Iterator[tuple[Any, str]]:
    """Every binding of ``value`` in loaded vLLM modules, and under ``owners`` of their objects."""
    found: list[tuple[Any, str]] = []
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _SEARCHED_PACKAGES:
            continue
        for key, held in list(getattr(module, "__dict__", {}).items()):
            if held is value:
                found.append((module, key))
                continue
            if not owners:
                continue
            # A look into the instance dictionary alone: getattr could run a module's hook.
            inner = getattr(type(held), "__dict__", None) and _own_namespace(held)
            if inner:
                found.extend((held, owner) for owner in owners if inner.get(owner) is value)
    return iter(found)


def _own_namespace(value: Any) -> Any:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None


def _name_of(holder: Any) -> str:
    return str(getattr(holder, "__name__", None) or type(holder).__qualname__)
