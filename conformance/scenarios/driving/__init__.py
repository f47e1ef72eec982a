"""How a step is given to an engine: a module per way, each with a function ``drive``.

It takes the engine (`vllm.LLM`), the step as plain data, and the checkpoints of LoRA adapters by
recipe; what it returns is JSON, and the step's result. They run in child processes.
"""

from __future__ import annotations

import importlib
from typing import Any


def drive(llm: Any, step: dict[str, Any], adapters: dict[str, str]) -> Any:
    """Give a step's requests to the engine in the way it asks for."""
    module = importlib.import_module(f"{__name__}.{step['call']}")
    return module.drive(llm, step, adapters)
