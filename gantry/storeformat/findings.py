"""What a verification finds: problems, which mean that something is wrong, and notes, which don't."""

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

FINDINGS_PER_KIND_MAX: Final = 100
"""One broken disk block can spoil thousands of units; the first ones say where."""


class Severity(enum.StrEnum):
    """Whether something is wrong."""

    PROBLEM = "problem"
    NOTE = "note"


class Result(enum.StrEnum):
    """What a verification comes to."""

    OK = "ok"
    NEEDS_RECOVERY = "needs recovery"
    """A broker did not stop in order; the next one to start will mend what its crash left."""
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found.

    Attributes:
        severity: Whether it is wrong.
        kind: Which part of the store: commitlog, consumequeue, index, checkpoint, config, mark.
        path: The file or folder.
        offset: Where: a physical offset for the CommitLog, a queue offset for a ConsumeQueue, an entry's number for
            an index file; None for the file as a whole.
        size_bytes: How many bytes are concerned, None where that means nothing.
        text: What is wrong, for people.
    """

    severity: Severity
    kind: str
    path: str
    offset: int | None
    size_bytes: int | None
    text: str


@dataclass(slots=True)
class Report:
    """What a verification found and how much it looked at."""

    root: str
    findings: list[Finding] = field(default_factory=list)
    needs_recovery: bool = False
    min_offset: int = 0
    max_offset: int = 0
    records: int = 0
    damaged_bytes: int = 0
    queues: int = 0
    units: int = 0
    index_files: int = 0
    index_entries: int = 0
    record_checksum_from: int | None = None
    _counts: Counter[tuple[Severity, str]] = field(default_factory=Counter)

    @property
    def result(self) -> Result:
        """Return what it all comes to."""
        if self.problems:
            return Result.DAMAGED
        return Result.NEEDS_RECOVERY if self.needs_recovery else Result.OK

    @property
    def problems(self) -> int:
        """Return how many things are wrong, those included that are not listed."""
        return sum(count for (severity, _), count in self._counts.items() if severity is Severity.PROBLEM)

    @property
    def left_out(self) -> dict[str, int]:
        """Return how many findings of each kind are counted but not listed."""
        found: Counter[str] = Counter()
        for (_, kind), count in self._counts.items():
            found[kind] += max(count - FINDINGS_PER_KIND_MAX, 0)
        return {kind: count for kind, count in found.items() if count}

    def problem(
        self, kind: str, path: str, text: str, *, offset: int | None = None, size_bytes: int | None = None
    ) -> None:
        """Add something that is wrong."""
        self._add(Finding(Severity.PROBLEM, kind, path, offset, size_bytes, text))

    def note(
        self, kind: str, path: str, text: str, *, offset: int | None = None, size_bytes: int | None = None
    ) -> None:
        """Add something that is worth knowing."""
        self._add(Finding(Severity.NOTE, kind, path, offset, size_bytes, text))

    def _add(self, finding: Finding) -> None:
        self._counts[finding.severity, finding.kind] += 1
        if self._counts[finding.severity, finding.kind] <= FINDINGS_PER_KIND_MAX:
            self.findings.append(finding)
