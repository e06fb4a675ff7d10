"""The HTTP and WebSocket client library of Gantry.

`GantryClient` and `AsyncGantryClient` call the REST API. `StreamClient` consumes by push and publishes over one
connection. All of them connect to a stack of `gantry up --data DIR` with `from_stack(DIR)`.
"""

from gantry.http.asyncclient import AsyncGantryClient as AsyncGantryClient
from gantry.http.client import GantryClient as GantryClient
from gantry.http.errors import GantryConnectionError as GantryConnectionError
from gantry.http.errors import GantryError as GantryError
from gantry.http.errors import GantryProblem as GantryProblem
from gantry.http.errors import GantryProtocolError as GantryProtocolError
from gantry.http.errors import NoStackError as NoStackError
from gantry.http.errors import Problem as Problem
from gantry.http.errors import StreamClosedError as StreamClosedError
from gantry.http.results import BatchResult as BatchResult
from gantry.http.results import Message as Message
from gantry.http.results import OutgoingMessage as OutgoingMessage
from gantry.http.results import SendResult as SendResult
from gantry.http.stream import StreamClient as StreamClient
from gantry.http.streamframes import Check as Check
from gantry.http.subscription import Batch as Batch
from gantry.http.subscription import Subscription as Subscription
from gantry.http.tail import Tail as Tail
