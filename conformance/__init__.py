"""A conformance harness for vLLM's CPU runner, and for any runner that stands in for it."""

__version__ = "0.1.0"
