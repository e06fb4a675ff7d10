"""Writes the config files: many changes become one write in a thread, and callers can wait until it is on disk.

A save encodes the changed entries in the loop's thread, in slices. After a slice, the save
sleeps instead of waiting for one turn of the loop. Without the sleep, the loop would be busy all the time, and a thread
that waits for the interpreter lock, such as the flush thread, gets it from a busy loop only every 5 ms. Another thread
joins the text of a file and writes it piece by piece (configtext.py).

Concurrency: `mark` and `durable` are called from the loop's thread. A table never changes while the writing thread
reads it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from gantry.runtime.errors import describe_os_error
from gantry.runtime.telemetry import logger
from services.broker.registry.configfile import ConfigFile
from services.broker.registry.configtext import ConfigText

log = logger("broker.persistence")

RETRY_DELAY_SECONDS = 1.0
# The shortest sleep that the event loop can make.
PAUSE_SECONDS = 0.001


class NotSavedError(Exception):
    """The disk failed to write a config file. The change is in memory and is retried, but a crash may lose it."""


class RunInThread(Protocol):
    """The type of TaskScope.in_thread, bound to an executor."""

    def __call__(self, work: Callable[[], None], /) -> Awaitable[None]:
        """Run the work in a thread and wait for it."""
        ...


@dataclass(slots=True)
class _Document:
    file: ConfigFile
    text: ConfigText
    wanted: int = 0
    """Number of marks so far."""
    written: int = 0
    """Number of the marks whose changes are in the file."""
    waiters: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)


class Persistence:
    """Keeps a set of files up to date with their tables.

    Attributes:
        failures: Number of failed writes.
        run_in_thread: Runs blocking work in a thread.
    """

    def __init__(self, run_in_thread: RunInThread) -> None:
        self.run_in_thread = run_in_thread
        self._documents: dict[str, _Document] = {}
        self._changed = asyncio.Event()
        self.failures = 0

    def add(self, name: str, file: ConfigFile, text: ConfigText) -> None:
        """Add a file and its text."""
        self._documents[name] = _Document(file, text)

    def mark(self, name: str) -> None:
        """Record that a table has changed and must be written."""
        self._documents[name].wanted += 1
        self._changed.set()

    async def durable(self, name: str) -> None:
        """Wait until every change marked so far is on disk.

        Raises:
            NotSavedError: The disk failed. The caller must not report the change as safe.
        """
        document = self._documents[name]
        if document.written < document.wanted:
            waiter = asyncio.get_running_loop().create_future()
            document.waiters.append((document.wanted, waiter))
            await waiter

    async def run(self) -> None:
        """Write the marked files until the task is cancelled. Retry if the disk fails."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            for document in self._documents.values():
                if document.written < document.wanted and not await self._write(document):
                    self._changed.set()
                    await asyncio.sleep(RETRY_DELAY_SECONDS)

    def write_all(self) -> None:
        """Write all marked files at once, in the caller's thread. This is the last step before the store stops.

        Raises:
            OSError: The disk failed.
        """
        for document in self._documents.values():
            if document.written < document.wanted:
                document.file.write([document.text.encode()])
                self._written(document, document.wanted)

    async def _write(self, document: _Document) -> bool:
        for _ in document.text.refresh():
            await asyncio.sleep(PAUSE_SECONDS)
        wanted, pieces = document.wanted, document.text.take()
        writing = asyncio.ensure_future(self.run_in_thread(lambda: document.file.write(pieces)))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The thread can't be stopped. Wait for it, so that its write does not end after a later one.
            await asyncio.wait({writing})
            raise
        except OSError as error:
            self.failures += 1
            log.warning("config file can't be written", path=document.file.path, reason=describe_os_error(error))
            waiting, document.waiters = document.waiters, []
            for _, waiter in waiting:
                if not waiter.done():
                    waiter.set_exception(
                        NotSavedError(f"{document.file.path} can't be written: {error.strerror or error}")
                    )
            return False
        self._written(document, wanted)
        return True

    @staticmethod
    def _written(document: _Document, wanted: int) -> None:
        assert wanted <= document.wanted, f"wrote mark {wanted} of {document.wanted}"
        document.written = max(document.written, wanted)
        waiting, document.waiters = document.waiters, []
        for needed, waiter in waiting:
            if needed > document.written:
                document.waiters.append((needed, waiter))
            elif not waiter.done():
                waiter.set_result(None)
