"""The JSON form of dead letters."""

from typing import Any

from services.gateway.schemas.times import format_time
from services.gateway.usecases.deadletters.letters import DeadLetter
from services.gateway.usecases.deadletters.redrive import DryRun
from services.gateway.views.messages import message_view
from services.gateway.views.optional import moment_view


def letter_view(letter: DeadLetter, *, binary: bool = False, leaves_large: bool = False) -> dict[str, Any]:
    """Return a dead letter in the contract's form; the arguments are those of `message_view`."""
    record = letter.record
    return {
        **message_view(letter.message(), binary=binary, leaves_large=leaves_large),
        "dead_at": format_time(record.stored_at_ms),
        "origin": {"topic": letter.origin_topic, "message_id": letter.origin_message_id},
        "attempts": record.reconsume_times,
        "redriven_at": moment_view(letter.redriven_at),
    }


def dry_run_view(dry_run: DryRun) -> dict[str, Any]:
    """Return the outcome of a dry run in the contract's form."""
    return {"selected": dry_run.selected, "sample": [letter_view(letter) for letter in dry_run.sample]}
