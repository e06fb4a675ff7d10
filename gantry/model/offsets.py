"""The two kinds of offsets. They are different types, because mixing them reads the wrong message without an error."""

from typing import NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""The position of a byte in the CommitLog, counted from the first byte of the first file. That file may be deleted."""

QueueOffset = NewType("QueueOffset", int)
"""The position of a message in its queue, counted in messages."""
