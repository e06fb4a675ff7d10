"""Bar charts: the name and the value are above each bar, so that long names do not squeeze the bars on a phone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from spark.page.chart import Spec
from spark.page.markup import visible
from spark.page.palette import ACCENT, GRID, INK, MUTED

ROW: Final = 34
BAR: Final = 9


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of the chart. If `value` is None, the row has no bar, and `shown` says why."""

    label: str
    value: float | None
    value_text: str
    colour: str = ACCENT


def bars(items: Sequence[Bar]) -> Spec:
    """Return the spec of bars that share one scale, which starts at 0."""
    top = max((item.value for item in items if item.value is not None), default=0) or 1
    values = [
        {
            "at": at,
            "label": visible(item.label),
            "value": item.value,
            "share": 0 if item.value is None else item.value / top,
            "value_text": visible(item.value_text),
            "colour": item.colour,
        }
        for at, item in enumerate(items)
    ]

    def spec(width: int) -> dict[str, Any]:
        # Numbers are short. The names get the rest of the width.
        text_width = max((len(item.value_text) for item in items), default=0) * 6.8
        label_limit = max(width - text_width - 16, width * 0.35)
        rows = {"field": "at", "type": "ordinal", "axis": None}
        colour = {"field": "colour", "type": "nominal", "scale": None}
        extent = {"field": "share", "type": "quantitative", "axis": None, "scale": {"domain": [0, 1]}}
        text = {"type": "text", "baseline": "bottom", "yOffset": -1}
        return {
            "data": {"values": values},
            "width": width,
            "height": {"step": ROW},
            "encoding": {"y": rows},
            "layer": [
                {
                    "mark": {"type": "bar", "height": BAR, "yOffset": 7, "color": GRID},
                    "encoding": {"x": {"value": 0}, "x2": {"value": width}},
                },
                {
                    "mark": {"type": "bar", "height": BAR, "yOffset": 7, "minBandSize": 2},
                    "encoding": {"x": extent, "color": colour},
                },
                {
                    "mark": {**text, "align": "left", "limit": label_limit, "color": INK},
                    "encoding": {"x": {"value": 0}, "text": {"field": "label"}},
                },
                {
                    "mark": {**text, "align": "right", "color": MUTED},
                    "encoding": {"x": {"value": width}, "text": {"field": "value_text"}},
                },
            ],
        }

    return spec
