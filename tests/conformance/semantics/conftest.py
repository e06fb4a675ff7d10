"""Tests of promises run on virtual time: two hours of retries take a moment, and an endless wait fails."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.virtualtime import loop_factories


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Any]:
    """Give every async test here the virtual-time loop."""
    return loop_factories()
