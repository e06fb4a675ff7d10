"""Each chart is drawn once: many tests show the same rows, and drawing takes most of their time."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import vl_convert


@pytest.fixture(scope="session", autouse=True)
def drawn_once() -> Iterator[None]:
    draw = vl_convert.vegalite_to_svg
    drawn: dict[str, str] = {}

    def draw_once(spec: dict[str, Any], **options: Any) -> str:
        key = json.dumps([spec, options])
        if key not in drawn:
            drawn[key] = draw(spec, **options)
        return drawn[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vl_convert, "vegalite_to_svg", draw_once)
        yield
