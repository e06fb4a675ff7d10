"""Frames that wait for their answers, by the id that the answer repeats."""

import asyncio
from collections.abc import Callable

from gantry.http.errors import GantryError
from gantry.http.streamframes import FrameId, ServerFrame

OnAnswer = Callable[[ServerFrame], None]


class PendingAnswers:
    """The questions of one stream.

    Concurrency: one event loop.
    """

    def __init__(self) -> None:
        self._last_id = 0
        self._questions: dict[FrameId | None, tuple[asyncio.Future[ServerFrame], OnAnswer | None]] = {}

    def add(self, on_answer: OnAnswer | None) -> tuple[int, asyncio.Future[ServerFrame]]:
        """Return the id of a new question and its answer to be; `on_answer` is called before anything else is read."""
        self._last_id += 1
        answer: asyncio.Future[ServerFrame] = asyncio.get_running_loop().create_future()
        self._questions[self._last_id] = (answer, on_answer)
        return self._last_id, answer

    def drop(self, frame_id: int) -> None:
        """Forget a question."""
        self._questions.pop(frame_id, None)

    def answer(self, frame_id: FrameId | None, frame: ServerFrame) -> None:
        """Give a question its answer, if anybody waits for it."""
        answer, on_answer = self._questions.get(frame_id, (None, None))
        if answer is not None and not answer.done():
            if on_answer is not None:
                on_answer(frame)
            answer.set_result(frame)

    def fail(self, frame_id: FrameId | None, error: GantryError) -> bool:
        """Let a question fail; say whether there was one."""
        answer, _ = self._questions.get(frame_id, (None, None))
        if answer is None:
            return False
        if not answer.done():
            answer.set_exception(error)
        return True

    def fail_all(self, error: GantryError) -> None:
        """Let all questions fail."""
        for frame_id in self._questions:
            self.fail(frame_id, error)
