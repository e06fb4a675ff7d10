"""Unit tests run on virtual time: no real clock, and a wait without end is a failure."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.virtualtime import loop_factories


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Any]:
    """Give every async unit test the jumping loop."""
    return loop_factories()
