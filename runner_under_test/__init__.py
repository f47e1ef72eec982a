"""A complete CPU model runner for vLLM's V1 engine: GPU code, patched where it needs a device.

Serve with it::

    vllm serve MODEL --worker-cls runner_under_test.worker.CPUWorker
"""

from __future__ import annotations

SUPPORTED_VLLM = ">=0.27.1,<0.33"
"""The vLLM releases whose surface the patches cover (a PEP 440 specifier)."""
