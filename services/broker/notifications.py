"""Tells the instances of a group that other instances came or went (request 40).

Each connection gets one notification for a group, even if several instances share the connection. All changes in one
turn of the loop cause one such notification. Otherwise a gateway that connects with a hundred instances would start a
hundred rounds of queue allocation.

Concurrency: the loop's thread only.
"""

import asyncio
from collections.abc import Iterable

from gantry.model.group import MessageModel
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import NotifyConsumerIdsChangedHeader
from services.broker.registry.clients import ClientChannel
from services.broker.registry.consumers import ConsumerTable, MemberKey
from services.broker.registry.groups import GroupTable
from services.broker.settings import LiveSettings


class GroupNotifications:
    """Collects the changed groups and notifies their instances."""

    def __init__(
        self, consumers: ConsumerTable, groups: GroupTable, live_settings: LiveSettings, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._consumers = consumers
        self._groups = groups
        self._live_settings = live_settings
        self._loop = loop
        self._changed: dict[str, None] = {}

    def notify(self, group: str) -> None:
        """Note that a group has changed; its instances are notified in the next turn of the loop."""
        if not self._changed:
            self._loop.call_soon(self._send)
        self._changed[group] = None

    def dismiss(self, group: str, members: Iterable[MemberKey]) -> None:
        """Notify the members of a group that was deleted: when they ask for the others, they learn of the deletion."""
        if self._live_settings.current.notify_consumer_ids_changed_enable:
            _tell(group, dict.fromkeys(connection for connection, _ in members))

    def _send(self) -> None:
        changed, self._changed = self._changed, {}
        if not self._live_settings.current.notify_consumer_ids_changed_enable:
            return
        for group in changed:
            info = self._consumers.find(group)
            config = self._groups.find(group)
            if info is None or info.message_model == MessageModel.BROADCASTING:
                continue
            if config is not None and not config.notify_consumer_ids_changed_enable:
                continue
            _tell(group, info.connections())


def _tell(group: str, connections: Iterable[ClientChannel]) -> None:
    header = NotifyConsumerIdsChangedHeader(consumer_group=group)
    for connection in connections:
        connection.send_one_way(RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, one_way=True))
