"""Live senders: the connections that have sent to each topic, and the producer groups under which they did.

The hot path of sends looks a sender up in the topic's dictionary and sets its time; it calls `SenderTable.sender` only for
a connection's first send to a topic, and when a connection changes between several groups.

Concurrency: the loop's thread only.
"""

import heapq
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from gantry.model.names import GROUP_LENGTH_MAX
from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import LanguageCode
from gantry.remoting.command import RemotingCommand

# The limits prevent a faulty client from filling the table. A sender takes about 400 bytes.
SENDERS_MAX: Final = 200_000
GROUPS_OF_CONNECTION_MAX: Final = 100
"""The maximum number of producer groups of one connection in one topic."""


class Sender:
    """A producer group that sends to a topic over a connection.

    Attributes:
        sent_at_ms: Wall time at which the broker stored the last message.
        others: All senders of the connection to the topic by group, this one too; None if it is the only one.
    """

    __slots__ = ("channel", "group", "language", "others", "sent_at_ms", "version")

    def __init__(self, channel: Channel, group: str, language: LanguageCode, version: int) -> None:
        self.channel = channel
        self.group = group
        self.language = language
        self.version = version
        self.sent_at_ms = 0
        self.others: dict[str, Sender] | None = None


TopicSenders = dict[Channel, Sender]
"""The senders of a topic: for each connection the sender that was used last."""


class SenderTable:
    """Topic → its senders."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicSenders] = {}
        # The topics to which each connection has sent: if it closes, the broker only handles its own senders.
        self._topics_of: dict[Channel, set[str]] = {}
        self.count = 0

    @property
    def is_full(self) -> bool:
        """Whether new senders are not noted."""
        return self.count >= SENDERS_MAX

    def of(self, topic: str) -> TopicSenders:
        """Return the senders of a topic, to which the table adds new ones until the topic is forgotten."""
        return self._topics.setdefault(topic, {})

    def sender(self, topic: str, channel: Channel, group: str, request: RemotingCommand) -> Sender:
        """Return the sender of a request, and make it the one that its connection used last.

        If there is no room for a new one, or the connection is closed, the table does not keep it.
        """
        senders = self.of(topic)
        latest = senders.get(channel)
        known = None if latest is None or latest.others is None else latest.others.get(group)
        if known is None:
            known = Sender(channel, group, request.language, request.version)
            # Nothing would remove the sender of a closed connection.
            if self.is_full or channel.closed or len(group) > GROUP_LENGTH_MAX:
                return known
            if latest is not None:
                others = latest.others or {latest.group: latest}
                if len(others) >= GROUPS_OF_CONNECTION_MAX:
                    return known
                others[group] = known
                latest.others = known.others = others
            self._topics_of.setdefault(channel, set()).add(topic)
            self.count += 1
        senders[channel] = known
        return known

    def note(self, topic: str, channel: Channel, group: str, request: RemotingCommand, at_ms: int) -> None:
        """Note a send that was stored. The hot path does it inline."""
        sender = self.of(topic).get(channel)
        if sender is None or sender.group != group:
            sender = self.sender(topic, channel, group, request)
        sender.sent_at_ms = at_ms

    def newest(self, topic: str, count_max: int) -> list[Sender]:
        """Return the senders of a topic that sent last, the newest first; at most `count_max`."""
        return heapq.nlargest(count_max, _all(self._topics.get(topic, {})), key=attrgetter("sent_at_ms"))

    def forget(self, topic: str) -> None:
        """Remove the senders of a topic that is gone."""
        for channel, latest in self._topics.pop(topic, {}).items():
            self._leave(channel, topic)
            self.count -= _count(latest)
        assert self.count >= len(self._topics_of), "every connection in the table has a sender"

    def drop_group(self, channel: Channel, group: str) -> None:
        """Remove the senders of a producer group that has left a connection."""
        for topic in list(self._topics_of.get(channel, ())):
            senders = self._topics[topic]
            latest = senders[channel]
            if latest.others is None and latest.group == group:
                del senders[channel]
                self._leave(channel, topic)
                self.count -= 1
            elif latest.others is not None and latest.others.pop(group, None) is not None:
                # The last of the others is the one that was noted last; a connection keeps at least one sender.
                senders[channel] = latest if latest.group != group else next(reversed(latest.others.values()))
                self.count -= 1
                if len(latest.others) == 1:
                    senders[channel].others = None

    def drop_connection(self, channel: Channel) -> None:
        """Remove the senders of a closed connection."""
        for topic in self._topics_of.pop(channel, ()):
            self.count -= _count(self._topics[topic].pop(channel))
        assert self.count >= len(self._topics_of), "every connection in the table has a sender"

    def _leave(self, channel: Channel, topic: str) -> None:
        topics = self._topics_of[channel]
        topics.discard(topic)
        if not topics:
            del self._topics_of[channel]


def _all(senders: TopicSenders) -> Iterator[Sender]:
    for latest in senders.values():
        if latest.others is None:
            yield latest
        else:
            yield from latest.others.values()


def _count(latest: Sender) -> int:
    return 1 if latest.others is None else len(latest.others)
