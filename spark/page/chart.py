"""Charts: Vega-Lite specs drawn to SVG that is part of the page.

A picture's text does not shrink with the screen: each chart is drawn for a wide and for a narrow place, and the style
sheet shows the one that fits. Both are pictures with a title and a description to who does not see them, and the
numbers stand in a table underneath.
"""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final
from xml.etree import ElementTree as ET

import vl_convert

from spark.page.markup import Content, Html, el, visible
from spark.page.palette import GRID, INK, MUTED

WIDE: Final = 540
THIRD: Final = 350
NARROW: Final = 280
SMALL: Final = 300
"""Pixels: of a chart in two columns, in three, on a telephone, and of one that fits both."""

_SVG = "http://www.w3.org/2000/svg"
_CONFIG: Final[dict[str, Any]] = {
    "background": None,
    "font": "Arial, sans-serif",
    "padding": 0,
    "view": {"stroke": None},
    "text": {"color": INK, "fontSize": 12},
    "axis": {
        "labelColor": MUTED, "titleColor": MUTED, "labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal",
        "gridColor": GRID, "domainColor": MUTED, "tickColor": MUTED, "labelLimit": 200,
    },
}  # fmt: skip
# What assistive technology gets is the title and the description; what a browser does not need is left out.
_DROPPED = (
    "class",
    "role",
    "aria-roledescription",
    "aria-label",
    "aria-hidden",
    "pointer-events",
    "font-family",
    "version",
)

Spec = Callable[[int], dict[str, Any]]
"""Makes the Vega-Lite spec for a width in pixels."""


def prepare_drawing() -> None:
    """Load what draws charts: the first one takes a second longer than the others. Safe in any thread."""
    vl_convert.vegalite_to_svg({"mark": "point", "data": {"values": []}}, vl_version="6.4", allowed_base_urls=[])


class Drawer:
    """Draws the charts of one page, and counts them: ids must differ within it."""

    def __init__(self) -> None:
        self._ids = count(1)

    def figure(
        self,
        spec: Spec,
        *,
        title: str,
        description: str,
        columns: Sequence[str],
        rows: Sequence[Sequence[Content]],
        note: Content = None,
        widths: Sequence[int] = (WIDE, NARROW),
    ) -> Html:
        """Return a figure: caption, chart, note, and its numbers as a table.

        `widths` is the wide and the narrow one, or the one that does for both.
        """
        names = ("wide", "narrow") if len(widths) == 2 else ("both",)
        pictures = [
            self._picture(spec(width), title, description, shown=name)
            for name, width in zip(names, widths, strict=True)
        ]
        caption = el("figcaption", el("b", title), el("p", note, class_="note") if note else None)
        return el("figure", caption, *pictures, numbers(columns, rows), class_="small" if len(widths) == 1 else None)

    def _picture(self, spec: dict[str, Any], title: str, description: str, *, shown: str) -> Html:
        drawn = vl_convert.vegalite_to_svg({"config": _CONFIG, **spec}, vl_version="6.4", allowed_base_urls=[])
        root = ET.fromstring(drawn)  # noqa: S314 - drawn a line above, from a spec of ours.
        mark = f"c{next(self._ids)}"
        _strip(root, mark)
        root.attrib |= {"class": shown, "role": "img", "aria-labelledby": f"{mark}t {mark}d", "id": mark}
        root.attrib["style"] = f"max-width:{float(root.attrib.pop('width')) * 1.2:.0f}px"
        del root.attrib["height"]
        for at, (name, text) in enumerate((("title", title), ("desc", description))):
            said = ET.Element(f"{{{_SVG}}}{name}", {"id": f"{mark}{name[0]}"})
            said.text = visible(text)
            root.insert(at, said)
        ET.register_namespace("", _SVG)
        return Html(ET.tostring(root, encoding="unicode"))


def numbers(columns: Sequence[str], rows: Sequence[Sequence[Content]]) -> Html:
    """Return a chart's numbers as a table that opens."""
    head = el("tr", [el("th", column, scope="col") for column in columns])
    body = [el("tr", el("th", row[0], scope="row"), [el("td", cell) for cell in row[1:]]) for row in rows]
    table = el("table", el("thead", head), el("tbody", body))
    return el("details", el("summary", "The numbers"), el("div", table, class_="scroll"), class_="numbers")


def _strip(root: ET.Element, mark: str) -> None:
    for element in root.iter():
        for name in _DROPPED:
            element.attrib.pop(name, None)
        for name, value in element.attrib.items():
            # Clip paths: two charts must not find each other's.
            if name == "id":
                element.attrib[name] = mark + value
            elif "url(#" in value:
                element.attrib[name] = value.replace("url(#", f"url(#{mark}")
