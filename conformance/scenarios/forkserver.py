"""The fork server: a process that has imported torch and vLLM once, and forks a child per job.

Started with ``python -m conformance.scenarios.forkserver`` by `host.Host`; it reads a job per line
on stdin and writes a line per finished job on stdout, both JSON. It runs one job at a time. As the
reaper of its descendants it sees what a child leaves running, reports it and ends it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import psutil

from conformance.scenarios import triton_backend
from conformance.scenarios.shared_memory import SharedMemoryWatch

PRELOADED = (
    "torch",
    "vllm",
    "vllm.entrypoints.llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.model_loader.default_loader",
    "vllm.model_executor.models.llama",
)
"""What every engine imports, and no patch: so subjects patch what is loaded already, which is the
harder case. Worker processes that vLLM starts itself import everything in vLLM's own order."""

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.02
_GRACE_SECONDS = 2.0


def serve(jobs: TextIO, answers: TextIO) -> dict[str, Any] | None:
    """Answer jobs until the input ends. In a forked child, return its job instead."""
    for line in jobs:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _end_with_parent(signal.SIGKILL)
            return dict(job)
        print(json.dumps(_wait(pid, job)), file=answers, flush=True)
    return None


def _wait(pid: int, job: dict[str, Any]) -> dict[str, Any]:
    begun = time.monotonic()
    limit = float(job["limit"])
    timed_out = False
    child = psutil.Process(pid)
    shared_memory = SharedMemoryWatch()
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done == pid:
            break
        shared_memory.look(child)
        if not timed_out and time.monotonic() - begun > limit:
            timed_out = True
            os.kill(pid, signal.SIGKILL)
        time.sleep(_POLL_SECONDS)
    seconds = time.monotonic() - begun
    left = _end_descendants()
    temporary = Path(job["directory"]) / "tmp"
    files = sorted(str(path.relative_to(temporary)) for path in temporary.rglob("*"))
    code = os.waitstatus_to_exitcode(status)
    return {
        "status": code if code >= 0 else None,
        "signal": signal.Signals(-code).name if code < 0 else None,
        "timed_out": timed_out,
        "seconds": seconds,
        "processes_left": left,
        "files_left": files + shared_memory.left,
    }


def _end_descendants() -> list[str]:
    """End what the child left running; return their command lines.

    A descendant gets a moment first: one that is just about to end is not left behind.
    """
    me = psutil.Process()
    deadline = time.monotonic() + _GRACE_SECONDS
    while (alive := _alive(me)) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    names = []
    for process in alive:
        try:
            names.append(" ".join(process.cmdline())[:200] or process.name())
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=10)
    _alive(me)
    return names


def _alive(me: psutil.Process) -> list[psutil.Process]:
    while True:  # reap what became ours
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
    return [
        process
        for process in me.children(recursive=True)
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    ]


def _become_reaper() -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _end_with_parent(number: signal.Signals) -> None:
    """Let the parent's death end this process too, so that nothing outlives a killed test run."""
    _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def main() -> None:
    """Preload, serve, and in a child run the job."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not mix with the answers
    _become_reaper()
    _end_with_parent(signal.SIGTERM)
    try:
        if triton_backend.is_wanted():
            triton_backend.register()
        for name in PRELOADED:
            importlib.import_module(name)
    except Exception as error:
        print(json.dumps({"broken": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        raise
    # What is loaded stays: children need not look through it whenever they collect garbage.
    gc.collect()
    gc.freeze()
    print(json.dumps({"ready": os.getpid()}), file=answers, flush=True)
    job = serve(sys.stdin, answers)
    if job is not None:
        from conformance.scenarios.child import run_job

        answers.close()
        run_job(job)


if __name__ == "__main__":
    main()
