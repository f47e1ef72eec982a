"""Other people's runners: what their package overrides and binds anew, read from its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from conformance.drift.classes import overrides_of
from conformance.drift.facts import source_of, with_calls
from conformance.drift.side import Side
from conformance.drift.standins import Module, Source, stand_ins
from conformance.surface import releases
from conformance.surface.sources import SourceTree, open_source
from conformance.target import WrongUse

_NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")
_RELEASE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([\w.+!-]+)")
_A_RUNNER = re.compile(r"ModelRunner(?!Output)|Worker$")
_ROLES = {
    "vllm.v1.worker.gpu_model_runner.GPUModelRunner": "v1",
    "vllm.v1.worker.gpu.model_runner.GPUModelRunner": "v2",
    "vllm.v1.worker.gpu_worker.Worker": "worker",
    "vllm.v1.worker.worker_base.WorkerBase": "base",
}
"""What vLLM's classes are to a runner. Of a worker that inherits the base alone, nothing is the
GPU's; it may still be what a runner comes with."""


class Runner:
    """A runner class of another package.

    Args:
        name: ``package.module:Class``.
        spec: where its package is: a release (``vllm-ascend==0.18.0``), a wheel, an sdist, a
            folder, or ``installed``.
        cache: where releases are kept.

    Raises:
        WrongUse: there is no such source or class, or the class inherits no runner of vLLM.
    """

    def __init__(self, name: str, spec: str, cache: Path) -> None:
        match = _NAME.fullmatch(name)
        if match is None:
            raise WrongUse(f"--runner {name!r} names no class: give package.module:Class.")
        self.name = name
        package = match[1].partition(".")[0]
        self._tree, self.label = _open(spec, package, cache)
        self._source = source_of(self._tree)
        module = self._source.module(match[1])
        if module is None:
            raise WrongUse(
                f"{self.label} has no module {match[1]}: {_near(self._source, match[2])}."
            )
        node = module.top.get(match[2])
        if not isinstance(node, ast.ClassDef):
            raise WrongUse(f"{match[1]} has no class {match[2]}: {_near(self._source, match[2])}.")
        self._classes = [item for item in self._lineage(module, node) if item[2] != "base"]
        roles = {role for *_, role in self._classes}
        if not roles:
            raise WrongUse(
                f"{name} inherits neither GPUModelRunner nor Worker of vLLM, so that what these "
                f"reach says nothing about it: {_near(self._source, '')}."
            )
        # A runner comes with a worker; which one is for it the source does not say.
        if "worker" not in roles:
            self._classes += self._workers()
        self._bound = tuple(stand_ins(self._source, iter(self._tree.files)))

    @property
    def generation(self) -> str:
        """The runner generation that the class inherits, ``v1`` or ``v2``; ``all`` for a worker."""
        roles = {role for *_, role in self._classes} - {"worker"}
        return roles.pop() if len(roles) == 1 else "all"

    def side(self, tree: SourceTree) -> Side:
        """Return what the runner's package does on one vLLM, whose source ``tree`` is."""
        base = source_of(tree)
        found = overrides_of(self._source, self._classes, base)
        return Side(self.name, self._bound, with_calls(tree, found))

    def _lineage(self, module: Module, node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
        """The class and its bases in its own package, farthest first, each with its role."""
        role = self._role(module, node)
        for parent in reversed(node.bases):
            dotted = module.dotted(parent)
            found = module.find(dotted) if dotted is not None else None
            if found is not None and isinstance(found[1], ast.ClassDef):
                yield from self._lineage(found[0], found[1])
        if role is not None:
            yield module.name, node.name, role

    def _role(self, module: Module, node: ast.ClassDef, depth: int = 0) -> str | None:
        for parent in node.bases:
            dotted = module.dotted(parent)
            if dotted is None or depth > 10:
                continue
            # `Worker as GPUWorker` and re-exports keep the last name of what they are.
            if dotted in _ROLES:
                return _ROLES[dotted]
            found = module.find(dotted)
            if found is not None and isinstance(found[1], ast.ClassDef):
                role = self._role(found[0], found[1], depth + 1)
                if role is not None:
                    return role
        return None

    def _workers(self) -> list[tuple[str, str, str]]:
        return [
            (module.name, name, "worker")
            for module, name, node in _all_classes(self._source, "Worker")
            if self._role(module, node) in ("worker", "base")
        ]


def _open(spec: str, package: str, cache: Path) -> tuple[SourceTree, str]:
    match = _RELEASE.fullmatch(spec.strip())
    if match is None:
        tree = open_source(spec, package=package, cache=cache)
        return tree, tree.label
    try:
        version = str(Version(match[2]))
    except InvalidVersion:
        raise WrongUse(
            f"--runner-source {spec!r} names no release: give one such as vllm-ascend==0.18.0."
        ) from None
    wanted = releases.Wanted((canonicalize_name(match[1]),), version)
    release = releases.fetch(wanted, package=package, cache=cache)
    tree = open_source(str(release.path), package=package, cache=cache)
    return tree, f"{release.name} {release.version}"


def _all_classes(source: Source, word: str) -> Iterator[tuple[Module, str, ast.ClassDef]]:
    """The classes of every module whose text has a word in it; the others are not parsed."""
    for name in source.texts:
        module = source.module(name) if word in source.texts[name]() else None
        if module is not None:
            for bound, node in module.top.items():
                if isinstance(node, ast.ClassDef):
                    yield module, bound, node


def _near(source: Source, name: str) -> str:
    """Classes that may be meant, as the end of a sentence."""
    names = [
        (bound, f"{module.name}:{bound}")
        for module, bound, _ in _all_classes(source, "Runner")
        if _A_RUNNER.search(bound)
    ]
    names.sort(key=lambda item: (item[0] != name, item[1]))
    found = ", ".join(dotted for _, dotted in names[:6])
    return f"its runners are {found}" if found else "it has no runner"
