"""Collecting until nothing is found."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Iterator
from typing import Any

import pytest

from conformance.scenarios.garbage import collect_garbage

_BACK: list[Any] = []


class _ComesBack:
    """Garbage in a cycle that its finalizer brings back once, with what it refers to."""

    def __init__(self, view: memoryview) -> None:
        self.itself = self
        self.view = view

    def __del__(self) -> None:
        _BACK.append(self)


def _is_held(memory: mmap.mmap) -> bool:
    """Whether a view of the memory is alive. (Weak references die before finalizers are called.)"""
    try:
        memory.resize(mmap.PAGESIZE)
    except BufferError:
        return True
    return False


@pytest.fixture
def memory() -> Iterator[mmap.mmap]:
    def let_go(phase: str, _: object) -> None:
        if phase == "stop":
            _BACK.clear()

    gc.callbacks.append(let_go)
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        yield memory
    gc.callbacks.remove(let_go)


def test_what_a_finalizer_brings_back_is_freed_by_the_next_collection(memory: mmap.mmap) -> None:
    _ComesBack(memoryview(memory))
    gc.collect()
    assert _is_held(memory)
    collect_garbage()
    assert not _is_held(memory)


def test_what_is_held_stays(memory: mmap.mmap) -> None:
    view = memoryview(memory)
    collect_garbage()
    assert _is_held(memory)
    view.release()
