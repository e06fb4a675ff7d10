"""GroupMember: one consumer instance in its group, and its share of the queues.

Theory of operation. A member sends heart-beats to every broker. It asks one broker for the ids of all members, and
computes its share of each topic's queues from two sorted lists that are the same for all members (allocate.py). It does
so every 20 s, at once when a broker says that the members have changed, and every second while something is missing,
but never more often than once a second. The member reports changes to its owner through `on_change`:

    start ──▶ heart-beat ──▶ member ids, queues ──▶ share ──▶ first offsets ──▶ on_change(assigned, revoked)
                                 ▲                                                        │
                                 └──── 20 s · members changed · 1 s after a failure ──────┘

For a moment, two members may hold the same queue, because they do not see a change at the same time. Messages are then
delivered twice, but never lost. So an offset may be committed only if all messages before it are acknowledged, and only
while the queue is held.

A member that consumes in order (`is_orderly`) holds only queues that it has locked (queuelocks.py). It locks a queue
before it reads where to start, so that it starts behind everything that the last holder has committed. It unlocks a
queue after its owner has given it up. A queue whose lock is lost is revoked at once, and its offset is not committed
any more.

If somebody resets the group's offset, the broker says so (request 220), or answers the next pull of the owner with the new
offset. Either way the member tells the owner through `on_reset`, and the owner drops everything that it has of the queue.
Each commit has the epoch of the latest reset that the member knows, so that the broker refuses a commit that was under
way at the reset.

A member in broadcasting mode has offsets of its own (localoffsets.py). Its share of each topic is all queues, and resets of
the group's offsets do not concern it.

The owner manages the offsets. It either commits by itself (`commit`), or passes `commit_point`. The member then calls
`commit_point` for each queue every 5 s, before it gives a queue back, and at the end.

Source: RocketMQ 5.3 RebalanceImpl and RebalancePushImpl.

Concurrency: the event loop's thread; a member runs one rebalance at a time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from gantry.client.consumer.groupdeletion import DeletionNotices
from gantry.client.consumer.heldqueues import HeldQueues
from gantry.client.consumer.localoffsets import LocalOffsets
from gantry.client.consumer.membercommits import CommitPoint, MemberCommits
from gantry.client.consumer.memberoffsets import GroupOffsets
from gantry.client.consumer.offsets import Offsets
from gantry.client.consumer.presence import Presence
from gantry.client.consumer.queuelocks import MemberLocks
from gantry.client.consumer.share import find_share
from gantry.client.consumer.starts import Assignment, StartPosition, find_start
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError, GroupDeletedError, InvalidArgumentError, NoRouteError
from gantry.model.errors import InvalidNameError
from gantry.model.group import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from gantry.model.message import MessageQueue
from gantry.model.names import check_group
from gantry.remoting.bodies import ConsumerData
from gantry.runtime.telemetry import logger

log = logger("client.group")

OnChange = Callable[[Sequence[Assignment], Sequence[MessageQueue]], Awaitable[None]]
"""Called with the queues that the member holds from now on, and the queues that it no longer holds."""
OnReset = Callable[[MessageQueue, int], None]
"""Called with a held queue and the offset to go on at. From then on, nothing that was read before may be committed."""


class GroupMember:
    """One consumer instance: a client id in a group, with its subscriptions.

    Several members may share a client id, if they are in different groups or have different topics of the same group.
    """

    def __init__(
        self,
        engine: ClientEngine,
        group: str,
        subscriptions: Sequence[SubscriptionData],
        *,
        client_id: str,
        on_change: OnChange,
        commit_point: CommitPoint | None = None,
        start: StartPosition | None = None,
        is_orderly: bool = False,
        on_reset: OnReset | None = None,
        on_deleted: Callable[[], None] | None = None,
        on_restored: Callable[[], None] | None = None,
        local_offsets: LocalOffsets | None = None,
    ) -> None:
        """Make a member.

        Args:
            engine: The engine.
            group: The group.
            subscriptions: The subscriptions, one for each topic.
            client_id: The id of this instance in the group.
            on_change: Called with each change of the held queues.
            commit_point: Returns the offset to commit; None if the owner commits.
            start: Position for queues without a committed offset; the default is the end.
            is_orderly: Whether the member locks its queues, so that no other orderly member has them.
            on_reset: Called when the group's offset in a held queue was reset; None: the member revokes such a queue
                without a commit, and assigns it again.
            on_deleted: Called when brokers say that the group was deleted; again every second until the member is
                closed. A member never makes its group again.
            on_restored: Called when the group exists again after `on_deleted`.
            local_offsets: The open offsets of a member in broadcasting mode; None for a member in clustering mode.

        Raises:
            InvalidArgumentError: The group's name is not valid, there is no subscription, or a start by time has no
                time.
        """
        try:
            check_group(group)
        except InvalidNameError as error:
            raise InvalidArgumentError(error.field, error.value, error.reason) from None
        if not subscriptions:
            raise InvalidArgumentError("subscriptions", subscriptions, "is empty")
        self.group = group
        self.client_id = client_id
        self._start = start or StartPosition()
        if self._start.where is ConsumeFromWhere.CONSUME_FROM_TIMESTAMP and self._start.at_ms is None:
            raise InvalidArgumentError("start", self._start, "needs a time")
        self._engine = engine
        self._offsets = Offsets(engine)
        self._model = MessageModel.CLUSTERING if local_offsets is None else MessageModel.BROADCASTING
        self._own = local_offsets or GroupOffsets(self._offsets, group)
        self._subscriptions = {one.topic: one for one in subscriptions}
        self._on_change = on_change
        self._is_orderly = is_orderly
        # In broadcasting mode, every member holds every queue.
        self._locks = MemberLocks(engine, group, client_id) if is_orderly and local_offsets is None else None
        self._changing = asyncio.Lock()  # The held queues change in one task at a time.
        self._on_reset = on_reset
        self._deletion = DeletionNotices(group, client_id, on_deleted, on_restored)
        self._held = HeldQueues()
        self._commits = MemberCommits(engine, self._own, group, self._held, commit_point)
        self._wake = asyncio.Event()
        self._presence = Presence(engine, client_id, self._as_data(), self._held, is_orderly=is_orderly)
        self._loops: list[asyncio.Task[None]] = []

    @property
    def held(self) -> frozenset[MessageQueue]:
        """Queues that the member holds."""
        return frozenset(self._held)

    async def start(self) -> None:
        """Join the group. Return after `on_change` has received the first share, which may be empty.

        Queues of a broker that does not answer follow in a later share, as soon as the broker answers.

        Raises:
            InvalidArgumentError: Another member of this engine has the same client id, group and topic.
            NoRouteError: A topic does not exist.
            ClientError: No broker answered who the members are, or where to start in any queue of the share.
        """
        self._engine.check_running()
        self._presence.started_at_ms = self._engine.clock.now_ms()
        has_joined = False
        try:
            for topic in self._subscriptions:
                await self._engine.route(topic)
            await self._presence.begin(on_members_changed=self._wake.set, on_reset=self._offsets_reset)
            is_balanced = await self._join()
            has_joined = True
        finally:
            if not has_joined:
                await self.close()
        self._loops.append(self._engine.tasks.spawn(self._rebalance_loop(is_balanced=is_balanced)))
        self._loops.append(self._engine.tasks.spawn(self._commits.run()))
        if self._locks is not None:
            self._loops.append(self._engine.tasks.spawn(self._lock_loop(self._locks)))

    async def close(self) -> None:
        """Commit, leave the group, and unregister at the brokers, so that the other members take over at once.

        If this is cancelled, the member leaves as with `leave`.
        """
        telling: asyncio.Task[None] | None = None
        try:
            await asyncio.gather(*self._cancel_loops(), return_exceptions=True)
            self._presence.end_calls()
            await self._commits.commit_all(list(self._held))
            if self._locks is not None:
                await self._locks.unlock_all()
        finally:
            telling = self.leave()
        if telling is not None:
            await asyncio.wait({telling})

    def leave(self) -> "asyncio.Task[None] | None":
        """Leave the group at once and without a commit. Other members get locked queues when the locks expire.

        Returns:
            The task of the engine that tells the brokers; None if there is nothing to tell.
        """
        self._cancel_loops()
        self._held.clear()
        return self._presence.end()

    def _cancel_loops(self) -> "list[asyncio.Task[None]]":
        loops, self._loops = self._loops, []
        for loop in loops:
            loop.cancel()
        return loops

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit the group's offset on a held queue. A queue that is not held belongs to another member by now.

        Raises:
            InvalidArgumentError: The queue is not held.
            BrokerUnavailableError, BrokerError, NoAnswerError: The offset was not written, or its state is unknown.
        """
        await self._commits.commit(queue, offset)

    def may_work(self, queue: MessageQueue) -> bool:
        """Return whether the member holds a queue, and if it consumes in order, whether its lock is still valid."""
        return queue in self._held and (self._locks is None or self._locks.holds(queue))

    def epoch(self, queue: MessageQueue) -> int:
        """Return the epoch of the latest reset that the member knows of a queue, which belongs into each pull."""
        return self._held.epoch(queue)

    def reset(self, queue: MessageQueue, offset: int, epoch: int) -> None:
        """Go on at the offset of a reset, which the owner has learned from a pull. A known reset has no effect."""
        self._offsets_reset({queue: offset}, epoch)

    def _offsets_reset(self, offsets: Mapping[MessageQueue, int], epoch: int) -> None:
        # A broker without epochs may announce several resets; each of them counts.
        moved = {
            queue: offset
            for queue, offset in offsets.items()
            if self._held.reset(queue, offset, epoch or self._held.epoch(queue) + 1)
        }
        if not moved:
            return
        log.info("offsets reset", group=self.group, client_id=self.client_id, queues=len(moved))
        if self._on_reset is None:
            self._engine.tasks.spawn(self._revoke_uncommitted(list(moved)))
            return
        for queue, offset in moved.items():
            self._on_reset(queue, offset)

    async def _revoke_uncommitted(self, queues: Sequence[MessageQueue]) -> None:
        async with self._changing:
            held = [queue for queue in queues if queue in self._held]
            for queue in held:
                self._held.remove(queue)
            try:
                await self._on_change((), held)
            finally:
                if self._locks is not None:
                    await self._locks.unlock(held)
        self._wake.set()

    def _as_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=self._model,
            consume_from_where=self._start.where,
            subscriptions=tuple(self._subscriptions.values()),
        )

    async def _join(self) -> bool:
        """Take the first share; return whether it is complete."""
        try:
            return await self._rebalance(is_first=True)
        except ClientError as error:
            if not self._held:
                raise
            log.warning("joined without some queues", group=self.group, client_id=self.client_id, error=str(error))
            return False

    async def _rebalance_loop(self, *, is_balanced: bool) -> None:
        settings = self._engine.settings
        interval_s, least_s = settings.rebalance_interval_ms / 1000, settings.rebalance_interval_min_ms / 1000
        while True:
            await asyncio.sleep(least_s)
            if is_balanced:
                try:
                    async with asyncio.timeout(max(0.0, interval_s - least_s)):
                        await self._wake.wait()
                except TimeoutError:
                    pass
            self._wake.clear()
            try:
                is_balanced = await self._rebalance(is_first=False)
                self._deletion.ended()
            except GroupDeletedError as error:
                is_balanced = False
                self._deletion.seen(error)
            except ClientError as error:
                is_balanced = False
                log.warning("not balanced", group=self.group, client_id=self.client_id, error=str(error))
            except Exception:  # boundary: an error of the owner's on_change must not end the membership.
                is_balanced = False
                log.exception("a change of queues failed", group=self.group, client_id=self.client_id)

    async def _rebalance(self, *, is_first: bool) -> bool:
        """Compute the share and take it. If a part of it can't be taken, take the rest, then raise the error.

        Returns:
            Whether the member has its whole share; if not, other members have locked some queues.
        """
        wanted: set[MessageQueue] = set()
        failure: ClientError | None = None
        for topic in self._subscriptions:
            try:
                wanted.update(await find_share(self._engine, self.group, self.client_id, topic, self._model))
            except NoRouteError:
                log.warning("topic has no route", group=self.group, topic=topic)
            except ClientError as error:
                # A member that can't see the others keeps its queues: two owners are better than none.
                wanted.update(queue for queue in self._held if queue.topic == topic)
                failure = error
        revoked = sorted(self.held - wanted)
        missing = sorted(wanted - self.held)
        count = len(missing)
        if self._locks is not None:
            locked, silence = await self._locks.lock(missing)
            failure = failure or silence
            missing = sorted(locked)
        at_ms = self._presence.started_at_ms
        found = await asyncio.gather(
            *(
                find_start(self._offsets, self._own, queue, self._start, joined_at_ms=at_ms, is_first=is_first)
                for queue in missing
            )
        )
        assigned = [one for one in found if isinstance(one, Assignment)]
        failure = next((one for one in found if isinstance(one, ClientError)), failure)
        if is_first and failure is not None and not assigned:
            raise failure
        async with self._changing:
            assigned = await self._locked(assigned, missing)
            revoked = [queue for queue in revoked if queue in self._held]
            if assigned or revoked or is_first:
                await self._take(assigned, revoked)
        if failure is not None:
            raise failure
        return len(assigned) == count

    async def _locked(self, assigned: list[Assignment], locked: Sequence[MessageQueue]) -> list[Assignment]:
        """Return the assignments whose locks are still valid; unlock the queues that have no assignment."""
        if self._locks is None:
            return assigned
        valid = [one for one in assigned if self._locks.holds(one.queue)]
        await self._locks.unlock(set(locked) - {one.queue for one in valid})
        return valid

    async def _take(self, assigned: Sequence[Assignment], revoked: Sequence[MessageQueue]) -> None:
        await self._commits.commit_all(revoked)
        for one in assigned:
            self._held.add(one.queue, one.committed_offset, one.epoch)
        is_accepted = False
        try:
            # The revoked queues are still held during the call, so that the owner may commit their offsets.
            await self._on_change(assigned, revoked)
            is_accepted = True
        finally:
            gone = list(revoked) if is_accepted else [*revoked, *(one.queue for one in assigned)]
            for queue in gone:
                self._held.remove(queue)
            if self._locks is not None and gone:
                await self._locks.unlock(gone)
        # The next holder of a queue must start at the same offset as this member. Without a committed offset, it might
        # start at the end that the queue has by then.
        new = [
            one for one in assigned if one.committed_offset is None and self._held.committed_offset(one.queue) is None
        ]
        await self._commits.try_commit({one.queue: one.next_offset for one in new})

    async def _lock_loop(self, locks: MemberLocks) -> None:
        while True:
            await asyncio.sleep(locks.next_renewal_ms() / 1000)
            lost = await locks.renew()
            async with self._changing:
                lost = [queue for queue in lost if queue in self._held]
                if not lost:
                    continue
                log.warning("locks lost", group=self.group, client_id=self.client_id, queues=[str(one) for one in lost])
                # Another member may have the queues now, and further offsets.
                for queue in lost:
                    self._held.remove(queue)
                try:
                    await self._on_change((), lost)
                except Exception:  # boundary: an error of the owner's on_change must not end the membership.
                    log.exception("a change of queues failed", group=self.group, client_id=self.client_id)
            self._wake.set()
