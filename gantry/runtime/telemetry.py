"""Structured logs: one JSON object a line on stderr, or coloured text where stderr is a terminal."""

import sys
from typing import Any

import structlog

# One list for the life of the process: a logger that was used keeps it, and a second call changes it for all of them.
_processors: list[Any] = []


def logger(name: str) -> Any:
    """Return the logger of a module; bind more context with `.bind(...)`."""
    return structlog.get_logger(module=name)


def configure_logging(*, service: str, as_json: bool | None = None) -> None:
    """Set the process's log format; called once by each `__main__`."""
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
