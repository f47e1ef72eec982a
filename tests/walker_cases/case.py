"""A micro-case: its files, the rows they are marked with, and the comparison with an inventory.

What a line must give stands behind it, in a comment::

    torch.cuda.Event()  #! torch.cuda.Event call execute tier=direct cpu=true

A mark is an attribute and a kind, then, if they are asserted, the contexts (exact, separated by
commas; with a leading ``+`` at least these) and options. Marks of one line are separated by ``; ``.
A comment that stands alone marks the next line of code. A line without a mark must give no row. A
mark with a leading ``?`` is a row that may be missing; if it is there, its options must hold.

Options: ``cpu``, ``tier`` and ``generation`` (alternatives with ``|``), ``function``, ``keywords``
and ``positional`` (the call's, separated by commas), ``guard`` (part of one guard), ``as`` (how the
line spells what the attribute's name does not show).
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from textwrap import dedent, indent

from conformance.surface.model import Row

RUNNER = "vllm/v1/worker/gpu_model_runner.py"
RUNNER_V2 = "vllm/v1/worker/gpu/model_runner.py"
WORKER = "vllm/v1/worker/gpu_worker.py"

OPTIONS = (
    "cpu",
    "tier",
    "generation",
    "function",
    "keywords",
    "positional",
    "guard",
    "as",
)

# Whether naming the namespace itself is a row is left to the walker.
NAMESPACES = ("torch.cuda", "torch.accelerator")

Key = tuple[str, int, str, str]


@dataclass(frozen=True, slots=True)
class Mark:
    """A row that a line must give, or may give."""

    path: str
    line: int
    attribute: str
    kind: str
    contexts: frozenset[str] | None
    at_least: bool
    optional: bool
    options: Mapping[str, str]

    @property
    def key(self) -> Key:
        """What a row has in common with its mark."""
        return (module_of(self.path), self.line, self.attribute, self.kind)

    @property
    def text(self) -> str:
        """What the marked line must contain, or the mark is on the wrong line."""
        if "as" in self.options:
            return self.options["as"]
        if self.kind == "argument":
            keyword, _, value = self.attribute.partition("=")
            return value.strip("'") if keyword == "device" else keyword
        return self.attribute.replace(":", ".").rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class Case:
    """A tree of a few files. Rows are compared in these files only."""

    name: str
    files: Mapping[str, str]

    @property
    def tree(self) -> dict[str, str]:
        """The files, with those that any vLLM has and the case does not give."""
        files = {**_BOILERPLATE, **self.files}
        for path in tuple(files):
            for folder in PurePosixPath(path).parents[:-1]:
                files.setdefault(f"{folder}/__init__.py", "")
        return files

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The marks of all its files."""
        return tuple(mark for path, text in self.files.items() for mark in marks_of(path, text))


def case(name: str, files: Mapping[str, str]) -> Case:
    """A case of whole files; their texts are dedented."""
    return Case(name, {path: dedent(text).lstrip("\n") for path, text in files.items()})


def runner(name: str, text: str, other: Mapping[str, str] | None = None) -> Case:
    """A case whose V1 runner module is ``text``."""
    return case(name, {RUNNER: text, **(other or {})})


def in_execute(
    name: str, body: str, head: str = "", other: Mapping[str, str] | None = None
) -> Case:
    """A case with ``body`` in the V1 runner's ``execute_model``, and ``head`` before the class."""
    text = (
        "import torch\n"
        "from vllm.platforms import current_platform\n"
        f"{dedent(head)}\n"
        "class GPUModelRunner:\n"
        "    def execute_model(self, flag, items, device):\n"
        f"{indent(dedent(body), ' ' * 8)}"
    )
    return runner(name, text, other)


def module_of(path: str) -> str:
    """The dotted name of the module in ``path``."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def marks_of(path: str, text: str) -> Iterator[Mark]:
    """The marks in a file's comments."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or not token.string.startswith("#!"):
            continue
        line = token.start[0]
        while lines[line - 1].lstrip().startswith("#"):
            line += 1
        for item in token.string[2:].split("; "):
            yield _mark(path, line, item.split())


def disagreements(case: Case, rows: Iterable[Row]) -> list[str]:
    """A sentence for each difference between what a case demands and the rows of its tree."""
    modules = {module_of(path): path for path in case.files}
    found: dict[Key, list[Row]] = {}
    for row in rows:
        if row.module in modules and row.attribute not in NAMESPACES:
            key = (row.module, row.line, row.attribute, row.kind)
            found.setdefault(key, []).append(row)
    marks = {mark.key: mark for mark in case.marks}
    said = []
    for key, mark in marks.items():
        where = f"{mark.path}:{mark.line}: {mark.attribute} {mark.kind}"
        if key not in found:
            if not mark.optional:
                said.append(f"{where}: there is no such row")
            continue
        said += [f"{where}: {what}" for what in _wrong(mark, found[key])]
    for module, line, attribute, kind in found.keys() - marks.keys():
        said.append(f"{modules[module]}:{line}: {attribute} {kind}: not expected here")
    return sorted(said)


