"""Findings of a verification: problems, which mean that something is wrong, and notes, which do not."""

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

FINDINGS_PER_KIND_MAX: Final = 100
"""One broken disk block can damage thousands of units; the first findings show where."""


class Severity(enum.StrEnum):
    """Whether a finding means that something is wrong."""

    PROBLEM = "problem"
    NOTE = "note"


class Result(enum.StrEnum):
    """The overall result of a verification."""

    OK = "ok"
    NEEDS_RECOVERY = "needs recovery"
    """A broker did not stop in order; the next start repairs the effects of the crash."""
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        severity: Whether the finding means that something is wrong.
        kind: The part of the store: commitlog, consumequeue, index, checkpoint, config, manifest.
        path: The file or folder.
        offset: The position: a physical offset for the CommitLog, a queue offset for a ConsumeQueue, an entry's number
            for an index file; None for the file as a whole.
        size_bytes: The number of bytes concerned; None if a size has no meaning here.
        text: A description for people.
    """

    severity: Severity
    kind: str
    path: str
    offset: int | None
    size_bytes: int | None
    text: str


@dataclass(slots=True)
class Report:
    """The findings of a verification, and counts of the items that it checked."""

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
        """Return the overall result."""
        if self.problems:
            return Result.DAMAGED
        return Result.NEEDS_RECOVERY if self.needs_recovery else Result.OK

    @property
    def problems(self) -> int:
        """Return the number of problems, including those that are not listed."""
        return sum(count for (severity, _), count in self._counts.items() if severity is Severity.PROBLEM)

    @property
    def left_out(self) -> dict[str, int]:
        """Return the number of findings of each kind that are counted but not listed."""
        found: Counter[str] = Counter()
        for (_, kind), count in self._counts.items():
            found[kind] += max(count - FINDINGS_PER_KIND_MAX, 0)
        return {kind: count for kind, count in found.items() if count}

    def problem(
        self, kind: str, path: str, text: str, *, offset: int | None = None, size_bytes: int | None = None
    ) -> None:
        """Add a problem: something is wrong."""
        self._add(Finding(Severity.PROBLEM, kind, path, offset, size_bytes, text))

    def note(
        self, kind: str, path: str, text: str, *, offset: int | None = None, size_bytes: int | None = None
    ) -> None:
        """Add a note: something is worth knowing."""
        self._add(Finding(Severity.NOTE, kind, path, offset, size_bytes, text))

    def _add(self, finding: Finding) -> None:
        self._counts[finding.severity, finding.kind] += 1
        if self._counts[finding.severity, finding.kind] <= FINDINGS_PER_KIND_MAX:
            self.findings.append(finding)
