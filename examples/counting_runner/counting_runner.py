"""A small runner outside of this repository's packages: it counts the steps that it runs.

``vllm-conformance run --subject counting_runner:CountingRunner`` checks it, from this directory or
with it on ``PYTHONPATH``; ``test_conformance.py`` does the same in a test suite of one's own.
"""

from __future__ import annotations

from typing import Any

from runner_under_test.model_runner import CPUModelRunner
from runner_under_test.patches import REGISTER


class CountingRunner(CPUModelRunner):
    """The CPU runner, with a count of its steps.

    It is given to vLLM as a runner, without a worker of its own. So it holds the patches itself,
    from its construction to its shutdown.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.steps = 0
        REGISTER.hold()
        try:
            super().__init__(*args, **kwargs)
        except BaseException:
            REGISTER.release()
            raise

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        """Run a step as the base does, and count it."""
        self.steps += 1
        return super().execute_model(*args, **kwargs)

    def shutdown(self) -> None:
        """Free what the base frees, and take the patches back."""
        try:
            super().shutdown()
        finally:
            REGISTER.release()
