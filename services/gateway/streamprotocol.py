"""One WebSocket: uvicorn's life cycle, the library's handshake, and a reader of frames that has limits.

uvicorn parses all received bytes at once, answers each ping at once, and keeps fragments without a limit, even after its
close frame. It counts nothing of this. Here

* no frame is read before the handshake is answered and the key is known, because frames count for the key;
* one iteration of the event loop reads at most `TURN_FRAMES`. The transport is paused while frames are left, and after a
  large read it waits for its turn (readturns.py);
* at most one message waits for the application, and none is read while its key has no room (ws/inbound.py);
* only the newest ping is answered, once the transport accepts more;
* pings, pongs and small fragments have a rate. Above it, the application is told, and closes the stream;
* after the gateway's close frame, everything but the peer's close frame is dropped, and the connection ends soon.
"""

import asyncio
from typing import Any, Final, cast

from uvicorn.protocols.utils import get_remote_addr
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, Opcode

from services.gateway.addresses import address_group
from services.gateway.admission import Admission, IdleConnection
from services.gateway.asgi.answer import last_answer
from services.gateway.asgi.call import CONNECTION
from services.gateway.errors import ProblemError
from services.gateway.handshake import break_cycles
from services.gateway.readturns import LARGE_READ_BYTES
from services.gateway.ws.framereader import FrameError, FrameReader, Received
from services.gateway.ws.inbound import Charge

# A frame takes some microseconds, and the application's work for a message some tens.
TURN_FRAMES: Final = 64
TURN_MESSAGES: Final = 16
# A fragment of fewer bytes counts as a small frame: no honest client cuts its messages so.
SMALL_FRAGMENT_BYTES: Final = 128
# From the gateway's close frame to the end of the connection.
CLOSE_TIMEOUT_S: Final = 2.0
# Fewer bytes are not counted: it would cost more than it protects, and `streams_max` bounds their sum.
COUNTED_BYTES_MIN: Final = 4 * 1024
# While a larger message waits for the application, nothing more is read.
READ_AHEAD_BYTES_MAX: Final = 64 * 1024
_HEAD_END: Final = b"\r\n\r\n"


