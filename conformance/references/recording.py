"""A recording of what torch's device API does on a real GPU, held against the contract's clauses.

The clauses say what a GPU does, with torch's documentation as their source. On a machine with a GPU
they are asked of the GPU itself; what came of it is kept, with all that it depends on. No vLLM is
needed; clauses that go through vLLM are not asked.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import subprocess
import traceback
from pathlib import Path
from typing import Any

from conformance.contract import accelerator, devices, events, graphs, pinned, streams, tensors
from conformance.contract.clause import Clause, Diverges
from conformance.target import WrongUse

SCHEMA = "vllm-conformance/api-recording/1"
_FAMILIES = (streams, events, accelerator, devices, graphs, tensors, pinned)


def machine() -> dict[str, Any]:
    """What a recording of this machine's GPU says of where it was made.

    Raises:
        WrongUse: torch is not installed, or it finds no CUDA device.
    """
    try:
        import torch
    except ImportError as error:
        raise WrongUse(
            f"torch cannot be imported ({error}): install a CUDA build of it on a machine with a "
            "GPU, and record there."
        ) from error
    if not torch.cuda.is_available():
        raise WrongUse(
            f"torch {torch.__version__} finds no CUDA device here: record on a machine with one; "
            "what a CPU computes is no recording of a GPU."
        )
    return {
        "source": "cuda",
        "device": torch.cuda.get_device_name(0),
        "capability": list(torch.cuda.get_device_capability(0)),
        "driver": _driver(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


def _driver() -> str:
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (told.splitlines() or ["unknown"])[0].strip()


def key(where: dict[str, Any]) -> str:
    """What a recording on such a machine depends on: the machine, and what is asked of it."""
    digest = hashlib.sha256(json.dumps(where, sort_keys=True).encode())
    for family in _FAMILIES:
        digest.update(Path(str(family.__file__)).read_bytes())
    return digest.hexdigest()[:20]


def path_of(directory: Path, where: dict[str, Any]) -> Path:
    """The file of a machine's recording: ``<device>-torch-<version>.json``."""
    safe = "".join(letter if letter.isalnum() else "-" for letter in where["device"].lower())
    return directory / f"{safe}-torch-{where['torch'].replace('+', '-')}.json"


def record(directory: Path) -> Path:
    """Ask the GPU of this machine, write its file (`path_of`), and return the path.

    Raises:
        WrongUse: torch is not installed, it finds no CUDA device, or the file cannot be written.
    """
    where = machine()
    data = {
        "schema": SCHEMA,
        **where,
        "key": key(where),
        "recorded": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "clauses": asked(),
    }
    path = path_of(directory, where)
    unfinished = path.with_suffix(f".{os.getpid()}.part")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n")
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise WrongUse(f"--out {directory} cannot be written ({error}): name another.") from error
    return path


def asked() -> dict[str, dict[str, Any]]:
    """Ask every clause of torch's own families in this process, as torch is here.

    Each gives ``state``: ``holds``, ``diverges``, ``raises`` or ``not asked``; and ``said``.
    """
    return {
        clause.name: _ask(clause)
        for family in _FAMILIES
        for clause in family.CLAUSES
        if not clause.host_only
    }


def _ask(clause: Clause) -> dict[str, Any]:
    try:
        clause.check()
    except ModuleNotFoundError as error:
        return {"state": "not asked", "said": str(error)}
    except Diverges as error:
        return {"state": "diverges", "said": str(error)}
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return {"state": "raises", "said": f"{type(error).__name__}: {error} ({last.name})"}
    return {"state": "holds", "said": ""}


def load(path: Path) -> dict[str, Any]:
    """Read a recording.

    Raises:
        WrongUse: it cannot be read, or is none of this schema.
    """
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        if data["schema"] != SCHEMA or data["source"] != "cuda":
            raise ValueError(f"its schema is {data['schema']!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WrongUse(f"{path} is no recording of a GPU ({error}): record it anew.") from error
    return data
