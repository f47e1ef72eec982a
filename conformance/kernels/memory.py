"""Examples as tensors, and back. Runs in child processes."""

from __future__ import annotations

import struct
from typing import Any

from conformance.kernels.example import Example, Value, View

_WORD = struct.Struct("=Q")
"""An address, as it lies in memory."""


class Placed:
    """An example in memory: every region is an allocation of its own, with its addresses set.

    ``device`` is torch's name of whose memory it is; addresses are of that memory.
    """

    def __init__(self, example: Example, device: str = "cpu") -> None:
        import torch

        self.example = example
        # Torch's allocations begin at a multiple of 64 bytes or more; a kernel may look at the last
        # bits of an address.
        self._memory = [
            torch.empty(max(len(region.content), 1), dtype=torch.uint8, device=device)
            for region in example.regions
        ]
        contents = [bytearray(region.content) for region in example.regions]
        for link in example.links:
            _WORD.pack_into(contents[link.region], link.at, self._address(link.target, link.offset))
        for memory, content in zip(self._memory, contents, strict=True):
            if content:
                memory.copy_(torch.frombuffer(content, dtype=torch.uint8))
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
        contents = [
            bytearray(memory.cpu().numpy().tobytes()[: len(region.content)])
            for memory, region in zip(self._memory, self.example.regions, strict=True)
        ]
        for link in self.example.links:
            (word,) = _WORD.unpack_from(contents[link.region], link.at)
            if word == self._address(link.target, link.offset):
                _WORD.pack_into(contents[link.region], link.at, 0)
        return [bytes(content) for content in contents]

    def _address(self, region: int, offset: int) -> int:
        return int(self._memory[region].data_ptr()) + offset
