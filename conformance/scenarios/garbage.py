"""Python's collector, until it finds nothing more."""

from __future__ import annotations

import gc

_MOST = 10


def collect_garbage() -> None:
    """Collect until nothing is found, ten times at most.

    Once is not enough to say that something is alive: an object that comes back in its finalizer,
    as torch's tensors do whose storage outlives their Python object, keeps what it refers to until
    the next collection.
    """
    for _ in range(_MOST):
        if not gc.collect():
            return
