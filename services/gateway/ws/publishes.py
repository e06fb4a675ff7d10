"""The publishes of a stream that are under way: how many there may be, and their answers. Pure."""

from collections.abc import Sequence

from services.gateway.errors import TOO_LARGE, TOO_MANY, ProblemError
from services.gateway.ws import frames
from services.gateway.ws.answers import Answers
from services.gateway.ws.effects import Effect, FrameId, Publish, Rights
from services.gateway.ws.limits import StreamLimits


class Publishes:
    """Those of one session.

    Attributes:
        pending: How many are not answered yet.
        is_closed: The session is: nothing is answered any more.
    """

    def __init__(self, answers: Answers, rights: Rights, limits: StreamLimits) -> None:
        self.pending = 0
        self.is_closed = False
        self._answers = answers
        self._rights = rights
        self._limits = limits

    def admit(self, frame: frames.Publish, *, frame_bytes: int) -> Publish:
        """Return what is to be sent. Raises ProblemError: there is no right to it, or it is too much."""
        self._rights.require_publish(frame.topic)
        limits = self._limits
        if len(frame.messages) > limits.publish_messages_max:
            detail = f"messages: {len(frame.messages)} are more than {limits.publish_messages_max}"
            raise ProblemError(TOO_LARGE, detail, field="/messages")
        if self.pending >= limits.publishes_pending_max:
            raise ProblemError(TOO_MANY, f"publish: {limits.publishes_pending_max} are under way already")
        self.pending += 1
        return Publish(frame.topic, frame.messages, frame.id, frame_bytes)

    def done(self, frame_id: FrameId, results: Sequence[object], counts: dict[str, int]) -> list[Effect]:
        """The messages of a publish were sent, each with its result."""
        self.pending -= 1
        return [] if self.is_closed else [self._answers.published(results, counts, frame_id)]

    def failed(self, frame_id: FrameId, problem: ProblemError) -> list[Effect]:
        """A publish was refused as a whole."""
        self.pending -= 1
        return [] if self.is_closed else [self._answers.error(problem, frame_id=frame_id)]
