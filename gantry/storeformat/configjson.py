"""Reading the JSON of `config/`: RocketMQ's writer leaves integer keys without quotes, `{0:8,1:7}`.

Source: docs/formats/config.md. A broker that finds a file empty, missing or broken reads its `.bak` instead.
"""

import json
import re
from typing import Any, NamedTuple

from gantry.runtime.files import FileSystem
from gantry.storeformat.errors import BrokenFileError

BACKUP_SUFFIX = ".bak"

# Texts are matched whole and so left alone; outside of them a number before a colon is a key.
_TEXT_OR_KEY = re.compile(r'"(?:[^"\\]|\\.)*+"|(?P<before>[{,]\s*+)(?P<key>-?\d++)(?=\s*+:)', re.DOTALL)


class ConfigFile(NamedTuple):
    """A configuration file's content and where it was read."""

    content: Any
    path: str
    problem: str | None
    """What is wrong with the file itself, where this is its backup."""


def parse_config(data: bytes, path: str = "config") -> Any:
    """Return what a configuration file holds; all keys are texts.

    Raises:
        BrokenFileError: It is empty or no JSON, even with integer keys allowed for.
    """
    try:
        text = data.decode("utf-8-sig")
        if not text.strip():
            raise BrokenFileError(path, "is empty")
        try:
            return json.loads(text)
        except ValueError:
            return json.loads(_TEXT_OR_KEY.sub(_quote, text))
    except (ValueError, RecursionError) as error:
        raise BrokenFileError(path, f"is not JSON: {error}") from None


def read_config(files: FileSystem, path: str) -> ConfigFile | None:
    """Return a configuration file's content, or its backup's; None where there is neither.

    Raises:
        BrokenFileError: The file is broken and there is no backup that is not.
    """
    problem: BrokenFileError | None = None
    for candidate in (path, path + BACKUP_SUFFIX):
        if not files.exists(candidate):
            continue
        try:
            content = parse_config(files.read(candidate), candidate)
        except BrokenFileError as error:
            problem = problem or error
        else:
            return ConfigFile(content, candidate, problem.reason if problem else None)
    if problem is not None:
        raise problem
    return None


def _quote(match: re.Match[str]) -> str:
    key = match["key"]
    return match[0] if key is None else f'{match["before"]}"{key}"'
