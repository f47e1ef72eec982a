"""Walking in a process of its own, which gives its memory back: a walk takes up to a gigabyte.

python -m conformance.surface.apart SPEC > inventory.json
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

from conformance.surface.inventory import dumps, loads
from conformance.surface.model import Inventory
from conformance.surface.sources import open_source
from conformance.surface.walker import walk
from conformance.target import WrongUse

_ROOT = Path(__file__).resolve().parents[2]


def walk_apart(spec: str) -> Inventory:
    """Walk the source that ``spec`` names.

    Raises:
        WrongUse: as ``open_source`` and ``walk``, or the process was ended.
    """
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-m", "conformance.surface.apart", spec],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8"},
    )
    if done.returncode == 0:
        return loads(done.stdout, Path(spec))
    if done.returncode == 2:
        raise WrongUse(done.stderr.strip())
    if done.returncode < 0:
        raise WrongUse(
            f"The process that walked {spec} was ended by signal {-done.returncode}: give it more "
            "memory (a walk takes up to 1.2 GB)."
        )
    raise RuntimeError(f"the walk of {spec} failed:\n{done.stderr}")


def main(spec: str) -> int:
    """Print the inventory of a source; 2 and a sentence if it cannot be walked."""
    gc.disable()  # this process ends before there is garbage that is worth looking for
    try:
        text = dumps(walk(open_source(spec)))
    except WrongUse as error:
        print(error, file=sys.stderr)
        return 2
    sys.stdout.write(text)
    sys.stdout.flush()
    os._exit(0)  # nothing is left to do but to free a gigabyte, object by object


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
