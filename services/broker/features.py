"""The features of the broker. To add a feature, write a module or a folder with a `build` function, and one line here.

A `build` function gets the broker, whose parts all features share. It builds what only its feature needs, subscribes to
changes, adds its send hooks, timers and metrics (seams.py), and returns the processor of its requests. A folder also has
a place in the layers of pyproject.toml.
"""

from collections.abc import Callable, Sequence
from typing import Final

from gantry.remoting.aio import Handler
from services.broker.assembly import Broker
from services.broker.delay import feature as delay
from services.broker.pop import feature as pop
from services.broker.pop import modes
from services.broker.processors import (
    backlog,
    brokeradmin,
    cleaning,
    clients,
    connections,
    duplicates,
    groupadmin,
    offset,
    offsetreset,
    pull,
    query,
    queuelocks,
    reply,
    send,
    shrinking,
    statistics,
    topicadmin,
)
from services.broker.processors.table import Processor, combine
from services.broker.processors.unsupported import unsupported_handlers
from services.broker.retry import feature as retry
from services.broker.timer import feature as timer
from services.broker.transaction import processor as transaction

Feature = Callable[[Broker], Processor]

FEATURES: Final[Sequence[Feature]] = (
    send.build,
    pull.build,
    offset.build,
    offsetreset.build,
    query.build,
    clients.build,
    queuelocks.build,
    reply.build,
    topicadmin.build,
    groupadmin.build,
    statistics.build,
    backlog.build,
    connections.build,
    brokeradmin.build,
    cleaning.build,
    shrinking.build,
    retry.build,
    transaction.build,
    delay.build,
    timer.build,
    pop.build,
    modes.build,
    duplicates.build,
)


def build_handlers(broker: Broker, features: Sequence[Feature] = FEATURES) -> dict[int, Handler]:
    """Build the features, and return the handler of each request code."""
    return combine([build(broker) for build in features], unsupported_handlers())
