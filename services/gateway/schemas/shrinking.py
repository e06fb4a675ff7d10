"""The body of a shrink of a topic, as a typed struct."""

import msgspec

from services.gateway.schemas.configs import QueueCount


class ShrinkRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request: the number of queues that stay on each broker; with `dry_run`, nothing is changed."""

    queues: QueueCount
    dry_run: bool = False
