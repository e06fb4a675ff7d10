"""Pulls regions of queues, in order and with several requests in flight.

The broker decides how many messages a response has, mostly by bytes. So a region is pulled in chunks of about the size
of one response, and a chunk is pulled again until it is complete. While one chunk is processed, the next chunks are
requested.

Messages that can't be read are left out and noted: offsets that retention has removed since planning, damaged records,
and queues that are gone. A broker that does not answer fails the read: a missing answer does not mean a loss.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from gantry.client.backlog import Backlog
from gantry.client.consumer.pull import PullConsumer, PullResult, PullStatus
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, BrokerUnavailableError, NoAnswerError, NoRouteError
from gantry.model.group import SubscriptionData
from gantry.model.message import MessageQueue
from gantry.model.names import TOOLS_CONSUMER_GROUP
from gantry.model.route import MASTER_ID
from gantry.remoting.codes import ResponseCode
from gantry.runtime.telemetry import logger
from spark.datasource.columns.bytecolumns import Int64s, windows
from spark.datasource.columns.recordbounds import Bounds, Damage, bounds_of
from spark.datasource.dataloss import NO_SUCH_TOPIC, Loss
from spark.datasource.partitions import Region

log = logger("spark.messages")

REQUESTS_MAX: Final = 6
"""The limit for requested chunks; by default, a broker's response has a quarter of a megabyte."""
CHUNK_MAX: Final = 1_024
"""The most messages that our brokers return for `gantryMaxMsgNums`."""
CHUNK_MIN: Final = 16
OTHERS_MAX: Final = 32
"""The most messages that brokers without `gantryMaxMsgNums` return by default."""
ATTEMPTS_MAX: Final = 4
RETRY_AFTER_S: Final = 0.5
BLOCK_ROWS: Final = 8_192
BLOCK_BYTES: Final = 16 << 20
"""A block ends at either limit. Spark's JVM must hold the Arrow batch of one block."""
_QUEUE_OFFSET_AT: Final = 20
_PHYSICAL_OFFSET_AT: Final = 28
_NO_TOPIC: Final = (ResponseCode.TOPIC_NOT_EXIST,)


@dataclass(frozen=True, slots=True, repr=False)
class Block:
    """Records of one region, one after the other.

    It has no generated repr: when asyncio resets a signal's handler, it formats the results of tasks, once for each
    block. To format megabytes takes longer than to read them.
    """

    region: Region
    data: bytes
    bounds: Bounds


@dataclass(slots=True)
class Losses:
    """The messages of a region that were not returned, for the log."""

    removed: list[tuple[int, int]] = field(default_factory=list)
    """Offsets `[first, end)` that existed while planning."""
    damaged: list[Damage] = field(default_factory=list)
    reason: str = ""


class _Piece(NamedTuple):
    data: bytes
    bounds: Bounds


