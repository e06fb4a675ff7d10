"""Builds the feature `pop`.

POP ──▶ taking ──▶ check point ──▶ revive topic ──▶ reply      (processor.py, taking.py, revivelog.py)
ACK ──▶ check points ──▶ acknowledgement ──▶ revive topic       (acks.py, checkpoints.py)
timer ──▶ check points that are due ──▶ pop retry topic         (revive.py)
"""

from collections.abc import Mapping, Sequence

from gantry.model.names import revive_topic
from gantry.model.propertyname import PropertyName
from gantry.remoting.aio import Handler
from gantry.remoting.codes import RequestCode
from gantry.runtime.telemetry import logger
from services.broker.assembly import Broker
from services.broker.durabilitywaiters import Outcome
from services.broker.metrics import Figure
from services.broker.newmessage import NewMessage
from services.broker.pop.acks import AckProcessor
from services.broker.pop.attempts import Attempts
from services.broker.pop.checkpoints import CheckPointTable
from services.broker.pop.checks import PopChecks
from services.broker.pop.order import ORDER_FILE, OrderTable, read_info
from services.broker.pop.polling import PopPolling
from services.broker.pop.positions import Positions
from services.broker.pop.processor import PopProcessor
from services.broker.pop.revive import REVIVE_INTERVAL_MS, Reviver, ReviveTimers
from services.broker.pop.revived import mark_revived
from services.broker.pop.revivelog import ReviveLog
from services.broker.pop.taken import TakenProcessor
from services.broker.pop.taking import Taking
from services.broker.processors.table import PlainHandler, replying_to_refusals
from services.broker.retry.topics import RetryTopics

log = logger("broker.pop")

_SAVE_MS = 1000
_QUEUES_DEFAULT = 8


