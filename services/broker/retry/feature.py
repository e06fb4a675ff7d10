"""Builds the feature "retry": request 36, the hook for messages that clients send to retry topics, and the topics."""

from collections.abc import Mapping, Sequence
from functools import cached_property, partial

from gantry.model import names
from gantry.model.delaylevel import level_of_delay
from gantry.model.group import SubscriptionGroup
from gantry.model.propertyname import PropertyName
from gantry.remoting.aio import Handler
from services.broker.assembly import Broker
from services.broker.delay.feature import DelayLevels
from services.broker.newmessage import NewMessage, SendHook, TopicNeededError
from services.broker.retry.ladder import FIRST_LEVEL, failures_max, retry_delay_ms
from services.broker.retry.sendback import SendBackProcessor
from services.broker.retry.topics import RetryTopics, dlq_topic_of

_TIMER_PREFIX = "TIMER_"


class RetryFeature:
    """Retries of a broker."""

    def __init__(self, broker: Broker) -> None:
        tables, core = broker.tables, broker.core
        self._broker = broker
        self._groups = tables.groups
        self._locks = tables.queue_locks
        self._levels = DelayLevels(core.live_settings, broker.store)
        self.topics = RetryTopics(tables.topics, tables.groups, broker.create_topic)
        self._processor = SendBackProcessor(
            topics=self.topics,
            groups=tables.groups,
            waiters=core.waiters,
            store=broker.store,
            cold=core.cold,
            stats=broker.stats,
            live_settings=core.live_settings,
            clock=broker.clock,
            rng=broker.rng,
            delay=self.delay,
            hooks=lambda: self._other_hooks,
            identity=broker.identity,
        )
        broker.send_hooks.append(self.judge)
        broker.on_topic_changed.append(self.topics.topic_changed)
        broker.on_group_changed.append(lambda group: self.topics.group_changed(group, broker.clock.now_ms()))

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return self._processor.handlers()

    def judge(self, message: NewMessage) -> None:
        """Make a dead letter of a message that a client sends to a retry topic too often.

        A client does so if it can't send a message back with request 36, and for a message of orderly consumption that
        has failed for the last time. So a group that consumes in order gets no retries this way: as long as a client
        of the group holds a queue lock, the message is a dead letter whatever its number of failures.

        Raises:
            TopicNeededError: The topic of dead letters must be created first.
        """
        if not names.is_retry_topic(message.topic) or not message.reconsume_times:
            return
        name = message.topic.removeprefix(names.RETRY_PREFIX)
        group = self._groups.find(name) or SubscriptionGroup(name)
        is_spent = message.reconsume_times > failures_max(group, message.max_reconsume_times)
        if not is_spent and not self._locks.is_group_locked(name, self._broker.clock.monotonic_ms()):
            return
        topic = names.dlq_topic(name)
        if self.topics.find(topic) is None:
            raise TopicNeededError(partial(self.topics.ensure, dlq_topic_of(name)))
        message.topic, message.queue_id = topic, 0
        message.properties[PropertyName.DELAY] = "-1"

    def delay(self, message: NewMessage, group: SubscriptionGroup, level: int, delay_ms: int | None) -> None:
        """Set the delay of a message that was sent back: the one that the consumer asks for, or that of the group.

        A delay in ms that no level has becomes a set time if the broker has timers. Otherwise it becomes the next
        longer level.
        """
        failures = message.reconsume_times - 1
        if delay_ms is None and not level:
            delay_ms = retry_delay_ms(group.group_retry_policy, failures)
        delays_ms = self._levels.delays_ms()
        if delay_ms is None:
            number = level or FIRST_LEVEL + failures
        elif delay_ms and (delay_ms in delays_ms or not self._broker.settings.timer_wheel_enable):
            number = level_of_delay(delay_ms, delays_ms)
        else:
            for name in [name for name in message.properties if name.startswith(_TIMER_PREFIX)]:
                del message.properties[name]
            message.properties.pop(PropertyName.DELAY, None)
            if delay_ms:
                message.properties[PropertyName.TIMER_DELIVER_MS] = str(self._broker.clock.now_ms() + delay_ms)
            return
        message.properties[PropertyName.DELAY] = str(min(number, len(delays_ms)))

    @cached_property
    def _other_hooks(self) -> Sequence[SendHook]:
        # All features have added their hooks before the first request comes.
        return [hook for hook in self._broker.send_hooks if hook != self.judge]


def build(broker: Broker) -> RetryFeature:
    """Build the feature from the broker's parts."""
    return RetryFeature(broker)
