"""The host of child processes: starts a fork server when it is first needed, and runs jobs in it.

The process that uses this imports neither torch nor vLLM.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from conformance.cache import default_cache
from conformance.scenarios import triton_backend
from conformance.scenarios.observation import ChildRun, Exit, Phase, Raised, tail

CHILD_ENVIRONMENT = {
    # One process, so that a phase, a crash and a leak can be told apart; scenarios about worker
    # processes set it otherwise.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
GENERATION_ENVIRONMENT = {
    "v1": {"VLLM_USE_V2_MODEL_RUNNER": "0"},
    "v2": {"VLLM_USE_V2_MODEL_RUNNER": "1", **triton_backend.INTERPRETED},
}
"""What chooses vLLM's runner, for the fork server and its children alike."""
_SERVER_ENVIRONMENT = {
    # Fills memory that was allocated and not written: what reads it must be wrong every time.
    "GLIBC_TUNABLES": "glibc.malloc.perturb=85",
}
_UNSET = ("OMP_NUM_THREADS", "LD_PRELOAD", *triton_backend.INTERPRETED)
_ROOT = Path(__file__).resolve().parents[2]


class HostError(RuntimeError):
    """The child processes cannot be run here; the message says what to do."""


class Host:
    """Runs jobs, one at a time, in children of a fork server.

    ``generation`` is which of vLLM's runners the children get. The V2 runner needs Triton, which
    has to be prepared before vLLM is imported, so each generation has a fork server of its own.
    Use it as a context manager: its end ends the server and removes every temporary file.
    """

    def __init__(self, cache: Path | None = None, generation: str = "v1") -> None:
        self.cache = cache or default_cache()
        self.generation = generation
        self._others: dict[str, Host] = {}
        self._server: subprocess.Popen[str] | None = None
        self._directory: Path | None = None
        self._sockets: Path | None = None
        self._broken: str | None = None
        self._jobs = 0

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def of(self, generation: str) -> Host:
        """Return the host of a runner generation: this one, or another that ends with it."""
        if generation == self.generation:
            return self
        if generation not in self._others:
            self._others[generation] = Host(self.cache, generation)
        return self._others[generation]

    def run(
        self,
        entry: str,
        arguments: dict[str, Any],
        *,
        label: str,
        environment: dict[str, str] | None = None,
        limit: float = 180.0,
    ) -> ChildRun:
        """Run ``module:function`` in a child and return what happened.

        Args:
            entry: the function; it receives a `child.Journal` and ``arguments``, which are JSON.
            label: what to call the run in messages.
            environment: variables for the child, over `CHILD_ENVIRONMENT`.
            limit: seconds after which the child is killed.

        Raises:
            HostError: the fork server does not start, or died; or the generation cannot run here.
        """
        server = self._started()
        directory = self._new_directory()
        job = {
            "entry": entry,
            "arguments": arguments,
            "directory": str(directory),
            "environment": {
                **CHILD_ENVIRONMENT,
                **GENERATION_ENVIRONMENT[self.generation],
                **self._cache_variables(),
                "VLLM_RPC_BASE_PATH": str(self._sockets),
                **(environment or {}),
            },
            "limit": limit,
        }
        assert server.stdin is not None
        try:
            with suppress(BrokenPipeError):  # the missing answer says so
                print(json.dumps(job), file=server.stdin, flush=True)
            answer = self._answer()
        except BaseException:
            # Interrupted: its answer is still to come, and must not be taken for the next job's.
            server.kill()
            self.close()
            raise
        run = _read_run(label, directory, answer)
        shutil.rmtree(directory, ignore_errors=True)
        return run

    def close(self) -> None:
        """End the fork server and remove the temporary directory; of other generations too."""
        while self._others:
            self._others.popitem()[1].close()
        if self._server is not None:
            assert self._server.stdin is not None and self._server.stdout is not None
            self._server.stdin.close()
            try:
                self._server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._server.kill()
                self._server.wait()
            self._server.stdout.close()
            self._server = None
        for directory in (self._directory, self._sockets):
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)
        self._directory = self._sockets = None

    def _started(self) -> subprocess.Popen[str]:
        if self._broken is not None:
            raise HostError(self._broken)
        if self._server is None:
            if self.generation == "v2" and (problem := triton_backend.missing()):
                raise HostError(problem)
            self._directory = Path(tempfile.mkdtemp(prefix="vllm-conformance-"))
            # A socket's path has at most 107 characters, and TMPDIR may be long.
            short = Path("/tmp")
            where = short if short.is_dir() and os.access(short, os.W_OK) else self._directory
            self._sockets = Path(tempfile.mkdtemp(prefix="vc-", dir=where))
            environment = {k: v for k, v in os.environ.items() if k not in _UNSET}
            environment |= {
                **CHILD_ENVIRONMENT,
                **GENERATION_ENVIRONMENT[self.generation],
                **_SERVER_ENVIRONMENT,
                **self._cache_variables(),
            }
            # The server finds the packages where this process found them, installed or not.
            paths = (str(_ROOT), environment.get("PYTHONPATH"))
            environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
            with (self._directory / "server.stderr").open("w") as stderr:
                self._server = subprocess.Popen(
                    [sys.executable, "-m", "conformance.scenarios.forkserver"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    env=environment,
                    text=True,
                )
            answer = self._answer()
            if "ready" not in answer:
                self._broken = (
                    f"torch and vLLM cannot be imported here ({answer.get('broken')}): "
                    "vllm-conformance doctor says what is missing."
                )
                raise HostError(self._broken)
        return self._server

    def _answer(self) -> dict[str, Any]:
        assert self._server is not None and self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            assert self._directory is not None
            self._server.wait()
            stderr = (self._directory / "server.stderr").read_text(errors="replace")
            raise HostError(f"the fork server ended by itself:\n{tail(stderr)}")
        return dict(json.loads(line))

    def _new_directory(self) -> Path:
        assert self._directory is not None
        self._jobs += 1
        directory = self._directory / f"job-{self._jobs}"
        (directory / "tmp").mkdir(parents=True)
        return directory

    def _cache_variables(self) -> dict[str, str]:
        # What compilers keep is kept between runs, and is not what a run left behind.
        return {
            "VLLM_CACHE_ROOT": str(self.cache / "vllm"),
            "VLLM_CONFIG_ROOT": str(self.cache / "vllm-config"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.cache / "inductor"),
            "NUMBA_CACHE_DIR": str(self.cache / "numba"),
            "HF_HOME": str(self.cache / "huggingface"),
        }


def _read_run(label: str, directory: Path, answer: dict[str, Any]) -> ChildRun:
    phases, results, done = _read_events(directory / "events.jsonl")
    return ChildRun(
        label=label,
        exit=Exit(
            status=answer["status"],
            signal=answer["signal"],
            timed_out=answer["timed_out"],
            seconds=answer["seconds"],
            processes_left=tuple(answer["processes_left"]),
            files_left=tuple(answer["files_left"]),
        ),
        phases=phases,
        results=results,
        done=done,
        stderr=_read_text(directory / "stderr"),
        stdout=_read_text(directory / "stdout"),
    )


def _read_events(path: Path) -> tuple[tuple[Phase, ...], dict[str, Any], bool]:
    phases: list[Phase] = []
    open_phases: deque[int] = deque()
    results: dict[str, Any] = {}
    done = False
    for line in _read_text(path).splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            break  # the line that the process died in
        if event["event"] == "begin":
            open_phases.append(len(phases))
            phases.append(Phase(event["phase"], ended=False))
        elif event["event"] == "end":
            raised = Raised(**event["raised"]) if event["raised"] else None
            phases[open_phases.pop()] = Phase(
                event["phase"], True, event["seconds"], raised, event["rss"]
            )
        elif event["event"] == "result":
            results[event["name"]] = event["value"]
        else:
            done = True
    return tuple(phases), results, done


def _read_text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
