"""Which tensors a checkpoint of a configuration has: names and shapes, as transformers writes them.

``fixtures/layouts.json`` keeps them, so that a recipe's bytes depend on no version of transformers,
and are drawn without it. For new or changed families:

    python -m conformance.scenarios.layouts NAME...

asks the installed transformers and writes them down; without names, all of them are asked for.
"""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conformance.cache import FIXTURES

__all__ = ["PATH", "as_transformers_writes_it", "layout"]

PATH = FIXTURES / "layouts.json"

Layout = Mapping[str, tuple[int, ...]]


@functools.cache
def _known() -> dict[str, dict[str, list[int]]]:
    try:
        known: dict[str, dict[str, list[int]]] = json.loads(PATH.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return known


def layout(name: str) -> Layout:
    """Tensor name -> extents of a family's checkpoint.

    Errors: KeyError, with the command that writes it, when it is not known.
    """
    try:
        return {tensor: tuple(extents) for tensor, extents in _known()[name].items()}
    except KeyError:
        raise KeyError(
            f"no layout of {name}: python -m conformance.scenarios.layouts {name}"
        ) from None


def as_transformers_writes_it(config: Mapping[str, Any]) -> dict[str, list[int]]:
    """Names and extents of what `save_pretrained` writes; needs transformers, in this process.

    The model is made, at random, and saved: only then has it its checkpoint's names.
    """
    import transformers
    from safetensors import safe_open

    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        (directory / "config.json").write_text(json.dumps(dict(config)))
        loaded = transformers.AutoConfig.from_pretrained(directory)
        (architecture,) = config["architectures"]
        getattr(transformers, architecture)(loaded).save_pretrained(directory)
        found = {}
        for path in sorted(directory.glob("*.safetensors")):
            with safe_open(path, "np") as tensors:
                for name in tensors.offset_keys():
                    found[name] = list(tensors.get_slice(name).get_shape())
    return dict(sorted(found.items()))


def main(names: list[str]) -> int:
    """Write the layouts of the families named, or of all."""
    from conformance.scenarios.families import FAMILIES

    known = dict(_known())
    for name in names or sorted(FAMILIES):
        known[name] = as_transformers_writes_it(FAMILIES[name].configuration)
    kept = {name: known[name] for name in sorted(known) if name in FAMILIES}
    rows = [
        f"{json.dumps(name)}: {{\n"
        + ",\n".join(f" {json.dumps(t)}: {json.dumps(e)}" for t, e in tensors.items())
        + "\n}"
        for name, tensors in kept.items()
    ]
    PATH.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