class StreamProtocol(WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, counted by admission and known to the sweeper.

    Attributes:
        address: Address that the connection counts for.
        handed_over_at: Time of the hand-over from HTTP, by the loop's clock.
        waits_for_room: Whether the connection is not read because its key, or all keys together, have no room.

    Concurrency: the event loop's thread; one task receives.
    """

    def __init__(self, *args: Any, admission: Admission, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.close_timeout = CLOSE_TIMEOUT_S
        self.address = ""
        self.handed_over_at = 0.0
        self.waits_for_room = False
        self._admission = admission
        self._charge: Charge | None = None
        self._reader = FrameReader(self.config.ws_max_size)
        self._message_since: float | None = None
        # Bytes of messages that wait for the application, and of the one that it has.
        self._queued_bytes = 0
        self._taken_bytes = 0
        self._is_open = False
        self._is_deaf = False
        self._is_paused = False
        self._is_in_line = False
        self._next_turn: asyncio.Handle | None = None
        self._ping: bytes | None = None
        self._small_frames = 0
        self._small_frames_since = 0.0
        self._small_frames_per_s_max = 0
        self._messages_in_turn = 0
        self._abort_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the time of the hand-over."""
        super().connection_made(transport)
        self.handed_over_at = self.loop.time()
        remote = get_remote_addr(self.transport)
        self.address = address_group(remote[0]) if remote else ""

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell admission that the connection has ended, and drop all data and all circular references."""
        self._admission.release(self)
        super().connection_lost(exc)
        self.scope["extensions"].pop(CONNECTION, None)
        self._drop_input()
        if self._charge is not None:
            self._charge.close()
        if self._abort_timer is not None:
            self._abort_timer.cancel()
        break_cycles(self.conn)

    @property
    def is_answered(self) -> bool:
        """Whether the handshake has an answer, which may be a refusal."""
        return self.handshake_complete or self.close_sent

    def give_up(self, problem: ProblemError) -> None:
        """Reject a handshake that the application has not answered, and close."""
        self.transport.write(last_answer(problem, self._admission.request_ids.next(), []))
        self.close_sent = True
        self.transport.close()

    def spare(self) -> IdleConnection | None:
        """Return None: a stream is never closed to make room."""
        return None

    def make_room(self) -> None:
        """Close the connection."""
        self.transport.close()

    def open(self, charge: Charge, *, small_frames_per_s_max: int) -> None:
        """Read frames from now on, and count them in `charge`; the caller's key is known."""
        self._charge = charge
        self._small_frames_per_s_max = small_frames_per_s_max
        charge.on_room = self._turn
        self._is_open = True
        self._schedule_turn()

    def message_ms(self) -> int:
        """Return for how many ms an incomplete message has been read; 0 if there is none."""
        since = self._message_since
        return 0 if since is None else int((self.loop.time() - since) * 1_000)

    def resume_if_room(self) -> None:
        """Read on if there is room again, because room that requests free wakes no stream."""
        if self.waits_for_room and self._next_turn is None:
            self._turn()

    def data_received(self, data: bytes) -> None:
        """Read the handshake, then frames."""
        if len(data) >= LARGE_READ_BYTES and not self._is_in_line:
            self._is_in_line = True
            self._admission.reads.enqueue(self._read_on)
            self._set_reading()
        if not self.handshake_initiated:
            # The library gets the head only; bytes after the head wait until it is answered.
            end = data.index(_HEAD_END) + len(_HEAD_END)
            head, data = data[:end], data[end:]
            self._reader.feed(data)
            super().data_received(head)
            # The task of the application begins in the next turn of the loop, and looks for the connection there.
            extensions = cast("dict[str, Any]", self.scope["extensions"])
            extensions[CONNECTION] = self
            self._set_reading()
        elif self._is_deaf:
            self._skip(data)
        else:
            self._reader.feed(data)
            if self._next_turn is None:
                self._turn()

    def _schedule_turn(self) -> None:
        if self._next_turn is None:
            self._next_turn = self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Read some frames, until a message waits for the application, and pause or resume the transport."""
        self._next_turn = None
        if not self._is_open or self._is_deaf or self.transport.is_closing():
            return
        reader = self._reader
        left = TURN_FRAMES
        try:
            while self.queue.empty():
                if not left:
                    self._schedule_turn()
                    break
                frame = reader.next_frame()
                if frame is None:
                    break
                left -= 1
                if not self._take(frame):
                    return
        except FrameError as error:
            self._drop_input()
            self.conn.fail(error.code, error.reason)
            self.handle_parser_exception()
            self._abort_soon()
            return
        if self._ping is not None and self.writable.is_set():
            self._answer_ping()
        self._count()
        self._set_reading()

    def _take(self, frame: Received) -> bool:
        """Process a frame; return whether others may follow."""
        opcode = frame.opcode
        if opcode is Opcode.TEXT or opcode is Opcode.BINARY:
            self._queued_bytes += frame.size
            # The application decodes the text itself, because a str here would take as much memory again.
            is_text = opcode is Opcode.TEXT
            event = {"type": "websocket.receive", "bytes": frame.data, "is_text": is_text}
            self.queue.put_nowait(cast("Any", event))
        elif opcode is Opcode.CLOSE:
            self._drop_input()
            # The library checks the frame and answers it.
            super().data_received(Frame(opcode, frame.data).serialize(mask=True))
            self._abort_soon()
        elif opcode is not Opcode.CONT or frame.size < SMALL_FRAGMENT_BYTES:
            return self._take_small(frame)
        return opcode is not Opcode.CLOSE

    def _take_small(self, frame: Received) -> bool:
        now = self.loop.time()
        if now - self._small_frames_since >= 1.0:
            self._small_frames_since = now
            self._small_frames = 0
        self._small_frames += 1
        most = self._small_frames_per_s_max
        if self._small_frames > most:
            self._drop_input()
            self._set_reading()
            self._admission.metrics.refused_connection("stream_frame_rate")
            reason = f"more than {most} pings, pongs or fragments below {SMALL_FRAGMENT_BYTES} bytes came in a second"
            self.queue.put_nowait(cast("Any", {"type": "gantry.limit", "reason": reason}))
            return False
        if frame.opcode is Opcode.PING:
            self._ping = frame.data
        elif frame.opcode is Opcode.PONG:
            self.handle_pong(Frame(Opcode.PONG, frame.data))
        return True

    def resume_writing(self) -> None:
        """Note that the transport accepts more, and answer the newest ping."""
        super().resume_writing()
        if self._ping is not None and not self.close_sent and not self.transport.is_closing():
            self._answer_ping()

    def _answer_ping(self) -> None:
        assert self._ping is not None, "there was a ping"
        ping, self._ping = self._ping, None
        self.conn.send_pong(ping)
        self.transport.write(b"".join(self.conn.data_to_send()))

    async def send(self, message: Any) -> None:
        """Send as uvicorn does; after a close, drop everything that still comes."""
        await super().send(message)
        if self.close_sent:
            if self.close_timer is not None:
                self.close_timer.cancel()
                # uvicorn's timer would wait without end for a peer that reads nothing.
                self.close_timer = self.loop.call_later(CLOSE_TIMEOUT_S, self._end)
            self._drop_input()
            self._set_reading()

    async def receive(self) -> Any:
        """Return the next message; the application has finished with the one before."""
        self._taken_bytes = 0
        if self._is_open and not self._is_deaf:
            self._messages_in_turn += 1
            if self._messages_in_turn > TURN_MESSAGES:
                # If the queue is never empty, no other task gets a turn.
                self._messages_in_turn = 0
                await asyncio.sleep(0)
            if self._next_turn is None:
                self._turn()
        message = await self.queue.get()
        self._taken_bytes, self._queued_bytes = self._queued_bytes, 0
        return message

    def keepalive_timeout(self) -> None:
        """Fail the connection, unless the gateway itself did not read, so that the pong may be unread."""
        if self._is_paused and not self.close_sent:
            assert self.ping_timeout is not None, "a time-out has a length"
            self.pong_timer = self.loop.call_later(self.ping_timeout, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        self._drop_input()
        self._abort_soon()

    # Inside

    def _count(self) -> None:
        """Count the bytes in memory, and note when an incomplete message began."""
        charge = self._charge
        assert charge is not None, "frames are read once the key is known"
        begun, unread = self._reader.held_bytes, self._queued_bytes + self._taken_bytes
        if begun and self._next_turn is None and self.queue.empty():
            if self._message_since is None:
                self._message_since = self.loop.time()
        else:
            # The rest is read once the application has taken the message before it, so the peer is not late.
            self._message_since = None
            begun, unread = 0, unread + begun
        charge.hold_begun(begun if begun >= COUNTED_BYTES_MIN else 0)
        charge.hold_unread(unread if unread >= COUNTED_BYTES_MIN else 0)

    def _set_reading(self) -> None:
        """Pause or resume the transport."""
        if self.transport.is_closing():
            return
        may_read = self._may_read()
        if may_read is not self._is_paused:
            return
        self._is_paused = not may_read
        if may_read:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def _read_on(self) -> None:
        self._is_in_line = False
        self._set_reading()

    def _may_read(self) -> bool:
        self.waits_for_room = False
        if self._is_in_line:
            return False
        if self._is_deaf:
            # After the goodbye the gateway reads to find the peer's close frame; before it, nothing.
            return self.close_sent
        charge = self._charge
        if charge is None:
            return False
        if self._next_turn is not None:
            return False
        if not self.queue.empty():
            return not self._reader.held_bytes and self._queued_bytes < READ_AHEAD_BYTES_MAX
        self.waits_for_room = not charge.may_read()
        return not self.waits_for_room

    def _drop_input(self) -> None:
        """Read no more messages, and drop an incomplete one."""
        self._is_deaf = True
        self._ping = None
        self._message_since = None
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        self._skip(b"")
        if self._charge is not None:
            self._charge.hold_begun(0)
            self._charge.hold_unread(self._queued_bytes + self._taken_bytes)

    def _skip(self, data: bytes) -> None:
        """Drop received bytes; the peer's close frame ends the connection."""
        if self._reader.skip(data):
            self._end()

    def _end(self) -> None:
        self.transport.close()
        self._abort_soon()

    def _abort_soon(self) -> None:
        """Abort a connection that is being closed if the peer does not read what was written."""
        if self._abort_timer is None and not self.disconnected:
            self._abort_timer = self.loop.call_later(CLOSE_TIMEOUT_S, self.transport.abort)
