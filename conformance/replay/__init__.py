"""Faults of the past, each against the vLLM that had it and the one that mended it."""
