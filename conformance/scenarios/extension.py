"""What is asked of workers in whatever process they live: vLLM mixes it into their class."""

from __future__ import annotations

PATH = "conformance.scenarios.extension.Asked"


class Asked:
    """Answers for one worker; vLLM calls its methods by name in the worker's process."""

    def conformance_memory_info(self) -> list[int]:
        """Free and total memory in bytes, as the stand-ins of that process give them."""
        import torch

        return list(torch.accelerator.get_memory_info())
