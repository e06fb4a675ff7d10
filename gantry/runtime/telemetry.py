"""Structured logs on stderr: one JSON object per line, or coloured text if stderr is a terminal."""

import sys
from typing import Any

import structlog

# The same list object for the life of the process. A logger keeps it after its first use, so a second call of
# `configure_logging` must change this list to affect all loggers.
_processors: list[Any] = []


def logger(name: str) -> Any:
    """Return the logger of a module. Its method `bind` adds more context."""
    return structlog.get_logger(module=name)


def configure_logging(*, service: str, as_json: bool | None = None) -> None:
    """Set the log format of the process. Each `__main__` calls this once."""
    if as_json is None:
        as_json = not sys.stderr.isatty()
    _processors[:] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(),
    ]
    structlog.configure(
        processors=_processors,
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
