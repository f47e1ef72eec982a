"""What importing the runner reads of the device: ``python -m conformance.surface.import_run v1``.

For a process of its own, as the recorder has to be there before vLLM is imported. It prints JSON,
``touches`` among it; all of them are of phase ``import``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from dataclasses import asdict

from conformance.surface.model import GENERATIONS
from conformance.surface.recorder import Recorder, held_copies

IMPORTED = {
    "v1": ("vllm.v1.worker.gpu_worker", "vllm.v1.worker.gpu_model_runner"),
    "v2": ("vllm.v1.worker.gpu_worker", "vllm.v1.worker.gpu.model_runner"),
}


def main(arguments: list[str]) -> int:
    """Import a runner generation's modules and print what was read; status 2 for another word."""
    if len(arguments) != 1 or arguments[0] not in IMPORTED:
        print(f"import_run: give one of {', '.join(GENERATIONS)}.", file=sys.stderr)
        return 2
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed must not mix with the answer
    import torch  # noqa: F401

    assert "vllm" not in sys.modules
    recorder = Recorder()
    with recorder.recording():
        for name in IMPORTED[arguments[0]]:
            importlib.import_module(name)
    answer = {
        "touches": [asdict(touch) for touch in recorder.touches],
        "held_copies": held_copies(),
    }
    print(json.dumps(answer), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
