"""The two kinds of offsets, kept apart by type because mixing them reads the wrong message without an error."""

from typing import NewType

PhysicalOffset = NewType("PhysicalOffset", int)
"""A byte's place in the CommitLog, counted from the first byte of the first file that ever was."""

QueueOffset = NewType("QueueOffset", int)
"""A message's place in its queue, counted in messages."""
