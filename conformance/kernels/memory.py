"""Examples as tensors, and back. Runs in child processes."""

from __future__ import annotations

import ctypes
from typing import Any

from conformance.kernels.example import Example, Value, View


class Placed:
    """An example in memory: every region is an allocation of its own, with its addresses set."""

    def __init__(self, example: Example) -> None:
        import torch

        self.example = example
        self._memory: list[Any] = []
        for region in example.regions:
            # Torch's allocations begin at a multiple of 64 bytes; a kernel may look at the last
            # bits of an address.
            memory = torch.empty(max(len(region.content), 1), dtype=torch.uint8)
            ctypes.memmove(memory.data_ptr(), region.content, len(region.content))
            self._memory.append(memory)
        for link in example.links:
            self._word(link.region, link.at).value = self._address(link.target, link.offset)
        self.arguments = {name: self.tensor(value) for name, value in example.arguments.items()}

    def tensor(self, value: Value) -> Any:
        """A view as a tensor; anything else as it is."""
        import torch

        if not isinstance(value, View):
            return value
        dtype = getattr(torch, value.dtype)
        memory = self._memory[value.region]
        length = len(self.example.regions[value.region].content)
        return memory[:length].view(dtype).as_strided(value.shape, value.stride, value.offset)

    def contents(self) -> list[bytes]:
        """The bytes of all regions, addresses taken out again; an overwritten one stays."""
        for link in self.example.links:
            word = self._word(link.region, link.at)
            if word.value == self._address(link.target, link.offset):
                word.value = 0
        return [
            ctypes.string_at(memory.data_ptr(), len(region.content))
            for memory, region in zip(self._memory, self.example.regions, strict=True)
        ]

    def _address(self, region: int, offset: int) -> int:
        return int(self._memory[region].data_ptr()) + offset

    def _word(self, region: int, at: int) -> ctypes.c_uint64:
        return ctypes.c_uint64.from_address(self._address(region, at))
