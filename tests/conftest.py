"""What the tests share: one host of child processes per worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.scenarios.host import Host


@pytest.fixture(scope="session")
def host() -> Iterator[Host]:
    """A host whose fork server is started once per worker."""
    with Host() as host:
        yield host
