"""Records of launches: what was drawn, and what memory held after the GPU's own kernel ran on it.

A record is two files in the cache: ``.safetensors`` with the bytes of all regions of all examples,
before and after, and ``.json`` with everything else and the provenance. Its name tells what it
depends on, so that it is made anew when any of that changes.
"""

from __future__ import annotations

import ast
import dataclasses
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from conformance.kernels.example import Example, Link, Region, Value, View

SCHEMA = "vllm-conformance/kernels/1"

INTERPRETER = (
    "the maximum ignores NaN",
    "division is exact",
    "programs run one after the other",
    "float32 is cut off, and not rounded, where it is stored as bfloat16",
)
"""How Triton's interpreter is not a GPU; generators avoid, or make up for, each of these."""


@dataclass(frozen=True)
class Record:
    """All examples of a kernel, and the contents of their regions after the launch."""

    kernel: str
    parameters: tuple[str, ...]
    """The kernel's own, in its order."""
    constants: tuple[str, ...]
    """Those that are constants of the compiler (``tl.constexpr``)."""
    examples: tuple[Example, ...]
    after: tuple[tuple[bytes, ...], ...]
    provenance: dict[str, Any]


def key(kernel: str, source: Path, examples: int, versions: dict[str, str]) -> str:
    """What a record depends on, as part of a file's name.

    ``source`` is the file that the kernel is in; the generators count as a whole.
    """
    digest = hashlib.sha256()
    for part in (SCHEMA, kernel, str(examples), json.dumps(versions, sort_keys=True)):
        digest.update(part.encode() + b"\0")
    digest.update(source.read_bytes())
    here = Path(__file__).parent
    for path in sorted((*here.glob("generators/*.py"), here / "example.py", here / "recording.py")):
        # What it says, and not how it is laid out.
        digest.update(ast.dump(ast.parse(path.read_text())).encode())
    return digest.hexdigest()[:20]


def source_of(module: str) -> Path:
    """The file of a module of an installed package, none of which is imported."""
    package, _, rest = module.partition(".")
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations, f"{package} is not installed"
    path = Path(next(iter(spec.submodule_search_locations))).joinpath(*rest.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from making the same record at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write(path: Path, record: Record) -> None:
    """Write a record; ``path`` is its JSON file, which is there only if all of it is."""
    from safetensors.numpy import save_file

    before = b"".join(r.content for example in record.examples for r in example.regions)
    after = b"".join(content for contents in record.after for content in contents)
    temporary = path.with_suffix(f".{os.getpid()}")
    save_file(
        {
            "before": np.frombuffer(before, dtype=np.uint8),
            "after": np.frombuffer(after, dtype=np.uint8),
        },
        temporary,
    )
    path.unlink(missing_ok=True)  # it would be of other bytes
    temporary.replace(path.with_suffix(".safetensors"))
    head = {
        "schema": SCHEMA,
        "kernel": record.kernel,
        "parameters": record.parameters,
        "constants": record.constants,
        "provenance": record.provenance,
        "examples": [_to_json(example) for example in record.examples],
    }
    temporary.write_text(json.dumps(head))
    temporary.replace(path)


def read(path: Path) -> Record:
    """Read a record by its JSON file."""
    from safetensors.numpy import load_file

    head = json.loads(path.read_text())
    kept = load_file(path.with_suffix(".safetensors"))
    before, after = kept["before"].tobytes(), kept["after"].tobytes()
    examples, contents, at = [], [], 0
    for data in head["examples"]:
        regions, ends = [], []
        for name, dtype, length in data["regions"]:
            regions.append(Region(name, dtype, before[at : at + length]))
            ends.append(after[at : at + length])
            at += length
        examples.append(_from_json(data, tuple(regions)))
        contents.append(tuple(ends))
    return Record(
        head["kernel"],
        tuple(head["parameters"]),
        tuple(head["constants"]),
        tuple(examples),
        tuple(contents),
        head["provenance"],
    )


def _to_json(example: Example) -> dict[str, Any]:
    return {
        "regions": [(r.name, r.dtype, len(r.content)) for r in example.regions],
        "arguments": {name: _value_to_json(v) for name, v in example.arguments.items()},
        "grid": example.grid,
        "links": [dataclasses.astuple(link) for link in example.links],
        "extra": {name: _value_to_json(v) for name, v in example.extra.items()},
        "may_refuse": example.may_refuse,
    }


def _from_json(data: dict[str, Any], regions: tuple[Region, ...]) -> Example:
    return Example(
        regions,
        {name: _value_from_json(v) for name, v in data["arguments"].items()},
        tuple(data["grid"]),
        tuple(Link(*link) for link in data["links"]),
        {name: _value_from_json(v) for name, v in data["extra"].items()},
        data["may_refuse"],
    )


def _value_to_json(value: Any) -> Any:
    return {"view": dataclasses.asdict(value)} if isinstance(value, View) else value


def _value_from_json(value: Any) -> Value:
    if not (isinstance(value, dict) and "view" in value):
        return value
    view = value["view"]
    return View(
        view["region"], view["dtype"], tuple(view["shape"]), tuple(view["stride"]), view["offset"]
    )
