"""Everything that a CUDA machine can record, in order of value: `record`.

This process imports neither torch nor vLLM. Each piece has a process of its own, which may crash or
hang, and be none the worse for the others: after one bad access to a GPU's memory a process can do
nothing more there. It is started as ``python -m conformance.references.on_cuda ENTRY ARGUMENTS``.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from conformance.references import stages
from conformance.references.stages import Piece, Skipped, Stage
from conformance.target import WrongUse

__all__ = ["Options", "prepare", "record"]

_ROOT = Path(__file__).resolve().parents[2]
_PREPARE = "vllm-conformance record --source cuda --prepare DIR"


@dataclass(frozen=True)
class Options:
    """What to record, and where.

    ``directory`` is that of all references; ``prepared`` has the kernels (`prepare`), or is None.
    With ``recipes`` only these models' references are recorded, with ``scenarios`` only these.
    """

    directory: Path
    cache: Path
    prepared: Path | None = None
    minutes: float = 8.0
    recipes: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """The command line, but for its folders."""
        named = [f" --recipe {name}" for name in self.recipes]
        named += [f" --scenario {name}" for name in self.scenarios]
        prepared = " --prepared DIR" if self.prepared else ""
        return f"vllm-conformance record --source cuda{prepared}{''.join(named)}"


class Failed(RuntimeError):
    """A piece's process gave no answer; the message is the last line that it said."""