def _mark(path: str, line: int, words: list[str]) -> Mark:
    optional = words[0].startswith("?")
    contexts = next((word for word in words[2:3] if "=" not in word), None)
    options = dict(word.split("=", 1) for word in words[2 if contexts is None else 3 :])
    return Mark(
        path=path,
        line=line,
        attribute=words[0].removeprefix("?"),
        kind=words[1],
        contexts=None if contexts is None else frozenset(contexts.removeprefix("+").split(",")),
        at_least=contexts is not None and contexts.startswith("+"),
        optional=optional,
        options=options,
    )


def _wrong(mark: Mark, rows: list[Row]) -> Iterator[str]:
    """What differs, where it holds for none of the rows that share a mark's key."""
    if mark.contexts is not None:
        contexts = {context for row in rows for context in row.contexts}
        if not (mark.contexts <= contexts if mark.at_least else mark.contexts == contexts):
            yield f"contexts are {sorted(contexts)}, not {sorted(mark.contexts)}"
    for name, wanted in mark.options.items():
        seen = [_value(row, name) for row in rows]
        if name == "guard":
            good = any(wanted in guard for row in rows for guard in row.guards)
        elif name in ("keywords", "positional"):
            good = wanted in seen
        else:
            good = name == "as" or any(value in wanted.split("|") for value in seen)
        if not good:
            yield f"{name} is {' and '.join(seen)}, not {wanted}"


def _value(row: Row, name: str) -> str:
    match name:
        case "cpu":
            return row.on_cpu
        case "tier":
            return row.tier
        case "generation":
            return row.generation
        case "function":
            return row.function
        case "guard":
            return str(row.guards)
        case "keywords":
            return "" if row.call is None else ",".join(row.call.keywords)
        case "positional":
            return "" if row.call is None else ",".join(row.call.positional)
    return ""


_BOILERPLATE = {
    RUNNER: "class GPUModelRunner:\n    pass\n",
    "vllm/__init__.py": "",
    "vllm/platforms/__init__.py": dedent(
        """\
        from typing import TYPE_CHECKING

        from vllm.utils.import_utils import resolve_obj_by_qualname

        from .interface import Platform, PlatformEnum

        _current_platform = None

        if TYPE_CHECKING:
            current_platform: Platform


        def resolve_current_platform_cls_qualname() -> str:
            return "vllm.platforms.cpu.CpuPlatform"


        def __getattr__(name: str):
            if name == "current_platform":
                global _current_platform
                if _current_platform is None:
                    qualname = resolve_current_platform_cls_qualname()
                    _current_platform = resolve_obj_by_qualname(qualname)()
                return _current_platform
            raise AttributeError(name)
        """
    ),
    "vllm/platforms/interface.py": dedent(
        """\
        import enum


        class PlatformEnum(enum.Enum):
            CUDA = enum.auto()
            ROCM = enum.auto()
            CPU = enum.auto()
            UNSPECIFIED = enum.auto()


        class Platform:
            _enum: PlatformEnum
            device_name: str
            device_type: str

            def is_cuda(self) -> bool:
                return self._enum == PlatformEnum.CUDA

            def is_rocm(self) -> bool:
                return self._enum == PlatformEnum.ROCM

            def is_cpu(self) -> bool:
                return self._enum == PlatformEnum.CPU

            def is_cuda_alike(self) -> bool:
                return self._enum in (PlatformEnum.CUDA, PlatformEnum.ROCM)
        """
    ),
    "vllm/platforms/cpu.py": dedent(
        """\
        from .interface import Platform, PlatformEnum


        class CpuPlatform(Platform):
            _enum = PlatformEnum.CPU
            device_name: str = "cpu"
            device_type: str = "cpu"
        """
    ),
    "vllm/platforms/cuda.py": dedent(
        """\
        from .interface import Platform, PlatformEnum


        class CudaPlatform(Platform):
            _enum = PlatformEnum.CUDA
            device_name: str = "cuda"
            device_type: str = "cuda"
        """
    ),
    "vllm/triton_utils/__init__.py": dedent(
        """\
        from typing import TYPE_CHECKING

        from vllm.triton_utils.importing import (
            HAS_TRITON,
            TritonLanguagePlaceholder,
            TritonPlaceholder,
        )

        if TYPE_CHECKING or HAS_TRITON:
            import triton
            import triton.language as tl
        else:
            triton = TritonPlaceholder()
            tl = TritonLanguagePlaceholder()

        __all__ = ["HAS_TRITON", "triton", "tl"]
        """
    ),
    "vllm/triton_utils/importing.py": dedent(
        """\
        import types
        from importlib.util import find_spec

        HAS_TRITON = find_spec("triton") is not None


        class TritonPlaceholder(types.ModuleType):
            def __init__(self):
                super().__init__("triton")
                self.jit = self._dummy_decorator("jit")

            def _dummy_decorator(self, name):
                def decorator(*args, **kwargs):
                    if args and callable(args[0]):
                        return args[0]
                    return lambda f: f

                return decorator


        class TritonLanguagePlaceholder(types.ModuleType):
            def __init__(self):
                super().__init__("triton.language")
                self.constexpr = None
        """
    ),
    "vllm/utils/import_utils.py": dedent(
        """\
        import importlib
        from typing import Any


        def resolve_obj_by_qualname(qualname: str) -> Any:
            module_name, obj_name = qualname.rsplit(".", 1)
            module = importlib.import_module(module_name)
            return getattr(module, obj_name)
        """
    ),
}
