"""The static walker: from the entry points of the runners and their worker to an inventory.

The solver follows what is known. What is left is guessed in rounds: first types from annotations
of parameters, fields and results that nothing came to, then methods by their name alone, which
counts as no proof (``by-name``).
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from conformance.surface import torch_api
from conformance.surface.contexts import entry_names, is_async_output
from conformance.surface.folding import Folder
from conformance.surface.graph import FREE, CallUse, Node, Value
from conformance.surface.model import Inventory
from conformance.surface.program import Class, Function, Program, speaks_of_device
from conformance.surface.registry import (
    imported_names,
    named_modules,
    source,
)
from conformance.surface.rows import Starts, rows
from conformance.surface.solver import Solver
from conformance.surface.sources import SourceTree
from conformance.surface.typing_hints import Hints
from conformance.surface.unset import leave_out_unset
from conformance.surface.upstream import Upstream
from conformance.surface.visitor import Visitor
from conformance.surface.worlds import EVERYWHERE, GENERATION, GPU, ON_CPU, WITHOUT_PROOF
from conformance.target import WrongUse

V1_RUNNER = ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner")
V2_RUNNER = ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner")
WORKER = ("vllm.v1.worker.gpu_worker", "Worker")

_ROUNDS = 40
_TOO_COMMON = frozenset(
    name
    for kind in (list, dict, set, str, bytes, int)
    for name in dir(kind)
    if not name.startswith("__")
) | {
    "debug",
    "error",
    "exception",
    "info",
    "warning",
    "info_once",
    "warning_once",
    "debug_once",
    "size",
    "view",
    "reshape",
    "to",
    "numpy",
    "item",
    "tolist",
    "contiguous",
    "flatten",
    "clone",
    "close",
    "read",
    "write",
    "open",
    "start",
    "run",
    "wait",
    "shape",
    "fill_",
    "zero_",
    "copy_",
}
"""Method names of builtins, loggers and tensors; by name alone they say nothing."""


def walk(tree: SourceTree) -> Inventory:
    """Walk a source tree.

    Raises:
        WrongUse: a runner is not where it is expected, or a source cannot be parsed.
    """
    try:
        with _unhindered():
            walk = _Walk(tree)
            walk.run()
            return Inventory.of(
                tree.version or "unknown", rows(walk.solver, walk.starts, walk.upstream)
            )
    except RecursionError as error:
        raise WrongUse(
            f"A source of {tree.label} nests its expressions deeper than this interpreter can "
            "follow: give the sources of a vLLM release."
        ) from error


class _Walk:
    def __init__(self, tree: SourceTree) -> None:
        self.program = Program(tree)
        self.folder = Folder(self.program)
        self.solver = Solver(self.program, Visitor(self.folder))
        self.hints = Hints(self.solver)
        self.starts = {"v1": Starts([], []), "v2": Starts([], [])}
        self.upstream = Upstream(self.program)
        self._hubs: dict[str, Function] = {}
        self._linked: dict[tuple[Function, Class], int] = {}
        self._read: set[str] = set()
        self._unknown_calls: list[CallUse] = []
        self._handed: dict[tuple[Function, Function, int], int] = {}
        self._driven: dict[tuple[Class, str], int] = {}
        self._named: set[str] = set()
        self._supposed: set[Class] = set()
        self._tabled: dict[tuple[str, int], int] = {}
        self._platforms()

    def run(self) -> None:
        v1 = self._class(*V1_RUNNER, required=True)
        v2 = self._class(*V2_RUNNER, required=False)
        worker = self._class(*WORKER, required=False)
        runners = [(g, cls) for g, cls in (("v1", v1), ("v2", v2)) if cls is not None]
        everywhere = 0
        for generation, _ in runners:
            everywhere |= GENERATION[generation]
        self.solver.driven.update(filter(None, (v1, v2, worker)))
        if worker is not None:
            self._import(worker, everywhere)
        for generation, runner in runners:
            self._import(runner, GENERATION[generation])
            self.starts[generation].owners.extend(filter(None, (runner, worker)))
            if worker is not None:
                # A worker of another platform makes the runner in its own way.
                made = self.solver.field(worker, "model_runner")
                self.solver.add(made, self.solver.instance(runner), GENERATION[generation])
        if worker is not None:
            self._drive(worker, entry_names(worker), everywhere)
        for generation, runner in runners:
            self._drive(runner, ["__init__"], GENERATION[generation])
        self._settle()
        for generation, runner in runners:  # what no worker calls, somebody else may
            for name in entry_names(runner):
                self._drive(runner, [name], GENERATION[generation], new=True)
        self._settle()
        leave_out_unset(self.solver, self.folder)

    def _class(self, module_name: str, name: str, *, required: bool) -> Class | None:
        module = self.program.module(module_name)
        if module is not None:
            symbol = self.program.lookup(module, name)
            if symbol is not None and isinstance(symbol.definition, Class):
                return symbol.definition
        if required:
            path = module_name.replace(".", "/") + ".py"
            raise WrongUse(
                f"There is no class {name} in {path} of {self.program.tree.label}: the runner has "
                "moved, or this is no vLLM that has one; give a tree of vLLM 0.17 or later."
            )
        return None

    def _platforms(self) -> None:
        found: list[tuple[Value, int]] = []
        for module_name, names, mask in (
            ("vllm.platforms.cpu", ("CpuPlatform",), ON_CPU),
            ("vllm.platforms.cuda", ("NvmlCudaPlatform", "CudaPlatformBase", "CudaPlatform"), GPU),
        ):
            module = self.program.module(module_name)
            if module is None:
                continue
            for name in names:
                if name in module.classes:
                    found.append((self.solver.instance(module.classes[name]), mask))
                    break
        self.solver.platforms = tuple(found)

    def _import(self, cls: Class, mask: int) -> None:
        """Import a class's module, so that its methods are there, and make an instance."""
        solver = self.solver
        for module in self.program.with_packages(cls.module.name):
            solver.start(module.body, mask)
        for value, worlds in solver.platforms:
            assert value.cls is not None
            solver.start(value.cls.module.body, worlds & mask)
        solver.run()
        solver.make_live(cls, mask)

    def _drive(self, cls: Class, names: list[str], mask: int, *, new: bool = False) -> None:
        """Reach methods that are called from outside, and what decorators made of them.

        With ``new``, only those that nothing has reached yet.
        """
        solver = self.solver
        instance = solver.instance(cls)
        found = {name: Node() for name in names}
        for name, node in found.items():
            solver.read(instance, mask, name, node)
        solver.run()
        for name, value in [(name, v) for name, node in found.items() for v in node.values]:
            method = value.function
            if method is None or (new and method.mask & mask):
                continue
            method.driven_as = method.driven_as or name
            solver.start(method, mask)
            first = _first_parameter(method)
            if first is not None and value.receiver is not None:
                solver.add(solver.parameter(method, first), value.receiver, mask)
            for generation, worlds in GENERATION.items():
                if mask & worlds:
                    self.starts[generation].entries.append(method)

    def _async_outputs(self) -> bool:
        """Outputs that the runner makes and others wait for: their methods are entry points."""
        changed = False
        for cls in list(self.solver.live):
            if is_async_output(cls):
                for generation, worlds in GENERATION.items():
                    mask = cls.mask & worlds
                    if mask & ~self._driven.get((cls, generation), 0):
                        self._driven[cls, generation] = mask
                        waited_for = [n for n in entry_names(cls) if n != "__init__"]
                        self._drive(cls, waited_for, mask)
                        changed = True
        return changed

    def _settle(self) -> None:
        """Run to the end, with what annotations, containers and names add in rounds."""
        solver = self.solver
        for _ in range(_ROUNDS):
            solver.run()
            if self._containers() | self.hints.apply() | self._async_outputs():
                continue
            if not self._by_name():
                break

    def _containers(self) -> bool:
        """Values put into containers and taken out, where no class of the tree is meant."""
        changed = False
        solver = self.solver
        reads, solver.container_reads = solver.container_reads, []
        for call in reads:
            if call.base is not None and not _has_tree_method(call):
                solver.edge(call.base, call.result, call.guard.mask)
                changed = True
        writes, solver.container_writes = solver.container_writes, []
        for call, into in writes:
            if call.base is None or not (_has_tree_method(call) or _is_no_container(call.base)):
                for argument in (*call.positional, *call.keywords.values()):
                    if argument is not None:
                        into(argument, call.guard.mask)
                        changed = True
        return changed

    def _by_name(self) -> bool:
        """Link calls that nothing is known of to every live class that has such a method.

        All calls of a name meet in one hub, and the hub calls the methods.
        """
        solver = self.solver
        changed = self._tables() | self._operators()
        for phase in ("load", "execute"):
            self._table(phase)  # entry points may have come
        calls, solver.method_calls = self._unknown_calls + solver.method_calls, []
        self._unknown_calls = [call for call in calls if _says_little(call)]
        for call in self._unknown_calls:
            changed |= self._called_back(call)
            if call.attribute in _TOO_COMMON or call.attribute not in solver.by_method:
                continue
            mask = call.function.mask & call.guard.mask & WITHOUT_PROOF
            if mask & ~call.guessed:
                call.guessed |= mask
                hub = self._hub(call.attribute)
                solver.call(call.function, hub, call.line, call.guard, mask, by_name=True)
                assert hub.result is not None
                solver.edge(hub.result, call.result, mask)
                changed = True
        for name, hub in list(self._hubs.items()):
            for cls in list(solver.by_method.get(name, ())):
                changed |= self._from_hub(name, hub, cls)
        return changed

    def _called_back(self, call: CallUse) -> bool:
        """Functions handed to a method that nothing is known of: it may call them."""
        changed = False
        common = call.attribute in _TOO_COMMON  # of a container: ``items.sort(key=...)``
        for argument in (*call.positional, *call.keywords.values()):
            if argument is None:
                continue
            for value, worlds in list(argument.values.items()):
                if value.kind not in ("function", "bound") or value.function is None:
                    continue
                mask = worlds & call.function.mask & call.guard.mask
                mask &= EVERYWHERE if common else WITHOUT_PROOF
                key = (call.function, value.function, call.line)
                if mask & ~self._handed.get(key, 0):
                    self._handed[key] = self._handed.get(key, 0) | mask
                    self.solver.call(
                        call.function, value.function, call.line, call.guard, mask, not common
                    )
                    first = _first_parameter(value.function)
                    if value.receiver is not None and first is not None:
                        node = self.solver.parameter(value.function, first)
                        self.solver.add(node, value.receiver, mask)
                    changed = True
        return changed

    def _hub(self, name: str) -> Function:
        hub = self._hubs.get(name)
        if hub is None:
            module = next(self.program.parsed)
            hub = Function(module, f"<any {name}>", ast.Module([], []), None, None)
            hub.kind = "hub"
            hub.result = Node()
            self._hubs[name] = hub
        return hub

    def _from_hub(self, name: str, hub: Function, cls: Class) -> bool:
        mask = hub.mask & cls.mask & WITHOUT_PROOF
        if not mask & ~self._linked.get((hub, cls), 0):
            return False
        self._linked[hub, cls] = mask
        solver = self.solver
        method = solver.method(cls, name)
        assert method is not None and hub.result is not None
        solver.call(hub, method, 0, FREE, mask, by_name=True)
        first = _first_parameter(method)
        if first is not None and method.kind != "static":
            solver.add(solver.parameter(method, first), solver.instance(cls), mask)
        solver.edge(solver.result(method), hub.result, mask)
        return True

    def _tables(self) -> bool:
        """What tables name by string can be loaded and run: no proof that it ever is."""
        changed = False
        named = set(named_modules(self.program, self._read)) - self._named
        self._named |= named
        for name in sorted(named):
            changed = True
            text = source(self.program, name)
            for module_name, imported in imported_names(self.program, name, text):
                module = self.program.module(module_name)
                symbol = self.program.lookup(module, imported) if module is not None else None
                cls = symbol.definition if symbol is not None else None
                if isinstance(cls, Class) and cls.module.name not in named:
                    self._perhaps(cls, everything=False)
            if speaks_of_device(text):
                module = self.program.module(name)
                assert module is not None
                for model in module.classes.values():
                    self._perhaps(model, everything=True)
        return changed

    def _operators(self) -> bool:
        """Operators that nothing calls: something may, when a model is executed."""
        changed = False
        for node in list(self.solver.operators.values()):
            for value, worlds in list(node.values.items()):
                mask = worlds & WITHOUT_PROOF
                if value.function is not None and mask & ~value.function.mask:
                    self.solver.call(
                        self._table("execute"), value.function, 0, FREE, mask, by_name=True
                    )
                    changed = True
        return changed

    def _perhaps(self, cls: Class, *, everything: bool) -> None:
        """A class that is perhaps made when a model is loaded, and run when one is executed."""
        if cls in self._supposed and not everything:
            return
        self._supposed.add(cls)
        solver = self.solver
        for module in self.program.with_packages(cls.module.name):
            solver.call(self._table("load"), module.body, 0, FREE, WITHOUT_PROOF, by_name=True)
        solver.run()
        solver.make_live(cls, WITHOUT_PROOF)
        for name in dict.fromkeys(name for base in cls.mro for name in base.methods):
            method = solver.method(cls, name)
            assert method is not None
            loads = name in ("__init__", "__new__", "__post_init__", "load_weights")
            if not loads and name not in ("forward", "__call__"):
                node = method.node
                assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                if not everything or not speaks_of_device(method.module.segment(node)):
                    continue
            hub = self._table("load" if loads else "execute")
            solver.call(hub, method, 0, FREE, WITHOUT_PROOF, by_name=True)
            first = _first_parameter(method)
            if first is not None and method.kind != "static":
                receiver = solver.parameter(method, first)
                solver.add(receiver, solver.instance(cls), WITHOUT_PROOF)

    def _table(self, phase: str) -> Function:
        """The hub from which what tables name is called, in one phase."""
        name = f"{phase}_model"
        hub = self._hub(name)
        for start in self.starts.values():
            for entry in start.entries[self._tabled.get((name, id(start)), 0) :]:
                if entry.driven_as == name:
                    mask = entry.mask & WITHOUT_PROOF
                    self.solver.call(entry, hub, entry.line, FREE, mask, by_name=True)
            self._tabled[name, id(start)] = len(start.entries)
        return hub


