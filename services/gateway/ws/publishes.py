"""The publishes of a stream that are in flight: their limit, and their answers. Pure."""

from collections.abc import Sequence

from services.gateway.errors import TOO_LARGE, TOO_MANY, ProblemError
from services.gateway.ws import frames
from services.gateway.ws.answers import Answers
from services.gateway.ws.effects import Effect, FrameId, Publish, Rights
from services.gateway.ws.limits import StreamLimits


class PendingPublishes:
    """The publishes of one session.

    Attributes:
        pending: Number of publishes that are not answered yet.
        is_closed: Whether the session is closed; then nothing is answered.
    """

    def __init__(self, answers: Answers, rights: Rights, limits: StreamLimits) -> None:
        self.pending = 0
        self.is_closed = False
        self._answers = answers
        self._rights = rights
        self._limits = limits

    def admit(self, frame: frames.Publish, *, frame_bytes: int) -> Publish:
        """Return the publish to carry out. Raises ProblemError: the right is missing, or a limit is exceeded."""
        self._rights.require_publish(frame.topic)
        limits = self._limits
        if len(frame.messages) > limits.publish_messages_max:
            detail = (
                f"messages: {len(frame.messages)} exceed the limit of {limits.publish_messages_max}; none was stored"
            )
            raise ProblemError(TOO_LARGE, detail, field="/messages")
        if self.pending >= limits.publishes_pending_max:
            raise ProblemError(
                TOO_MANY,
                f"publish: {limits.publishes_pending_max} are in progress already, which is the limit; nothing was stored",
            )
        self.pending += 1
        return Publish(frame.topic, frame.messages, frame.id, frame_bytes)

    def done(self, frame_id: FrameId, results: Sequence[object], counts: dict[str, int]) -> list[Effect]:
        """Answer a publish whose messages were sent, each with its result."""
        self.pending -= 1
        return [] if self.is_closed else [self._answers.published(results, counts, frame_id)]

    def failed(self, frame_id: FrameId, problem: ProblemError) -> list[Effect]:
        """Answer a publish that was rejected as a whole."""
        self.pending -= 1
        return [] if self.is_closed else [self._answers.error(problem, frame_id=frame_id)]
