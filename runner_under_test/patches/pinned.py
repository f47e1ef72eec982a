"""Page-locked memory: it speeds up copies to a device, and there is none.

vLLM asks its platform before it pins, but not everywhere: several sites write ``pin_memory=True``
out. On a GPU host the result is an ordinary CPU tensor that happens to be pinned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from runner_under_test.patches.devices import host_device
from runner_under_test.patches.patch import Patch

FACTORIES = ("empty", "empty_like", "empty_strided", "full", "ones", "tensor", "zeros")
"""The torch functions to which vLLM 0.30 to 0.32 passes ``pin_memory``."""


def _pin_memory(_: Any) -> Any:
    def stand_in_pin_memory(self: torch.Tensor, device: Any = None) -> torch.Tensor:
        """Return the tensor itself, as a GPU host does for one that is pinned already."""
        host_device(device)
        return self

    return stand_in_pin_memory


def _factory(original: Callable[..., torch.Tensor]) -> Any:
    @functools.wraps(original)
    def stand_in_factory(*args: Any, **kwargs: Any) -> torch.Tensor:
        kwargs.pop("pin_memory", None)
        return original(*args, **kwargs)

    return stand_in_factory


_PINS = "pinning is possible, or harmless, on hosts without an accelerator"

PATCHES = (
    Patch(
        target="torch.Tensor.pin_memory",
        build=_pin_memory,
        why="buffers and staging tensors are pinned with it; "
        "without an accelerator it raises RuntimeError",
        link="https://github.com/vllm-project/vllm/pull/37706",
        remove_when=_PINS,
    ),
    *(
        Patch(
            target=f"torch.{name}",
            build=_factory,
            why="called with pin_memory=True, written out, in code that the runner reaches; "
            "without an accelerator that raises RuntimeError",
            link="https://github.com/vllm-project/vllm/pull/23818",
            remove_when=_PINS,
        )
        for name in FACTORIES
    ),
)