class RegionPuller:
    """Pulls regions, with an engine.

    Concurrency: only the event loop's thread uses it, and only one `blocks` runs at a time.
    """

    def __init__(self, engine: ClientEngine, subscription: SubscriptionData | None = None) -> None:
        """Make a puller. With `subscription`, brokers leave out messages with other tags, compared by hash."""
        self._engine = engine
        self._puller = PullConsumer(engine, TOOLS_CONSUMER_GROUP)
        self._subscription = subscription
        self._chunk = CHUNK_MAX // 4
        self._slaveless: set[str] = set()
        self.losses: dict[Region, Losses] = {}

    async def blocks(self, regions: Sequence[Region]) -> AsyncGenerator[Block, None]:
        """Yield the records of regions in order. The next requests are always in flight.

        Raises:
            ClientError: A broker does not answer, or rejects a request.
        """
        under_way: deque[tuple[Region, asyncio.Task[list[_Piece]]]] = deque()
        chunks = self._chunks(regions)
        gathered: list[_Piece] = []
        current: Region | None = None
        while True:
            while len(under_way) < REQUESTS_MAX and (chunk := next(chunks, None)) is not None:
                region, first, end = chunk
                under_way.append((region, self._engine.tasks.spawn(self._pull_chunk(region, first, end))))
            if not under_way:
                break
            region, task = under_way.popleft()
            pieces = await task
            if current is not None and gathered and (region != current or _is_full(gathered)):
                yield _joined(current, gathered)
                gathered = []
            current = region
            gathered += pieces
        if current is not None and gathered:
            yield _joined(current, gathered)

    def note(self, region: Region) -> Losses:
        """Return the losses of a region; callers add to them."""
        return self.losses.setdefault(region, Losses())

    def _chunks(self, regions: Sequence[Region]) -> Iterator[tuple[Region, int, int]]:
        for region in regions:
            first = region.start
            while first < region.end:
                end = min(first + self._chunk, region.end)
                yield region, first, end
                first = end

    async def _pull_chunk(self, region: Region, first: int, end: int) -> list[_Piece]:
        """Return the records that exist in `[first, end)`."""
        pieces: list[_Piece] = []
        queue = MessageQueue(region.topic, region.broker, region.queue_id)
        at = first
        while at < end:
            try:
                result = await self._pull(queue, at, end - at)
            except NoRouteError:
                # Name servers remove the routes of a broker that is away. So a missing route proves no deletion.
                if not await self._is_deleted(queue):
                    raise
                self._removed(region, at, end, NO_SUCH_TOPIC)
                break
            except BrokerError as error:
                if error.code not in _NO_TOPIC:
                    raise
                self._removed(region, at, end, NO_SUCH_TOPIC)
                break
            following = result.next_offset
            if result.status is PullStatus.FOUND:
                following = self._take(region, result, at, end, pieces)
            elif result.status is PullStatus.OFFSET_ILLEGAL and following > at:
                self._removed(region, at, min(following, end), f"the queue begins at {result.min_offset} by now")
            elif following <= at:
                held = f"the queue holds {result.min_offset} to {result.max_offset} by now"
                self._removed(region, at, end, held)
                break
            at = max(following, at + 1)
        return pieces

    def _take(self, region: Region, result: PullResult, at: int, end: int, pieces: list[_Piece]) -> int:
        """Keep the records of a pull that are before `end`; return the offset at which to continue."""
        data = bytes(result.body)
        bounds, damage = bounds_of(data)
        offsets = _numbers(data, bounds, _QUEUE_OFFSET_AT)
        following = result.next_offset
        if damage is not None:
            # The start of the next record is unknown, so the next pull starts after the damaged record.
            lost = int(offsets[-1]) + 1 if len(offsets) else at
            self.note(region).damaged.append(damage._replace(queue_offset=lost))
            following = max(lost, at) + 1
        elif self._subscription is None and following - at < end - at:
            self._chunk = min(CHUNK_MAX, max(CHUNK_MIN, following - at))
        elif following >= end:
            self._chunk = min(CHUNK_MAX, self._chunk + CHUNK_MIN)
        within = offsets < end
        is_other = within & (_numbers(data, bounds, _PHYSICAL_OFFSET_AT) >= region.physical_end)
        if is_other.any():
            first = int(offsets[is_other][0])
            self._removed(region, first, end, "the queue was made again since reading was planned")
            within &= offsets < first
            following = end
        pieces.append(_Piece(data, bounds if within.all() else bounds.take(within)))
        return following

    async def _pull(self, queue: MessageQueue, offset: int, count: int) -> PullResult:
        """Pull once: from a slave if one has the messages, else from the master."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            member = self._member(queue.broker_name)
            try:
                result = await self._puller.pull(
                    queue,
                    offset,
                    max_messages=min(count, OTHERS_MAX),
                    expression=self._subscription or "*",
                    broker_id=member,
                    wide_messages=min(count, CHUNK_MAX),
                )
            except (NoAnswerError, BrokerUnavailableError, BrokerError) as error:
                if member != MASTER_ID:
                    self._slaveless.add(queue.broker_name)
                elif attempt == ATTEMPTS_MAX or (isinstance(error, BrokerError) and not error.disposition.is_transient):
                    raise
                await asyncio.sleep(RETRY_AFTER_S * (attempt - 1))
                continue
            if member != MASTER_ID and result.status in (PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL):
                self._slaveless.add(queue.broker_name)  # The slave lags behind, or keeps less.
                continue
            return result
        raise BrokerUnavailableError(queue.broker_name)

    def _member(self, broker: str) -> int:
        data = self._engine.brokers().get(broker)
        if data is None or broker in self._slaveless:
            return MASTER_ID
        return min((number for number in data.broker_addrs if number != MASTER_ID), default=MASTER_ID)

    async def _is_deleted(self, queue: MessageQueue) -> bool:
        """Return whether the broker itself reports that the topic does not exist. Raises ClientError."""
        data = (await self._engine.cluster_info()).broker_addr_table.get(queue.broker_name)
        if data is None or data.master_address is None:
            raise BrokerUnavailableError(queue.broker_name)
        try:
            await Backlog(self._engine).queue_states_at(data.master_address, queue.topic)
        except BrokerError as error:
            if error.code in _NO_TOPIC:
                return True
            raise
        return False

    def _removed(self, region: Region, first: int, end: int, reason: str) -> None:
        """Note offsets that are gone. Raises BrokerUnavailableError if only slaves report it: they may lag behind."""
        data = self._engine.brokers().get(region.broker)
        if data is not None and MASTER_ID not in data.broker_addrs:
            raise BrokerUnavailableError(region.broker)
        losses = self.note(region)
        losses.removed.append((first, end))
        losses.reason = reason


def removed_of(losses: dict[Region, Losses]) -> list[Loss]:
    """Return the losses of regions since planning: one range for each region."""
    found = []
    for region, lost in losses.items():
        if lost.removed:
            first, end = min(lost.removed)[0], max(end for _, end in lost.removed)
            queue = MessageQueue(region.topic, region.broker, region.queue_id)
            following = end if end < region.end else None
            found.append(Loss(queue, first, lost.reason, end, "removed since reading was planned", following))
    return found


def log_damage(losses: dict[Region, Losses]) -> None:
    """Log the damaged records: one warning for each region, however many records are damaged."""
    for region, lost in losses.items():
        place = {"topic": region.topic, "broker": region.broker, "queue_id": region.queue_id}
        if lost.damaged:
            reasons = Counter(damage.reason for damage in lost.damaged)
            log.warning(
                "damaged records are left out",
                **place,
                records=len(lost.damaged),
                offsets=[damage.queue_offset for damage in lost.damaged[:20]],
                reasons=dict(reasons.most_common(5)),
            )


def _numbers(data: bytes, bounds: Bounds, at: int) -> Int64s:
    """Return an 8-byte field of each record."""
    found = windows(np.frombuffer(data, np.uint8), 8, bounds.starts + at).view(">i8")
    return found.astype(np.int64).reshape(-1)


def _is_full(pieces: Sequence[_Piece]) -> bool:
    return (
        sum(len(piece.bounds.starts) for piece in pieces) >= BLOCK_ROWS
        or sum(len(piece.data) for piece in pieces) >= BLOCK_BYTES
    )


def _joined(region: Region, pieces: Sequence[_Piece]) -> Block:
    if len(pieces) == 1:
        return Block(region, pieces[0].data, pieces[0].bounds)
    shifts = np.cumsum([0] + [len(piece.data) for piece in pieces[:-1]])
    starts = [piece.bounds.starts + shift for piece, shift in zip(pieces, shifts, strict=True)]
    sizes = [piece.bounds.sizes for piece in pieces]
    data = b"".join([piece.data for piece in pieces])
    return Block(region, data, Bounds(np.concatenate(starts), np.concatenate(sizes)))
