"""Pages of several brokers become one page by due time, without a gap and without a message twice."""

import random
from collections.abc import Mapping

from gantry.remoting.bodies.timer import WaitingMessage, WaitingMessages
from services.gateway.usecases.scheduled.listing import SECOND_MS, Place, merge_pages


def waiting(second: int, name: str) -> WaitingMessage:
    return WaitingMessage(
        born_at=0,
        delivery_at=(second + 1) * SECOND_MS,
        is_rolled=False,
        message_id=name,
        physical_offset=0,
        queue_id=0,
        recall_handle=name,
        size=1,
        stored_at=0,
        topic="T",
    )


def page_of(messages: list[WaitingMessage], place: Place, limit: int) -> WaitingMessages:
    """Return a broker's page; the position within a second is the number of its messages that were returned."""
    second, position = place
    skipped = position or 0
    left = [message for message in messages if message.delivery_at // SECOND_MS - 1 >= second]
    first = [message for message in left if message.delivery_at // SECOND_MS - 1 == second][skipped:]
    left = first + [message for message in left if message.delivery_at // SECOND_MS - 1 > second]
    page = WaitingMessages(messages=left[:limit], now_ms=0, waiting=len(messages))
    if len(left) > limit:
        page.next_second = left[limit].delivery_at // SECOND_MS - 1
        before = [message for message in left[:limit] if message.delivery_at // SECOND_MS - 1 == page.next_second]
        page.next_position = len(before) + (skipped if page.next_second == second else 0)
    return page


def read_all(brokers: Mapping[str, list[WaitingMessage]], limit: int) -> list[str]:
    places: Mapping[str, Place] = dict.fromkeys(brokers, (0, None))
    found: list[str] = []
    seconds: list[int] = []
    while places:
        pages = {broker: page_of(brokers[broker], place, limit) for broker, place in places.items()}
        merged = merge_pages(pages, places)
        assert merged.messages or merged.places != places, "the listing does not move on"
        found += [message.message_id for _, message in merged.messages]
        seconds += [message.delivery_at for _, message in merged.messages]
        places = merged.places
    assert seconds == sorted(seconds)
    return found


def test_every_message_is_listed_once_in_order():
    random.seed(13)
    for _ in range(300):
        brokers = {}
        for broker in "abc"[: random.randint(1, 3)]:
            seconds = sorted(random.choices(range(random.choice([3, 30])), k=random.randint(0, 40)))
            brokers[broker] = [waiting(second, f"{broker}{number}") for number, second in enumerate(seconds)]
        found = read_all(brokers, random.randint(1, 12))
        assert sorted(found) == sorted(message.message_id for each in brokers.values() for message in each)


def test_without_messages_there_is_one_empty_page():
    merged = merge_pages({"a": WaitingMessages(messages=[], now_ms=0, waiting=0)}, {"a": (0, None)})
    assert (merged.messages, merged.places) == ([], {})
