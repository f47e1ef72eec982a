"""A conformance harness for vLLM's CPU runner, and for any runner that stands in for it."""

from __future__ import annotations

from conformance.api import check_runner
from conformance.report.model import Report

__version__ = "0.1.0"
__all__ = ["Report", "check_runner"]
