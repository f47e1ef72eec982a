"""The one device that there is: the host's CPU, under the names that GPU code gives a device."""

from __future__ import annotations

from typing import Any

import torch

HOST = torch.device("cpu")


def host_device(device: Any = None) -> torch.device:
    """Return the host's device for None, its own name, a device or an index.

    Index 0 and every negative index mean the current device, as they do on a GPU.

    Raises:
        RuntimeError: a name that is no device, or a device that this host does not have.
        TypeError: not a device at all.
    """
    if device is None:
        return HOST
    if isinstance(device, bool) or not isinstance(device, int | str | torch.device):
        raise TypeError(f"a device, its name or its index is needed, not {device!r}")
    if isinstance(device, int):
        if device > 0:
            raise RuntimeError(f"invalid device ordinal: {device}, and the host's CPU is device 0")
        return HOST
    named = torch.device(device)
    if named.type != HOST.type or (named.index or 0) > 0:
        raise RuntimeError(f"expected this host's device, cpu, but got {named}")
    return HOST
