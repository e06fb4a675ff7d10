"""Pending answers: the requests of a stream that wait for their answers, by the id that the answer repeats."""

import asyncio
from collections.abc import Callable

from gantry.http.errors import GantryError
from gantry.http.streamframes import FrameId, ServerFrame

OnAnswer = Callable[[ServerFrame], None]


class PendingAnswers:
    """The requests of one stream that wait for an answer.

    Concurrency: one event loop.
    """

    def __init__(self) -> None:
        self._last_id = 0
        self._questions: dict[FrameId | None, tuple[asyncio.Future[ServerFrame], OnAnswer | None]] = {}

    def add(self, on_answer: OnAnswer | None) -> tuple[int, asyncio.Future[ServerFrame]]:
        """Add a request and return its id and the future of its answer.

        `on_answer` is called before any later frame is handled.
        """
        self._last_id += 1
        answer: asyncio.Future[ServerFrame] = asyncio.get_running_loop().create_future()
        self._questions[self._last_id] = (answer, on_answer)
        return self._last_id, answer

    def drop(self, frame_id: int) -> None:
        """Forget a request."""
        self._questions.pop(frame_id, None)

    def answer(self, frame_id: FrameId | None, frame: ServerFrame) -> bool:
        """Complete a request with its answer; return whether the request still waited."""
        answer, on_answer = self._questions.get(frame_id, (None, None))
        if answer is None or answer.done():
            return False
        if on_answer is not None:
            on_answer(frame)
        answer.set_result(frame)
        return True

    def fail(self, frame_id: FrameId | None, error: GantryError) -> bool:
        """Fail a request with an error; return whether there was such a request."""
        answer, _ = self._questions.get(frame_id, (None, None))
        if answer is None:
            return False
        if not answer.done():
            answer.set_exception(error)
        return True

    def fail_all(self, error: GantryError) -> None:
        """Fail all requests with an error."""
        for frame_id in self._questions:
            self.fail(frame_id, error)
