"""The native client: producers, consumers and admin calls over RocketMQ Remoting.

One ClientEngine holds the connections, routes and heart-beats of a process. Producers, consumers and admin calls use
this engine. The names below are those that an application needs most; the modules have the others.
"""

from gantry.client.consumer.heldmessages import HoldLimits as HoldLimits
from gantry.client.consumer.listening import BatchListener as BatchListener
from gantry.client.consumer.listening import DeadLetterError as DeadLetterError
from gantry.client.consumer.listening import ListenerSettings as ListenerSettings
from gantry.client.consumer.listening import MessageListener as MessageListener
from gantry.client.consumer.listening import ReconsumeLaterError as ReconsumeLaterError
from gantry.client.consumer.localoffsets import LocalOffsets as LocalOffsets
from gantry.client.consumer.push import PushConsumer as PushConsumer
from gantry.client.consumer.starts import StartPosition as StartPosition
from gantry.client.engine import ClientEngine as ClientEngine
from gantry.client.errors import ClientError as ClientError
from gantry.client.producer import Producer as Producer
from gantry.client.settings import ClientSettings as ClientSettings
