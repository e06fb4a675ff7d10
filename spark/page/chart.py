"""Draws charts from Vega-Lite specs, as SVG that is part of the page.

The text of a chart must not shrink with the screen. So each chart is drawn for a wide and for a narrow place, and the
style sheet shows the one that fits. For readers who can't see them, both have a title and a description, and a table
below the chart has the numbers.
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
"""Widths in pixels: of a chart in two columns, in three columns, on a phone, and of a chart that fits all screens."""

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
# Attributes that a browser does not need. Assistive technology gets the title and the description instead.
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
"""A function that makes the Vega-Lite spec for a width in pixels."""


def prepare_drawing() -> None:
    """Load the drawing library, because the first chart takes a second longer than the others. Safe in any thread."""
    vl_convert.vegalite_to_svg({"mark": "point", "data": {"values": []}}, vl_version="6.4", allowed_base_urls=[])


class ChartRenderer:
    """Draws the charts of one page, and numbers them, because ids must differ within a page."""

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
        """Return a figure: caption, note, chart, and its numbers as a table.

        `widths` has the wide and the narrow width, or one width for both.
        """
        names = ("wide", "narrow") if len(widths) == 2 else ("both",)
        pictures = [
            self._picture(spec(width), title, description, class_=name)
            for name, width in zip(names, widths, strict=True)
        ]
        caption = el("figcaption", el("b", title), el("p", note, class_="note") if note else None)
        return el("figure", caption, *pictures, numbers(columns, rows), class_="small" if len(widths) == 1 else None)

    def _picture(self, spec: dict[str, Any], title: str, description: str, *, class_: str) -> Html:
        drawn = vl_convert.vegalite_to_svg({"config": _CONFIG, **spec}, vl_version="6.4", allowed_base_urls=[])
        root = ET.fromstring(drawn)  # noqa: S314 - our own spec, drawn by the line above.
        mark = f"c{next(self._ids)}"
        _strip(root, mark)
        root.attrib |= {"class": class_, "role": "img", "aria-labelledby": f"{mark}t {mark}d", "id": mark}
        root.attrib["style"] = f"max-width:{float(root.attrib.pop('width')) * 1.2:.0f}px"
        del root.attrib["height"]
        for at, (name, text) in enumerate((("title", title), ("desc", description))):
            element = ET.Element(f"{{{_SVG}}}{name}", {"id": f"{mark}{name[0]}"})
            element.text = visible(text)
            root.insert(at, element)
        ET.register_namespace("", _SVG)
        return Html(ET.tostring(root, encoding="unicode"))


def numbers(columns: Sequence[str], rows: Sequence[Sequence[Content]]) -> Html:
    """Return the numbers of a chart as a table that the reader can open."""
    head = el("tr", [el("th", column, scope="col") for column in columns])
    body = [el("tr", el("th", row[0], scope="row"), [el("td", cell) for cell in row[1:]]) for row in rows]
    table = el("table", el("thead", head), el("tbody", body))
    return el("details", el("summary", "The numbers"), el("div", table, class_="scroll"), class_="numbers")


def _strip(root: ET.Element, mark: str) -> None:
    for element in root.iter():
        for name in _DROPPED:
            element.attrib.pop(name, None)
        for name, value in element.attrib.items():
            # Ids of clip paths get the chart's prefix, so that no chart uses the clip path of another one.
            if name == "id":
                element.attrib[name] = mark + value
            elif "url(#" in value:
                element.attrib[name] = value.replace("url(#", f"url(#{mark}")