def _says_little(call: CallUse) -> bool:
    """Whether a call's target is unknown, or its object is one of too many."""
    return call.callee.is_unknown or (call.base is not None and call.base.full)


def _is_no_container(base: Node) -> bool:
    """Whether a node holds a module, a class or a function: ``torch.add`` adds to no container."""
    return any(
        value.kind in ("module", "class", "function", "bound")
        or (value.kind == "external" and value.name != torch_api.OUTSIDE)
        for value in base.values
    )


def _has_tree_method(call: CallUse) -> bool:
    assert call.base is not None
    return any(
        value.kind == "instance"
        and value.cls is not None
        and any(call.attribute in base.methods for base in value.cls.mro)
        for value in call.base.values
    )


def _first_parameter(function: Function) -> str | None:
    return function.parameters[0] if function.parameters else None


@contextmanager
def _unhindered() -> Iterator[None]:
    """No collection of garbage while millions of objects come that all stay; deep recursion."""
    was_enabled, limit = gc.isenabled(), sys.getrecursionlimit()
    gc.disable()
    sys.setrecursionlimit(max(limit, 10_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        if was_enabled:
            if not gc.get_freeze_count():  # what came is old by now, and not looked at at once
                gc.freeze()
                gc.unfreeze()
            gc.enable()
