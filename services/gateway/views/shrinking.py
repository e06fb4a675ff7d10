"""The JSON form of what prevents a shrink of a topic."""

from typing import Any

from services.gateway.usecases.operations.shrinking import ShrinkState
from services.gateway.views.optional import offset_view


def shrink_view(state: ShrinkState) -> dict[str, Any]:
    """Return it in the contract's form."""
    return {
        "topic": state.topic,
        "queues": state.queues,
        "read_queues": state.read_queues,
        "write_queues": state.write_queues,
        "ready": state.is_ready,
        "blocking": [
            {
                "group": block.group,
                "broker": block.broker,
                "queue_id": block.queue_id,
                "unconsumed": offset_view(block.unconsumed),
            }
            for block in state.blocks
        ],
        "missing": list(state.missing),
    }
