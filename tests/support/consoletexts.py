"""The texts of the console in a language, so that a test finds what a reader of that language sees."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

_FOLDER: Final = Path(__file__).resolve().parents[2] / "web-console" / "src" / "i18n"


class ConsoleTexts:
    """Finds texts by their key, as the sources of the console name them: `topics:create.open`."""

    def __init__(self, language: str) -> None:
        self.language = language

    def __call__(self, key: str, /, *, count: int | None = None, **values: object) -> str:
        """Return a text; `values` fill its gaps, and `count` chooses its plural form."""
        feature, _, name = key.partition(":")
        found: Any = _texts(self.language, feature)
        *parents, last = name.split(".")
        for parent in parents:
            found = found[parent]
        text: str = found[last] if count is None else found[f"{last}_{'one' if count == 1 else 'other'}"]
        filled = {"count": count, **values}
        return re.sub(r"\{\{(\w+)\}\}", lambda gap: str(filled[gap[1]]), text)


@cache
def _texts(language: str, feature: str) -> dict[str, Any]:
    texts: dict[str, Any] = json.loads((_FOLDER / language / f"{feature}.json").read_text(encoding="utf-8"))
    return texts
