"""What changed between two vLLMs, and what of it a host without an accelerator feels."""
