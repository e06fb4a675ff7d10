"""The feature `timer`: messages that are delivered at a set time.

    send ──hook──▶ timer topic's queue ──▶ timer log and wheel ──▶ real topic
                          ▲                        │
                          └──── rolled messages ◀──┘

request.py decides when a message is due (pure), hook.py stores it under the timer's topic, engine.py does the work,
waiting.py keeps wheel, timer log and check point consistent, recovery.py opens them, delivery.py makes the delivered
messages (pure), appending.py appends them, processor.py answers requests.
"""

from collections.abc import Mapping
from functools import partial

from gantry.storeformat.timerfiles import SECOND_MS, TIMER_METRICS_FILE, WHEEL_SLOTS
from services.broker.assembly import Broker
from services.broker.duplicates.freeing import free_recalled
from services.broker.metrics import Figure
from services.broker.settings import BrokerSettings
from services.broker.timer.appending import Appender
from services.broker.timer.counts import TopicCounts
from services.broker.timer.engine import ROUND_MS, Engine
from services.broker.timer.hook import SPECIAL_PROPERTIES, TimerHook
from services.broker.timer.listing import Listing
from services.broker.timer.processor import TimerProcessor
from services.broker.timer.recalling import Recalling
from services.broker.timer.recalls import Recalls
from services.broker.timer.recovery import recover
from services.broker.timer.repeats import Repeats
from services.broker.timer.waiting import Waiting

_WINDOW_SLOTS_MAX = WHEEL_SLOTS // 2 - 60
_RATE_MS = 1000


class _Figures:
    """The figures of request 28 and the metrics."""

    def __init__(self, broker: Broker, engine: Engine, appender: Appender, waiting: Waiting) -> None:
        self._clock = broker.clock
        self._engine = engine
        self._appender = appender
        self._waiting = waiting
        self._sampled = (self._clock.monotonic_ms(), 0, 0)
        self._rates = (0.0, 0.0)

    def sample(self) -> None:
        """Take the rates of the last second."""
        at_ms, enqueued, fired = self._sampled
        self._sampled = now = (self._clock.monotonic_ms(), self._engine.enqueued, self._appender.fired)
        elapsed_s = max(1, now[0] - at_ms) / 1000
        self._rates = ((now[1] - enqueued) / elapsed_s, (now[2] - fired) / elapsed_s)

    def texts(self) -> Mapping[str, str]:
        """Return the figures of request 28."""
        return {
            "timerReadBehind": str(self._engine.behind_ms() // 1000),
            "timerOffsetBehind": str(self._engine.behind_messages()),
            "timerCongestNum": str(self._waiting.count),
            "timerEnqueueTps": str(self._rates[0]),
            "timerDequeueTps": str(self._rates[1]),
        }

    def metrics(self) -> list[Figure]:
        """Return the metrics."""
        engine, appender = self._engine, self._appender
        return [
            Figure(
                "rocketmq_timer_enqueue_lag", "Timed messages that are not in the wheel yet.", engine.behind_messages
            ),
            Figure("rocketmq_timer_dequeue_lag", "Messages in the wheel.", lambda: self._waiting.count),
            Figure(
                "rocketmq_timer_dequeue_latency", "Age of the oldest second that has not fired (ms).", engine.behind_ms
            ),
            Figure("rocketmq_timer_enqueue", "Messages read into the wheel.", lambda: engine.enqueued, is_counter=True),
            Figure(
                "rocketmq_timer_dequeue", "Messages delivered at their time.", lambda: appender.fired, is_counter=True
            ),
            Figure("gantry_broker_timer_rolled", "Messages that wait again.", lambda: appender.rolled, is_counter=True),
            Figure("gantry_broker_timer_recalled", "Messages recalled.", lambda: engine.deleted, is_counter=True),
            Figure(
                "gantry_broker_timer_topic_gone",
                "Messages dropped because their topic was deleted.",
                lambda: appender.dropped_topic_gone,
                is_counter=True,
            ),
            Figure(
                "gantry_broker_timer_lost",
                "Messages that can't be read or stored any more.",
                lambda: engine.unreadable + appender.dropped_unstorable,
                is_counter=True,
            ),
        ]


def build(broker: Broker, *, slots: int = WHEEL_SLOTS) -> TimerProcessor:
    """Build the feature: open its files, add hook, timer and figures. Raises StartupError.

    Args:
        broker: The broker.
        slots: The number of slots of the wheel; tests pass fewer.
    """
    settings, store, core, clock = broker.settings, broker.store, broker.core, broker.clock
    files, root_dir = store.files, settings.store_path_root_dir
    counts, recalls = TopicCounts(files, f"{root_dir}/{TIMER_METRICS_FILE}", clock), Recalls()
    counts.load()
    waiting = Waiting(files, root_dir, clock, log_file_bytes=settings.mapped_file_size_timer_log, slots=slots)
    if settings.timer_wheel_enable:
        recover(waiting, store.record_at)
    repeats = Repeats(store=store, waiting=waiting, cold=core.cold, turns=core.turns)
    appender = Appender(
        store=store,
        waiters=core.waiters,
        topics=broker.tables.topics,
        stats=broker.stats,
        counts=counts,
        repeats=repeats,
        clock=clock,
    )
    engine = Engine(
        waiting=waiting,
        recalls=recalls,
        appender=appender,
        counts=counts,
        store=store,
        cold=core.cold,
        turns=core.turns,
        clock=clock,
        run_in_thread=broker.persistence.run_in_thread,
        window_ms=window_ms(settings),
        save_ms=settings.timer_flush_interval_ms,
        on_deletion=partial(free_recalled, broker.windows),
    )
    hook = TimerHook(settings, broker_name=broker.identity.name, waiting=waiting, clock=clock, rng=broker.rng)
    figures = _Figures(broker, engine, appender, waiting)
    broker.special_properties.update(SPECIAL_PROPERTIES)
    broker.send_hooks.append(hook)
    if settings.timer_wheel_enable:
        broker.timers.append(("timer", ROUND_MS, engine.tick))
    broker.timers.append(("timer-rates", _RATE_MS, figures.sample))
    broker.at_stop.append(engine.close)
    broker.on_topic_changed.append(lambda topic: counts.forget(topic) if _is_gone(broker, topic) else None)
    broker.figures += figures.metrics()
    broker.runtime_figures.append(figures.texts)
    listing = Listing(
        waiting=waiting, store=store, cold=core.cold, turns=core.turns, clock=clock, broker_name=broker.identity.name
    )
    recalling = Recalling(
        settings,
        recalls=recalls,
        waiting=waiting,
        hook=hook,
        topics=broker.tables.topics,
        identity=broker.identity,
        live_settings=core.live_settings,
        store=store,
        waiters=core.waiters,
        windows=broker.windows,
        cold=core.cold,
        turns=core.turns,
        clock=clock,
    )
    return TimerProcessor(
        waiting=waiting, counts=counts, listing=listing, recalling=recalling, topics=broker.tables.topics
    )


def window_ms(settings: BrokerSettings) -> int:
    """Return the longest time (ms) for which a message waits in one part.

    Each part stores a new record. A part lasts at most two thirds of the retention time, so that the record is still
    there when the part is over.
    """
    slots = settings.timer_roll_window_slot
    if not 2 <= slots <= _WINDOW_SLOTS_MAX:
        slots = _WINDOW_SLOTS_MAX
    return max(2, min(slots, settings.file_reserved_time * 3600 * 2 // 3)) * SECOND_MS


def _is_gone(broker: Broker, topic: str) -> bool:
    return broker.tables.topics.find(topic) is None