class _Children:
    """The processes that pieces wait for."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._lock = threading.Lock()
        self._ended = False

    def ask(self, entry: str, arguments: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Call an entry of this module in a process; return its answer.

        Raises:
            Failed: it failed, or took longer; WrongUse if it says so.
        """
        # An interpreter in the GPU's place would answer, and nobody would know.
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        paths = (str(_ROOT), environment.get("PYTHONPATH"))
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        with self._lock:
            if self._ended:
                raise Failed("interrupted")
            child = subprocess.Popen(
                [sys.executable, "-m", __name__, entry, json.dumps(arguments)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            self._running.add(child)
        try:
            said, complained = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
            raise Failed(f"no answer within {seconds:.0f} s") from None
        finally:
            with self._lock:
                self._running.discard(child)
        last = (complained.strip().splitlines() or ["nothing was said"])[-1]
        if child.returncode == 2:
            raise WrongUse(last)
        if child.returncode != 0:
            raise Failed(f"{last} (exit status {child.returncode})")
        return dict(json.loads(said.splitlines()[-1]))

    def end(self) -> None:
        """End those that run; none can be started after this."""
        with self._lock:
            self._ended = True
            for child in self._running:
                child.kill()


def record(options: Options, say: Callable[[str], None]) -> int:
    """Record all that this machine can, within the time; return the command's exit status.

    0: something was recorded, or is there, and nothing failed; 1: a piece failed; 2: nothing was
    recorded.

    Raises:
        WrongUse: there is no torch here, or no CUDA device.
    """
    children = _Children()
    machine = children.ask("machine", {}, 120.0)
    say(f"{machine['device']}, driver {machine['driver']}, torch {machine['torch']}")
    hosts: list[Any] = []
    chosen = [
        stage
        for stage in (
            Stage("api", partial(_api, options, machine, children)),
            Stage(
                "kernels",
                partial(_kernels, options, machine, children),
                ("triton", "numpy", "safetensors"),
                at_once=_at_once(6),
            ),
            Stage(
                "transformers",
                partial(_transformers, options, machine),
                ("transformers", "tokenizers", "safetensors"),
                at_once=_at_once(3),
            ),
            Stage("scenarios", partial(_scenarios, options, machine, hosts), ("vllm", "psutil")),
        )
        if (options.recipes, options.scenarios) == ((), ())
        or (options.recipes and stage.name == "transformers")
        or (options.scenarios and stage.name == "scenarios")
    ]

    def end() -> None:
        children.end()
        for host in hosts:
            host.close()

    try:
        return stages.run(chosen, options.minutes, say, interrupted=end).status
    finally:
        end()


def _at_once(most: int) -> int:
    return max(1, min(most, (os.cpu_count() or 1) // 2))


def _api(options: Options, machine: dict[str, Any], children: _Children) -> Sequence[Piece]:
    from conformance.references import recording

    folder = options.directory / "cuda"
    path = recording.path_of(folder, machine)

    def is_there() -> bool:
        try:
            return bool(recording.load(path).get("key") == recording.key(machine))
        except WrongUse:
            return False

    def ask() -> str:
        answer = children.ask("api", {"directory": str(folder)}, 120.0)
        return f"{answer['hold']} of {answer['clauses']} clauses hold"

    return [Piece(path.stem, 120.0, is_there, ask)]


def _kernels(options: Options, machine: dict[str, Any], children: _Children) -> Sequence[Piece]:
    from conformance.kernels.carried import key_of

    if options.prepared is None:
        raise Skipped(f"run `{_PREPARE}` on a machine with vLLM and Triton, and give --prepared")
    heads = sorted(options.prepared.glob("*.json"))
    if not heads:
        raise Skipped(f"{options.prepared} has no kernels: `{_PREPARE}` writes them")

    def piece(head: Path) -> Piece:
        name = head.stem
        path = options.directory / "cuda" / "kernels" / f"{name}.json"
        digest = hashlib.sha256(json.dumps(machine, sort_keys=True).encode())
        for suffix in (".py", ".json", ".safetensors"):
            digest.update(head.with_name(name + suffix).read_bytes())
        key = digest.hexdigest()[:20]

        def launch() -> str:
            where = _provenance(options, machine) | {"key": key}
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".part-", dir=path.parent) as scratch:
                written = Path(scratch, path.name)
                arguments = {
                    "folder": str(head.parent),
                    "name": name,
                    "path": str(written),
                    "seconds": 40.0,
                    "where": where,
                }
                held = children.ask("kernel", arguments, 80.0)
                path.unlink(missing_ok=True)  # it would be of other bytes
                for suffix in (".safetensors", ".json"):
                    written.with_suffix(suffix).chmod(0o644)
                    written.with_suffix(suffix).replace(path.with_suffix(suffix))
            told = f"{held['examples']} of {held['carried']} launches"
            if held["differ"]:
                return f"{told}; {held['differ']} differ from {held['source']}: {held['first']}"
            return f"{told}; all as in {held['source']}"

        return Piece(name, 80.0, lambda: key_of(path) == key, launch)

    return [piece(head) for head in heads]


def _transformers(options: Options, machine: dict[str, Any]) -> Sequence[Piece]:
    from conformance.references.store import Record, Store
    from conformance.references.transformers_reference import compute
    from conformance.scenarios.asking import asked_of_transformers
    from conformance.scenarios.checkpoints import checkpoint, checkpoint_hash
    from conformance.scenarios.smollm2 import PackageMissing

    asked = asked_of_transformers()
    if unknown := sorted(set(options.recipes) - set(asked)):
        raise WrongUse(f"No scenario asks about {', '.join(unknown)}: name of {', '.join(asked)}.")
    store = Store(options.directory)

    def is_there(name: str) -> bool:
        try:
            found = store.load("cuda", name)
            store.answers("cuda", name, checkpoint_hash(name), asked[name])
        except WrongUse:
            return False
        assert found is not None
        where = found.references.provenance
        return where.device == machine["device"] and all(
            where.versions.get(part) == machine[part] for part in ("torch", "cuda", "driver")
        )

    def ask(name: str) -> str:
        try:
            model = checkpoint(name, options.cache / "models")
        except PackageMissing as error:
            raise Skipped(str(error)) from error
        answers = compute(model, asked[name], device="cuda", dtype="float32", timeout=100.0)
        today = _provenance(options, machine)["recorded"]
        command = f"vllm-conformance record --source cuda --recipe {name}"
        store.save(Record(answers, today, command))
        return f"{len(answers.sequences)} requests"

    return [
        Piece(name, 120.0, partial(is_there, name), partial(ask, name))
        for name in options.recipes or sorted(asked, key=lambda name: (len(name), name))
    ]


def _scenarios(options: Options, machine: dict[str, Any], hosts: list[Any]) -> Sequence[Piece]:
    from conformance.scenarios import recording
    from conformance.scenarios.host import Host
    from conformance.scenarios.runs import Runs
    from conformance.scenarios.smollm2 import PackageMissing
    from conformance.target import installed_versions

    versions = installed_versions()
    found = {scenario.name: scenario for scenario in recording.recordable(versions.vllm or "0")}
    if unknown := sorted(set(options.scenarios) - set(found)):
        raise WrongUse(f"One GPU runs no {', '.join(unknown)}: name one of {', '.join(found)}.")
    where = _provenance(options, machine)
    where["versions"] |= {"vllm": versions.vllm, "triton": versions.triton}
    host = Host(options.cache)
    hosts.append(host)
    runs = Runs(host)

    def piece(name: str) -> Piece:
        scenario = found[name]
        path = options.directory / "cuda" / "scenarios" / f"{name}.json"

        def is_there() -> bool:
            try:
                kept, _ = recording.load(path, scenario)
            except WrongUse:
                return False
            return all(kept[part] == where[part] for part in ("device", "driver", "versions"))

        def ask() -> str:
            try:
                count = recording.record(runs, replace(scenario, limit=120.0), path, where)
            except PackageMissing as error:
                raise Skipped(str(error)) from error
            return f"{count} generations"

        return Piece(name, 150.0, is_there, ask)

    return [piece(name) for name in options.scenarios or found]


def _provenance(options: Options, machine: dict[str, Any]) -> dict[str, Any]:
    versions = {name: machine[name] for name in ("torch", "cuda", "python")}
    return {
        **{name: value for name, value in machine.items() if name not in versions},
        "versions": versions,
        "recorded": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": options.command,
    }


def prepare(directory: Path, cache: Path, say: Callable[[str], None]) -> int:
    """Write what a CUDA machine without vLLM needs to launch vLLM's kernels; return how many.

    That is a kernel's own source, its inputs, and what Triton's interpreter makes of them.

    Raises:
        WrongUse: there is no vLLM here, or no Triton that interprets its kernels.
    """
    from conformance.kernels.carried import CannotCarry, pack
    from conformance.kernels.generators import GENERATOR
    from conformance.kernels.outcomes import CannotRecord, Records
    from conformance.scenarios.host import Host
    from conformance.scenarios.runs import Runs
    from conformance.surface.sources import open_source

    tree, packed = open_source("installed"), 0
    with Host(cache) as host:
        records = Records(Runs(host))
        for kernel, generator in GENERATOR.items():
            name = kernel.removeprefix("triton:")
            try:
                pack(tree, kernel, generator.module, records.path(kernel), directory)
            except (CannotCarry, CannotRecord) as error:
                say(f"{name}: not carried: {str(error).splitlines()[0]}")
            else:
                packed += 1
                say(name)
    if not packed:
        raise WrongUse("No kernel can be prepared here: install vLLM and Triton, as above.")
    return packed


def main(entry: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A piece's process: ``machine``, ``api`` or ``kernel``; what it answers."""
    from conformance.references import recording

    if entry == "machine":
        return recording.machine()
    if entry == "api":
        path = recording.record(Path(arguments["directory"]))
        answers = [answer["state"] for answer in recording.load(path)["clauses"].values()]
        return {"clauses": len(answers), "hold": answers.count("holds")}
    from conformance.kernels.carried import launch

    folder, path = Path(arguments.pop("folder")), Path(arguments.pop("path"))
    return launch(folder, path=path, device="cuda", **arguments)


if __name__ == "__main__":
    try:
        print(json.dumps(main(sys.argv[1], json.loads(sys.argv[2]))))
    except WrongUse as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
