"""A pytest plugin for the suite: only the checks that are named run.

An expression for ``-k`` cannot hold every character of a check's id.
"""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--replay-check ID``, repeatable."""
    parser.addoption("--replay-check", action="append", default=[], metavar="ID")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is not named."""
    from conformance.plugin import check_id  # pytest itself has to be the first to import it

    wanted = set(config.getoption("--replay-check"))
    rest = [item for item in items if check_id(item) not in wanted]
    config.hook.pytest_deselected(items=rest)
    items[:] = [item for item in items if check_id(item) in wanted]
