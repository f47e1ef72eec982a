"""Measures what torch's device names do on this host, in processes of their own.

    python -m conformance.drift.measure [DIR]

writes ``torch-<version>.json`` into the directory, by default among the fixtures. The table is a
statement about hosts without an accelerator, so nothing is measured where torch sees one. torch is
imported in a child, and each expression runs in a fork of that child: one that ends its process,
or that leaves torch changed, says nothing about the next.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from conformance.drift.behaviours import DIRECTORY, SCHEMA, write
from conformance.target import WrongUse

_ROOT = Path(__file__).resolve().parents[2]
_SECONDS = 30.0
_LONGEST = 160

_SAMPLES = {
    "pin_memory=True": "torch.empty(1, pin_memory=True)",
    "device='cuda'": "torch.empty(1, device='cuda')",
    "non_blocking=True": "torch.zeros(1).to('cpu', non_blocking=True)",
    "torch.Tensor.cuda": "torch.empty(1).cuda()",
    "torch.Tensor.pin_memory": "torch.empty(1).pin_memory()",
    "torch.Tensor.record_stream": "torch.empty(1).record_stream(torch.Stream())",
    "torch.Event.elapsed_time": "torch.Event().elapsed_time(torch.Event())",
    "torch.Event.wait": "torch.Event().wait(torch.Stream())",
    "torch.Stream.wait_event": "torch.Stream().wait_event(torch.Event())",
    "torch.Stream.wait_stream": "torch.Stream().wait_stream(torch.Stream())",
    "torch.accelerator.device_index": "torch.accelerator.device_index(0).__enter__()",
    "torch.accelerator.set_stream": "torch.accelerator.set_stream(torch.Stream())",
    "torch.cuda.Event.elapsed_time": "torch.cuda.Event().elapsed_time(torch.cuda.Event())",
    "torch.cuda.Stream.wait_event": "torch.cuda.Stream().wait_event(torch.cuda.Event())",
    "torch.cuda.Stream.wait_stream": "torch.cuda.Stream().wait_stream(torch.cuda.Stream())",
    "torch.cuda.can_device_access_peer": "torch.cuda.can_device_access_peer(0, 1)",
    "torch.cuda.graph": "torch.cuda.graph(torch.cuda.CUDAGraph()).__enter__()",
    "torch.cuda.memory.use_mem_pool": (
        "torch.cuda.memory.use_mem_pool(torch.cuda.memory.MemPool()).__enter__()"
    ),
    "torch.cuda.manual_seed": "torch.cuda.manual_seed(0)",
    "torch.cuda.manual_seed_all": "torch.cuda.manual_seed_all(0)",
    "torch.cuda.memory._set_allocator_settings": (
        "torch.cuda.memory._set_allocator_settings('expandable_segments:True')"
    ),
    "torch.cuda.nvtx.range": "torch.cuda.nvtx.range('x').__enter__()",
    "torch.cuda.use_mem_pool": "torch.cuda.use_mem_pool(torch.cuda.MemPool()).__enter__()",
    "torch.cuda.device": "torch.cuda.device(0).__enter__()",
    # Whatever stream they are given, and be it one that stands in for a stream.
    "torch.cuda.stream": "torch.cuda.stream(object()).__enter__()",
    "torch.cuda.set_stream": "torch.cuda.set_stream(torch.Stream())",
}
"""How a name is used where calling it with nothing, or with 0 for a device, says little."""

_ARGUMENTS = {"device": "0", "device_index": "0", "msg": "'x'", "mode": "0", "debug_mode": "0"}
_NO_NEWS = re.compile(r".*\.[A-Z]\w*(Storage|Tensor)|.*\.(classproperty|cudaStatus)")
"""Public names that nobody is going to use."""
_SINGLETONS = ("torch.cuda.DeviceProperties", "torch.cuda.get_device_properties(0)")


def measure(names: Iterable[str]) -> dict[str, Any]:
    """Return the table of the torch of this environment; ``names`` is what it must have.

    Raises:
        WrongUse: torch is not installed, or sees an accelerator.
    """
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "conformance.drift.measure", "--child"],
        input=json.dumps(sorted(names)),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"},
    )
    if done.returncode == 2:
        raise WrongUse(done.stderr.strip().splitlines()[-1])
    if done.returncode:
        raise RuntimeError(f"the behaviours of torch were not measured:\n{done.stderr}")
    table: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return table


def known_names() -> set[str]:
    """The names of torch, and the arguments, that any known inventory has."""
    from conformance.surface.inventory import INVENTORIES, load

    return {
        row.attribute
        for path in INVENTORIES.glob("*.json")
        for row in load(path).rows
        if not row.attribute.startswith(("triton:", "platform."))
    }


def _child() -> int:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        print(f"torch cannot be imported ({error}): install its CPU build.", file=sys.stderr)
        return 2
    if torch.accelerator.is_available():
        print(
            "This host has an accelerator, and what is measured is a host without one: hide it "
            "(CUDA_VISIBLE_DEVICES='').",
            file=sys.stderr,
        )
        return 2
    names = set(json.load(sys.stdin))
    for space in ("torch.accelerator", "torch.cuda"):
        module = eval(space, {"torch": torch})
        names |= {
            f"{space}.{name}"
            for name in dir(module)
            if not name.startswith("_")
            and not _NO_NEWS.fullmatch(f"{space}.{name}")
            and callable(getattr(module, name))
            and str(getattr(getattr(module, name), "__module__", "")).startswith("torch")
        }
    measured = ((name, _measured(torch, name)) for name in sorted(names))
    attributes = {name: found for name, found in measured if found is not None}
    table = {
        "schema": SCHEMA,
        "torch": torch.__version__,
        "python": ".".join(map(str, sys.version_info[:2])),
        "attributes": attributes,
    }
    print(json.dumps(table))
    return 0


def _measured(torch: Any, name: str) -> dict[str, Any] | None:
    """What a name does; None where what is known here is not enough to use it."""
    if "CUDAPluggableAllocator" in name:
        return None  # it is made from a library of functions, and there is none here
    how = _SAMPLES.get(name)
    if how is None:
        # A member of an instance is looked for on the class; a namespace's is looked up as it is.
        if not _exists(torch, name):
            return {"exists": False}
        how = _expression(torch, name)
    found = _in_a_fork(torch, how)
    if "None" in how and found.get("raises") in ("TypeError", "AttributeError"):
        return None  # that None is no argument for it says nothing
    return {"exists": True, "how": how, **found}


def _exists(torch: Any, name: str) -> bool:
    if name.startswith(_SINGLETONS[0]):
        return True  # its class is not public; what gives one says the rest
    found: Any = torch
    for part in name.split(".")[1:]:
        if not hasattr(found, part):
            # Instances may have more than their class shows, if one can be made at all.
            return inspect.isclass(found)
        found = getattr(found, part)
    return True


def _expression(torch: Any, name: str) -> str:
    owner, _, member = name.rpartition(".")
    if owner == _SINGLETONS[0]:
        return f"{_SINGLETONS[1]}.{member}"
    found = _find(torch, owner)
    if inspect.isclass(found):
        maker = _SAMPLES.get(owner) or f"{owner}({_arguments(found)})"
        attribute = getattr(found, member, None)
        return f"{maker}.{member}" + ("()" if callable(attribute) else "")
    value = _find(torch, name)
    if inspect.isclass(value) and issubclass(value, BaseException):
        return name
    return f"{name}({_arguments(value)})" if callable(value) else name


def _find(torch: Any, name: str) -> Any:
    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return found


def _arguments(value: Any) -> str:
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    return ", ".join(
        _ARGUMENTS.get(parameter.name, "None")
        for parameter in parameters
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    )


def _in_a_fork(torch: Any, how: str) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        try:
            try:
                value = eval(how, {"torch": torch})
                answer: dict[str, Any] = {"gives": _text(repr(value))}
            except Exception as error:
                answer = {"raises": type(error).__name__, "message": _text(str(error))}
            os.write(writing, json.dumps(answer).encode())
        finally:
            os._exit(0)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], _SECONDS)
        data = os.read(reading, 65536) if ready else b""
        if not ready:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    finally:
        os.close(reading)
    if data:
        return dict(json.loads(data))
    if os.WIFSIGNALED(status):
        ended = f"signal {os.WTERMSIG(status)}" if ready else f"no end within {_SECONDS:.0f} s"
        return {"raises": "the process ends", "message": ended}
    return {"raises": "the process ends", "message": f"exit status {os.WEXITSTATUS(status)}"}


def _text(text: str) -> str:
    line = re.sub(r"0x[0-9a-f]+", "0x...", " ".join(text.strip().split("\n")[0].split()))
    # Where torch lies differs from machine to machine.
    line = re.sub(r"/[^\s'\"]*/", "", line)
    return line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."


def main(arguments: list[str]) -> int:
    """Write the table, and say where."""
    if arguments == ["--child"]:
        return _child()
    try:
        path = write(measure(known_names()), Path(arguments[0]) if arguments else DIRECTORY)
    except WrongUse as error:
        print(error, file=sys.stderr)
        return 2
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
