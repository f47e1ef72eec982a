"""Writes stand-ins for the NVIDIA libraries that torch's build for CUDA links to, and lacks here.

    python requirements/stubs.py [SITE_PACKAGES]

They take 2 GB, and a host without a device calls nothing in them; but torch does not load without
libraries of these names that define what it asks of them. Each stand-in defines just that: every
function returns 1, which is an error to all of NVIDIA's libraries. Beside the real ones torch says
the same to everything that was asked (26 calls, torch 2.13.0), but for its version of cuDNN, which
it then refuses to tell. Real libraries that are there are left alone, and so is torch's CPU build,
which links to none. Needs gcc and readelf.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

_NVIDIA = re.compile(r"lib(cu|nv|nccl)\w*\.so\.")
_OF_NVIDIA = re.compile(r"p?(cublas|cudnn|cufft|cuFile|curand|cusolver|cusparse|nccl|nvJit|nvrtc)")
"""How functions begin that are asked for without saying of which library."""


@dataclass
class Library:
    """A library that torch links to: the names that it must define, by symbol version."""

    name: str
    symbols: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


@dataclass(frozen=True)
class Binary:
    """What a shared object asks for, as readelf tells it."""

    needed: tuple[str, ...]
    versions: dict[str, str]
    """Symbol version -> the library that has it."""
    undefined: tuple[tuple[str, str], ...]
    """(symbol, its version or "") pairs."""
    defined: frozenset[str]


def read(path: Path) -> Binary:
    """Read one shared object."""
    versions: dict[str, str] = {}
    library = ""
    for line in _readelf("--version-info", path):
        if found := re.search(r"File: (\S+)", line):
            library = found[1]
        elif library and (found := re.search(r"Name: (\S+)\s+Flags:", line)):
            versions[found[1]] = library
    undefined, defined = [], set()
    for line in _readelf("--dyn-syms", path):
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit():
            continue
        name, _, version = fields[7].partition("@")
        if fields[6] != "UND":
            defined.add(name)
        elif fields[4] == "GLOBAL":
            undefined.append((name, version.lstrip("@")))
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", "\n".join(_readelf("--dynamic", path)))
    return Binary(tuple(needed), versions, tuple(undefined), frozenset(defined))


def missing(site_packages: Path) -> list[Library]:
    """Return the libraries that `import torch` asks for and nobody has, with their symbols."""
    folders = [site_packages / "torch" / "lib", *site_packages.glob("nvidia/*/lib")]
    there = {path.name: path for folder in folders for path in folder.glob("*.so*")}
    binaries = list(_loaded(site_packages.glob("torch/_C*.so"), there))
    absent = {
        name: Library(name)
        for binary in binaries
        for name in binary.needed
        if _NVIDIA.match(name) and name not in there
    }
    if not absent:
        return []
    defined = frozenset().union(*(binary.defined for binary in binaries))
    for binary in binaries:
        for symbol, version in binary.undefined:
            library = binary.versions.get(version)
            if library in absent:
                absent[library].symbols[version].add(symbol)
            elif not version and symbol not in defined and _OF_NVIDIA.match(symbol):
                # Whichever library has it will do: the loader looks through all of them.
                min(absent.values(), key=lambda found: found.name).symbols[""].add(symbol)
    return sorted(absent.values(), key=lambda found: found.name)


def _loaded(roots: Iterable[Path], there: dict[str, Path]) -> Iterator[Binary]:
    """The shared objects that are loaded along with some; not what torch opens later, if ever."""
    waiting, seen = list(roots), set()
    while waiting:
        binary = read(waiting.pop())
        yield binary
        new = {name for name in binary.needed if name in there and name not in seen}
        seen |= new
        waiting += [there[name] for name in sorted(new)]


def write(library: Library, folder: Path) -> Path:
    """Compile a stand-in into a folder."""
    names = sorted(set().union(*library.symbols.values()))
    functions = "".join(f"int {name}(void) {{ return 1; }}\n" for name in names)
    versions = "".join(
        f"{version} {{ global: {' '.join(f'{name};' for name in sorted(symbols))} }};\n"
        for version, symbols in sorted(library.symbols.items())
        if version
    )
    path = folder / library.name
    with tempfile.TemporaryDirectory() as scratch:
        source, script = Path(scratch, "stub.c"), Path(scratch, "versions")
        source.write_text(functions or "/* torch needs its name only */\n", encoding="ascii")
        script.write_text(versions, encoding="ascii")
        command = ["gcc", "-shared", "-nostdlib", "-fPIC", "-w", "-fno-builtin"]
        command += [f"-Wl,-soname,{library.name}", "-o", str(path), str(source)]
        command += [f"-Wl,--version-script={script}"] if versions else []
        subprocess.run(command, check=True)
    return path


def _readelf(what: str, path: Path) -> list[str]:
    command = ["readelf", "--wide", what, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main(arguments: list[str]) -> None:
    """Write what is missing beside torch's own libraries, on whose search path that is."""
    site_packages = Path(arguments[0] if arguments else sysconfig.get_path("purelib"))
    for library in missing(site_packages):
        print(f"a stand-in: {write(library, site_packages / 'torch' / 'lib').name}")


if __name__ == "__main__":
    main(sys.argv[1:])
