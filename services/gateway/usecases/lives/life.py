"""Tells the life of a message from the facts about it. Pure."""

from typing import Final

from gantry.model.tracedata import SubAfter, SubBefore
from services.gateway.usecases.lives.events import events_of, hits_something, is_deletion, wait_of
from services.gateway.usecases.lives.facts import Facts, Life
from services.gateway.usecases.lives.groupstates import states_of

EVENTS_MAX: Final = 1_000
"""Limit of events; the oldest are told."""


def tell(facts: Facts) -> Life:
    """Return the life of a message."""
    events = events_of(facts)
    missing = [*facts.missing]
    if not facts.stored and not facts.waiting and not facts.halves and not facts.is_empty:
        missing.append("the record of the message was not found: it may have expired from the log")
    missing += [
        f"a recall names a message that waits {wait_of(copy)}, and no such record was found: it has expired, or the "
        "recall came to nothing"
        for copy in facts.waiting
        if is_deletion(copy) and not hits_something(copy, facts)
    ]
    if not any(isinstance(one.trace, SubBefore | SubAfter) for one in facts.traces):
        missing.append(
            "there is no trace data of consumers: it is not known which clients received the message, and when"
        )
    if len(events) > EVENTS_MAX:
        missing.append(f"{len(events) - EVENTS_MAX} later events are left out")
    return Life(facts.topic, facts.message_id, events[:EVENTS_MAX], states_of(facts, events), missing)
