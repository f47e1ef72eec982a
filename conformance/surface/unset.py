"""What is never assigned on a CPU: attributes and globals that only unreached statements set.

    self._event = None
    if current_platform.is_cuda():
        self._event = torch.cuda.Event()

A condition that asks for such a name is decided like one on the platform. It is known only when the
solver has come to rest, so here the conditions are decided again, and what they close is taken out
of what was reached; that can leave more names unset.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from conformance.surface.folding import Folder, Unset
from conformance.surface.graph import Assigned, CallUse, Guard, Node
from conformance.surface.handed import Parameter, parameters
from conformance.surface.program import Class, Function
from conformance.surface.solver import Solver
from conformance.surface.worlds import EVERYWHERE, ON_CPU, SURELY, WITHOUT_PROOF


def leave_out_unset(solver: Solver, folder: Folder) -> None:
    """Narrow guards, edges and functions to what is left without the names that are never set."""
    known: dict[str, tuple[Unset, ...]] = {}
    handed: dict[int, dict[str, Parameter]] = {}
    asked = folder.asked_parameters()
    stored: dict[int, dict[str, int]] = {}
    while True:
        unset = dict(_unset(solver, known))
        given: dict[int, dict[str, Parameter]] = {}
        for function, name, parameter in parameters(solver.functions, asked, folder.holds, stored):
            given.setdefault(function, {})[name] = parameter
        if (unset, given) == (known, handed):
            return
        known, handed = unset, given
        changed = folder.decide_again(unset, given, _doubted(solver, folder, unset))
        if changed:
            _close(solver, changed, folder)
            _narrow(solver)


def _doubted(
    solver: Solver, folder: Folder, unset: Mapping[str, tuple[Unset, ...]]
) -> dict[str, int]:
    """Options with which an assertion holds only if a name is set that nothing surely sets.

        if size > 1:
            assert layer.can_share

    That a layer is there for which it is asked is not known, so this is no refusal. The names of an
    option, and the worlds in which nothing shows that it can be set.
    """
    found: dict[str, int] = {}
    for function, guard, name in solver.asserted:
        worlds = function.mask & guard.mask & SURELY
        for known in unset.get(name, ()):
            if known.worlds & worlds and guard.condition is not None and guard.holds:
                for option in folder.option_names(guard.condition, function.place):
                    found[option] = found.get(option, 0) | (known.worlds & worlds)
    return found


def _unset(
    solver: Solver, known: Mapping[str, tuple[Unset, ...]]
) -> Iterator[tuple[str, tuple[Unset, ...]]]:
    """Names to which nothing but None or false is assigned in some worlds of a CPU.

    ``known`` has those that were found before: what they hold is handed on.
    """
    given = _given_to_constructors(solver)
    for name, stores in solver.stores.items():
        empty = [store for store in stores if store.empties]
        if not empty:
            continue
        filled = _Filled(stores, known)
        if not ON_CPU & ~filled.by_anybody:
            continue
        found = tuple(
            unset
            for owner in dict.fromkeys(store.owner for store in empty)
            if (owner is None) is (":" in name)
            and (owner is None or not _is_method(owner, name))
            and (unset := _unset_of(name, owner, empty, filled, given)) is not None
        )
        if found:
            yield name, found


class _Filled:
    """Where something is assigned to a name: by classes to what is their own, or by anybody."""

    def __init__(self, stores: list[Assigned], known: Mapping[str, tuple[Unset, ...]]) -> None:
        self.by_anybody = 0
        self.everywhere = 0
        self._by_class: dict[Class, int] = {}
        self._by_heirs: dict[Class, int] = {}
        self.are_constants = not any(store.read is not None for store in stores)
        for store in stores:
            if store.empties:
                continue
            mask = store.function.mask & store.guard.mask & _given(store.call)
            if store.read is not None and mask & ON_CPU:
                mask &= _read(*store.read, known)
            self.everywhere |= mask
            if store.owner is None:
                self.by_anybody |= mask
                continue
            self._by_class[store.owner] = self._by_class.get(store.owner, 0) | mask
            for base in store.owner.mro:
                self._by_heirs[base] = self._by_heirs.get(base, 0) | mask

    def of(self, owner: Class) -> int:
        """The worlds in which it is assigned to what a class has, by its bases and heirs too."""
        found = self.by_anybody | self._by_heirs.get(owner, 0)
        for base in owner.mro:
            found |= self._by_class.get(base, 0)
        return found


def _given_to_constructors(solver: Solver) -> dict[Class, dict[str, int]]:
    """The fields that constructors of a class and its heirs are given."""
    found: dict[Class, dict[str, int]] = {}
    for cls, given in solver.given.items():
        for base in cls.mro:
            into = found.setdefault(base, {})
            for name, mask in given.items():
                into[name] = into.get(name, 0) | mask
    return found


def _unset_of(
    name: str,
    owner: Class | None,
    empty: list[Assigned],
    filled: _Filled,
    given: dict[Class, dict[str, int]],
) -> Unset | None:
    """Where what a class calls by a name, or the global of that name, holds nothing."""
    found = filled.everywhere if owner is None else filled.of(owner)
    worlds = ON_CPU & ~found
    if not worlds:
        return None
    own = [store for store in empty if store.owner is owner]
    is_default = any(store.is_default for store in own)
    if is_default and owner is not None:
        fields = given.get(owner, {})
        worlds &= ~(fields.get(name, 0) | fields.get("*", 0))
    is_none = filled.are_constants and all(store.is_none for store in own)
    return Unset(worlds, is_none, owner, is_default) if worlds else None


def _is_method(cls: Class, name: str) -> bool:
    return any(name in base.methods for base in cls.mro)


def _given(call: CallUse | None) -> int:
    """The worlds in which a call gives anything but None, as far as all that it calls is known."""
    if call is None or not call.callee.values:
        return EVERYWHERE
    given = 0
    for value in call.callee.values:
        function = value.function
        if value.kind not in ("function", "bound") or function is None or function.decorators:
            return EVERYWHERE
        if not function.is_visited:
            return EVERYWHERE
        for guard, is_none in function.returned:
            if not is_none:
                given |= function.mask & guard.mask
    return given


def _read(base: Node, name: str, known: Mapping[str, tuple[Unset, ...]]) -> int:
    """The worlds in which an attribute of what a node holds can be anything but None or false.

    Another object than those that are known may be there, so that it holds nothing is not proved.
    """
    if base.full or not base.values:
        return EVERYWHERE
    found = WITHOUT_PROOF
    for value, worlds in base.values.items():
        if value.kind != "instance" or value.cls is None:
            return EVERYWHERE
        for unset in known.get(name, ()):
            if unset.owner in value.cls.mro and not unset.is_default:
                worlds &= ~unset.worlds
                break
        found |= worlds
    return found


def _close(solver: Solver, changed: set[int], folder: Folder) -> None:
    """Give each guard of a changed condition, and all inside of it, the worlds that are left."""
    done: set[int] = set()

    def refresh(guard: Guard) -> None:
        if id(guard) in done:
            return
        done.add(id(guard))
        if guard.outer is not None:
            refresh(guard.outer)
            guard.mask &= guard.outer.mask
        condition = guard.condition
        if condition is not None and id(condition) in changed:
            true, false = folder.decided(condition)
            guard.own &= true if guard.holds else false
            guard.mask &= guard.own

    for function in solver.functions:
        if function.mask & ON_CPU:
            for guard in {occurrence.guard for occurrence in function.occurrences}:
                refresh(guard)
            for where in {guard for _, guard in function.edges.values()}:
                if where is not None:
                    refresh(where)
        for guard, _ in function.returned:
            refresh(guard)
    for guard in {store.guard for stores in solver.stores.values() for store in stores}:
        refresh(guard)


def _narrow(solver: Solver) -> None:
    """Reach all functions again, by the edges that are there, where their guards are open."""
    reached: dict[Function, int] = {}
    queue: deque[tuple[Function, int]] = deque(solver.roots.items())
    while queue:
        function, mask = queue.popleft()
        known = reached.get(function, 0)
        new = mask & ~known
        if not new:
            continue
        reached[function] = known | new
        for key, (worlds, guard) in function.edges.items():
            passed = new & worlds
            if passed and guard is not None:
                passed &= guard.mask
            if passed and passed & ~reached.get(key[0], 0):
                queue.append((key[0], passed))
    for function in {**dict.fromkeys(solver.functions), **reached}:  # hubs are no functions
        left = function.mask & reached.get(function, 0)
        function.mask = left
        for key, (worlds, guard) in function.edges.items():
            still = worlds & left
            if guard is not None:
                still &= guard.mask
            if still != worlds:
                function.edges[key] = (still, guard)
