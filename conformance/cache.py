"""Where the harness keeps files: the cache, whose content can be made anew, and the fixtures."""

from __future__ import annotations

import os
from pathlib import Path

_HERE = Path(__file__).resolve().parent
# In a checkout the fixtures lie beside the package, in a wheel inside of it.
FIXTURES = next(
    (path for path in (_HERE.parent / "fixtures", _HERE / "fixtures") if path.is_dir()), _HERE
)


def default_cache() -> Path:
    """Return where models, sources and caches go: ``VLLM_CONFORMANCE_CACHE``, or XDG's place."""
    named = os.environ.get("VLLM_CONFORMANCE_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "vllm-conformance"