class PopFeature:
    """Pop on one broker."""

    def __init__(self, broker: Broker) -> None:
        """Read the states of ordered queues and the revive topic. Raises StartupError."""
        self._broker = broker
        tables, core = broker.tables, broker.core
        self.points = CheckPointTable()
        self.orders = OrderTable(broker.store.files, broker.settings.store_path_root_dir)
        topic = revive_topic(broker.identity.cluster)
        config = tables.topics.find(topic)
        self._log = ReviveLog(
            topic,
            _QUEUES_DEFAULT if config is None else config.read_queue_nums,
            broker.identity.name,
            store=broker.store,
            offsets=tables.offsets,
            clock=broker.clock,
            points=self.points,
            orders_saved=lambda: self.orders.saved_at_ms,
        )
        self.positions = Positions(tables.offsets, broker.clock, self._log.append_anchor)
        self.polling = PopPolling()
        self._retry_topics = RetryTopics(tables.topics, tables.groups, broker.create_topic)
        self._taking = Taking(
            store=broker.store,
            topics=tables.topics,
            positions=self.positions,
            points=self.points,
            orders=self.orders,
            revive_log=self._log,
            live_settings=core.live_settings,
            broker_name=broker.identity.name,
            clock=broker.clock,
            rng=broker.rng,
        )
        self._pops = self._build_pops()
        self._attempts = Attempts(
            self._pops.pop,
            points=self.points,
            store=broker.store,
            cold=core.cold,
            broker_name=broker.identity.name,
            clock=broker.clock,
        )
        self._acks = self._build_acks()
        self._taken = TakenProcessor(self.points, self.orders, core.turns)
        self._reviver = Reviver(
            points=self.points,
            revive_log=self._log,
            store=broker.store,
            waiters=core.waiters,
            topics=tables.topics,
            retry_topics=self._retry_topics,
            groups=tables.groups,
            cold=core.cold,
            turns=core.turns,
            stats=broker.stats,
            live_settings=core.live_settings,
            clock=broker.clock,
        )
        self._replay()
        self._subscribe()

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        attempts: Mapping[int, PlainHandler] = {RequestCode.POP_MESSAGE: self._attempts.pop}
        return replying_to_refusals(
            {
                **self._pops.plain_handlers(),
                **self._acks.plain_handlers(),
                **self._taken.plain_handlers(),
                **attempts,
            }
        )

    def _build_pops(self) -> PopProcessor:
        broker, core = self._broker, self._broker.core
        return PopProcessor(
            taking=self._taking,
            positions=self.positions,
            polling=self.polling,
            checks=PopChecks(
                topics=broker.tables.topics,
                groups=broker.tables.groups,
                filters=core.filters,
                live_settings=core.live_settings,
                identity=broker.identity,
                clock=broker.clock,
            ),
            cold=core.cold,
            waiters=core.waiters,
            overload=core.overload,
            stats=broker.stats,
            clock=broker.clock,
            created_groups=broker.tables.groups.created,
            save_group=broker.wait_until_group_saved,
        )

    def _build_acks(self) -> AckProcessor:
        broker = self._broker
        return AckProcessor(
            topics=broker.tables.topics,
            store=broker.store,
            points=self.points,
            positions=self.positions,
            orders=self.orders,
            revive_log=self._log,
            polling=self.polling,
            waiters=broker.core.waiters,
            broker_name=broker.identity.name,
            clock=broker.clock,
        )

    def _replay(self) -> None:
        replayed = self._log.replay()
        for queue, info in replayed.orders.items():
            try:
                self.orders.put(queue, read_info(info))
            except ValueError:
                log.warning("the state of an ordered queue can't be read", topic=queue[0], group=queue[1])
        tables = self._broker.tables
        for queue, offset in replayed.positions.items():
            if tables.topics.find(queue[0]) is not None and tables.groups.find(queue[1]) is not None:
                end = self._broker.store.max_offset(queue[0], queue[2])
                self.positions.set(queue, min(offset, end))
        revived = mark_revived(self.points, self._broker.store, self._broker.clock.now_ms())
        if replayed.records:
            log.info(
                "pops read",
                records=replayed.records,
                check_points=len(self.points),
                in_flight=self.points.in_flight,
                already_revived=revived,
            )

    def _subscribe(self) -> None:
        broker = self._broker
        broker.special_properties.add(PropertyName.POP_CK)
        broker.send_hooks.append(_drop_receipt)
        broker.core.long_polling.observers.append(self.polling)
        broker.on_topic_changed.append(self._topic_changed)
        broker.on_group_changed.append(self._group_changed)
        broker.on_offsets_reset.append(self._offsets_reset)
        broker.persistence.add(ORDER_FILE, self.orders.file, self.orders.text())
        timers = ReviveTimers(self._wake_free, self._reviver.tick)
        broker.timers.append(("pop-revive", REVIVE_INTERVAL_MS, timers.tick))
        broker.timers.append(("pop-progress", _SAVE_MS, self._save))
        broker.at_stop.append(self._stop)
        broker.figures += self._figures()

    def _wake_free(self) -> None:
        for topic, group, _ in self.orders.take_free(self._broker.clock.now_ms()):
            self.polling.wake_one(topic, group)
        self.polling.wake()

    async def _save(self) -> None:
        """Apply records that came from the timer, save the ordered queues, and commit the progress."""
        while self._log.read_arrived():
            pass
        clock, persistence = self._broker.clock, self._broker.persistence
        self.orders.remove_idle(clock.now_ms())
        started_ms = clock.now_ms()
        if self.orders.is_dirty:
            self.orders.is_dirty = False
            persistence.mark(ORDER_FILE)
            await persistence.durable(ORDER_FILE)
        self.orders.saved_at_ms = started_ms
        end = self._log.carry()
        if end is None or await self._broker.core.waiters.outcome(end) is Outcome.DURABLE:
            self._log.carried()
        self._log.save_progress()

    def _stop(self) -> None:
        if self.orders.is_dirty:
            self._broker.persistence.mark(ORDER_FILE)
        self._log.save_progress()

    def _topic_changed(self, topic: str) -> None:
        self._retry_topics.topic_changed(topic)
        if self._broker.tables.topics.find(topic) is None:
            self._forget(topic, None)

    def _group_changed(self, group: str) -> None:
        if self._broker.tables.groups.find(group) is None:
            self._forget(None, group)

    def _forget(self, topic: str | None, group: str | None) -> None:
        self.positions.forget(topic, group)
        self.orders.forget(topic, group)
        for point in [
            point for point in self.points if topic in {None, point.key[0]} and group in {None, point.key[1]}
        ]:
            self.points.drop(point)

    def _offsets_reset(self, topic: str, group: str, targets: Mapping[int, int | None]) -> None:
        for queue_id, offset in targets.items():
            queue = (topic, group, queue_id)
            self.orders.put(queue, None)
            self.positions.reset(queue, offset)
        self._broker.core.waiters.appended()
        self.polling.wake_one(topic, group)

    def _figures(self) -> Sequence[Figure]:
        pops, acks, reviver = self._pops, self._acks, self._reviver
        return [
            Figure(
                "gantry_broker_pop_in_flight", "Messages that are popped and not done.", lambda: self.points.in_flight
            ),
            Figure("gantry_broker_pop_check_points", "Pops that are not done.", lambda: len(self.points)),
            Figure("gantry_broker_pop_waiting", "Pops that wait for a message.", lambda: self.polling.count),
            Figure("gantry_broker_pop_messages", "Messages popped.", lambda: pops.popped, is_counter=True),
            Figure("gantry_broker_pop_acks", "Messages acknowledged.", lambda: acks.acked, is_counter=True),
            Figure("gantry_broker_pop_refused_acks", "Receipts refused.", lambda: acks.refused, is_counter=True),
            Figure("gantry_broker_pop_revived", "Messages given out again.", lambda: reviver.revived, is_counter=True),
            Figure(
                "gantry_broker_pop_dead",
                "Popped messages that became dead letters.",
                lambda: reviver.dead,
                is_counter=True,
            ),
            Figure("gantry_broker_pop_lost", "Popped messages that were gone.", lambda: reviver.lost, is_counter=True),
        ]


def _drop_receipt(message: NewMessage) -> None:
    """Remove a receipt that a client sends along with a message that it has popped."""
    message.properties.pop(PropertyName.POP_CK, None)


def build(broker: Broker) -> PopFeature:
    """Build the feature from the broker's parts. Raises StartupError."""
    return PopFeature(broker)
