"""The vllm command as a user runs it, with worker processes of its own. Runs in a child process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from conformance.scenarios.child import Journal
from conformance.scenarios.observation import tail
from conformance.scenarios.subjects import worker_argument

_COMMON = (
    "--dtype=float32",
    "--enforce-eager",
    "--max-model-len=256",
    "--max-num-batched-tokens=256",
    "--max-num-seqs=8",
    "--num-gpu-blocks-override=64",
)
_POLL_SECONDS = 0.2
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # not through a proxy


def bench(
    journal: Journal,
    scenario: dict[str, Any],
    model: str,
    draft: str | None,
    worker_cls: str | None,
) -> None:
    """Run ``vllm bench throughput``; report its exit status and what its processes wrote."""
    with journal.phase_of("vllm bench"):
        done = subprocess.run(
            [
                *_vllm("bench", "throughput"),
                f"--model={model}",
                "--dataset-name=random",
                "--random-input-len=16",
                "--random-output-len=8",
                "--num-prompts=4",
                *_COMMON,
                *_worker_option(worker_cls),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        _report(journal, done.returncode, done.stdout, done.stderr)
        if done.returncode != 0:
            raise RuntimeError(f"exit status {done.returncode}\n{tail(done.stderr)}")


def serve(
    journal: Journal,
    scenario: dict[str, Any],
    model: str,
    draft: str | None,
    worker_cls: str | None,
) -> None:
    """Run ``vllm serve``, ask it for a completion, and end it as a service manager does."""
    port = _free_port()
    out, err = Path("server.out"), Path("server.err")
    os.chdir(os.environ["TMPDIR"])
    with out.open("w") as stdout, err.open("w") as stderr:
        server = subprocess.Popen(
            [
                *_vllm("serve", model),
                "--host=127.0.0.1",
                f"--port={port}",
                "--served-model-name=model",
                *_COMMON,
                *_worker_option(worker_cls),
            ],
            stdout=stdout,
            stderr=stderr,
        )
        try:
            with journal.phase_of("vllm serve: start"):
                _wait_until_ready(server, port, err)
            with journal.phase_of("vllm serve: request"):
                prompt = list(scenario["steps"][0]["requests"][0]["prompt"])
                sampling = dict(scenario["steps"][0]["requests"][0]["sampling"])
                answer = _complete(port, prompt, sampling)
                journal.result("completion", answer)
            with journal.phase_of("vllm serve: end"):
                server.send_signal(signal.SIGTERM)
                server.wait(timeout=60)
        finally:
            if server.poll() is None:
                server.kill()
                server.wait()
            texts = [path.read_text(errors="replace") for path in (out, err)]
            out.unlink()
            err.unlink()
            _report(journal, server.returncode, *texts)


def _vllm(*words: str) -> list[str]:
    command = Path(sys.executable).with_name("vllm")
    found = str(command) if command.exists() else shutil.which("vllm")
    if found is None:
        raise RuntimeError(
            "the vllm command is not installed here: vllm-conformance doctor says what is missing"
        )
    return [found, *words]


def _worker_option(worker_cls: str | None) -> list[str]:
    return [f"--worker-cls={value}" for value in worker_argument(worker_cls).values()]


def _report(journal: Journal, status: int, stdout: str, stderr: str) -> None:
    journal.result("status", status)
    journal.result("command_stdout", stdout[-20000:])
    journal.result("command_stderr", stderr[-20000:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(server: subprocess.Popen[bytes], port: int, stderr: Path) -> None:
    while True:
        if server.poll() is not None:
            raise RuntimeError(
                f"vllm serve ended at its start, with status {server.returncode}\n"
                f"{tail(stderr.read_text(errors='replace'))}"
            )
        try:
            with _DIRECT.open(f"http://127.0.0.1:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(_POLL_SECONDS)


def _complete(port: int, prompt: list[int], sampling: dict[str, Any]) -> dict[str, Any]:
    body = {"model": "model", "prompt": prompt, "return_token_ids": True, **sampling}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with _DIRECT.open(request, timeout=120) as response:
        answer = json.load(response)
    return {"tokens": answer["choices"][0]["token_ids"]}
