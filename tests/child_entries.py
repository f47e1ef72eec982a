"""What the tests of the host run in child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any


def fine(journal: Any, value: int) -> None:
    """Report a value in a phase."""
    with journal.phase_of("work"):
        journal.result("value", value)


def fails(journal: Any) -> None:
    """Raise in a phase."""
    with journal.phase_of("work"):
        raise ValueError("planted")


def exits(journal: Any) -> None:
    """End the process, with status 0, in the middle."""
    with journal.phase_of("work"):
        os._exit(0)


def dies(journal: Any, name: str) -> None:
    """End by a signal in an inner phase."""
    with journal.phase_of("outer"), journal.phase_of("inner"):
        os.kill(os.getpid(), signal.Signals[name])


def hangs(journal: Any) -> None:
    """Never end."""
    with journal.phase_of("work"):
        threading.Event().wait()


def leaves_things_behind(journal: Any) -> None:
    """Leave a process, a temporary file and a file in shared memory."""
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    tempfile.NamedTemporaryFile(prefix="forgotten-", delete=False).close()
    with open(f"/dev/shm/forgotten-{os.getpid()}", "w") as file:
        file.write("x")
        time.sleep(0.2)  # long enough to be seen with it
    journal.result("shared", f"/dev/shm/forgotten-{os.getpid()}")


def patch_register(journal: Any) -> None:
    """Try what a register promises, and report each promise's outcome."""
    from tests import register_promises

    register_promises.report(journal)


def patch_names(journal: Any) -> None:
    """Report the names of the shipped patches, and of those that this vLLM needs."""
    from runner_under_test.patches import REGISTER
    from runner_under_test.patches.register import is_needed

    journal.result("names", [patch.name for patch in REGISTER.patches])
    journal.result("needed", [patch.name for patch in REGISTER.patches if is_needed(patch)])


def unsupported_version(journal: Any) -> None:
    """Report what the worker says to a vLLM that it does not support."""
    from runner_under_test.worker import refuse_unsupported_version

    try:
        refuse_unsupported_version("0.26.0")
    except RuntimeError as error:
        journal.result("message", str(error))


def overrides(journal: Any) -> None:
    """Report the functions that the runner defines itself."""
    from runner_under_test.model_runner import CPUModelRunner

    own = [name for name, value in vars(CPUModelRunner).items() if callable(value)]
    journal.result("overrides", own)


def triton_mode(journal: Any) -> None:
    """Report what decides about Triton in this process, and whether vLLM has it."""
    from vllm.triton_utils import HAS_TRITON

    names = ("TRITON_INTERPRET", "VLLM_USE_V2_MODEL_RUNNER")
    journal.result("mode", [*map(os.environ.get, names), HAS_TRITON])


def ask_clauses(journal: Any) -> None:
    """Ask the clauses of torch's own families with nothing patched."""
    from conformance.references.recording import asked

    journal.result("asked", asked())


def launch_carried(journal: Any, folder: str, examples: int) -> None:
    """Cut every kernel out of vLLM, and launch it beside vLLM's own; report what differs.

    ``folder`` gets the sources, and an example of each as a record.

    Both are interpreted. One that cannot be is left out, and so are outputs in bfloat16, which the
    interpreter cuts off.
    """
    from pathlib import Path

    from conformance.kernels.carried import cut_out, left_by, loaded
    from conformance.kernels.comparing import difference
    from conformance.kernels.example import BFLOAT16
    from conformance.kernels.generators import GENERATOR
    from conformance.kernels.recording import (
        contents_after,
        drawn_from,
        launched_kernel,
        parameters_of,
    )
    from conformance.kernels.store import Record, write
    from conformance.surface.sources import open_source

    tree, counts, told = open_source("installed"), {}, {}
    for kernel, generator in GENERATOR.items():
        name = kernel.removeprefix("triton:")
        path = Path(folder, f"{name}.py")
        path.write_text(cut_out(tree, generator.module, name))
        launched, carried = launched_kernel(generator.home), loaded(path, name.split(".")[-1])
        names, constants = parameters_of(launched)
        drawn = drawn_from(generator, names, examples)
        record = Record(kernel, names, constants, tuple(drawn[:1]), (), {})
        write(path.with_suffix(".json"), record)
        if generator.model is not None:
            continue
        counts[kernel] = 0
        for example in drawn:
            if any(
                getattr(example.arguments[n], "dtype", "") == BFLOAT16 for n in generator.rounded
            ):
                continue
            want = contents_after(generator, launched, names, example)
            if found := difference(example, want, left_by(carried, example, "cpu")):
                told[kernel] = found
            counts[kernel] += 1
    journal.result("launches", counts)
    journal.result("differ", told)


def held_to_the_interpreter(journal: Any, path: str) -> None:
    """Launch a kernel on a recording's inputs, interpreted; report what the recording has else."""
    from pathlib import Path

    from conformance.kernels.comparing import difference
    from conformance.kernels.generators import GENERATOR
    from conformance.kernels.recording import contents_after, launched_kernel, parameters_of
    from conformance.kernels.store import read

    record = read(Path(path))
    generator = GENERATOR[record.kernel]
    launched = launched_kernel(generator.home)
    names, _ = parameters_of(launched)
    told = []
    for number, (example, got) in enumerate(zip(record.examples, record.after, strict=True)):
        want = contents_after(generator, launched, names, example)
        said = "the interpreter leaves {}, the GPU {}"
        if found := difference(example, want, got, generator.tolerance, said):
            told.append(f"{number}: {found}")
    journal.result("differ", told)
