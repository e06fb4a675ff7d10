"""Lines over time: lag with its forecasts, and what went in and out."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from spark.page.chart import NARROW, Spec
from spark.page.palette import ACCENT, MUTED, SECOND
from spark.page.series import Forecast, Point

HEIGHT: Final = 150
_DAY = timedelta(days=1)
_SHORT: Final = "datum.value === 0 ? '0' : format(datum.value, '~s')"


def lag_lines(
    points: Sequence[Point],
    *,
    since: datetime,
    until: datetime,
    foretold: Forecast | None,
    band: Sequence[tuple[datetime, float, float]] = (),
) -> Spec:
    """Return the spec of lag over time: solid as it was, dashed as foretold, shaded as it is expected to go on."""
    end = max([until, *(at for at, _, _ in band)])

    def spec(width: int) -> dict[str, Any]:
        layers = [
            _layer({"type": "area", "color": ACCENT, "opacity": 0.12, **_GAPS}, _points(points), "lag"),
            _layer({"type": "line", "color": ACCENT, "strokeWidth": 2, **_GAPS}, _points(points), "lag"),
            # What stands alone between two holes is no line.
            _layer({"type": "point", "color": ACCENT, "filled": True, "size": 18}, _points(_alone(points)), "lag"),
        ]
        if band:
            edges = [{"at": _ms(at), "low": low, "high": high} for at, low, high in band]
            layers.append(
                {
                    "data": {"values": edges},
                    "mark": {"type": "area", "color": SECOND, "opacity": 0.25},
                    "encoding": {"x": _x(since, end, width), "y": _y("low"), "y2": {"field": "high"}},
                }
            )
            now = {"data": {"values": [{"at": _ms(until)}]}, "mark": {"type": "rule", "color": MUTED}}
            layers.append({**now, "encoding": {"x": _x(since, end, width)}})
        if foretold is not None:
            line: list[Point] = [(foretold.made_at, foretold.start), (foretold.until, foretold.expected)]
            dashed = {"type": "line", "color": SECOND, "strokeWidth": 2, "strokeDash": [5, 4]}
            layers.append(_layer(dashed, _points(line), "lag"))
            diamond = {"type": "point", "shape": "diamond", "color": SECOND, "size": 60}
            layers.append(_layer(diamond, _points(line[1:]), "lag"))
        for layer in layers:
            layer["encoding"]["x"] = _x(since, end, width)
        return {"width": width - 56, "height": HEIGHT, "autosize": {"type": "pad"}, "layer": layers}

    return spec


def in_and_out(into: Sequence[Point], out: Sequence[Point], *, since: datetime, until: datetime) -> Spec:
    """Return the spec of messages that came in (solid) and went out (dashed)."""

    def spec(width: int) -> dict[str, Any]:
        layers = [
            _layer({"type": "line", "color": ACCENT, "strokeWidth": 2, **_GAPS}, _points(into), "lag"),
            _layer(
                {"type": "line", "color": SECOND, "strokeWidth": 2, "strokeDash": [5, 3], **_GAPS}, _points(out), "lag"
            ),
            _layer({"type": "point", "color": ACCENT, "filled": True, "size": 18}, _points(_alone(into)), "lag"),
            _layer({"type": "point", "color": SECOND, "size": 26}, _points(_alone(out)), "lag"),
        ]
        for layer in layers:
            layer["encoding"]["x"] = _x(since, until, width)
        return {"width": width - 56, "height": HEIGHT, "layer": layers}

    return spec


_GAPS: Final = {"invalid": "break-paths-show-path-domains"}


def _layer(mark: dict[str, Any], values: list[dict[str, Any]], field: str) -> dict[str, Any]:
    return {"data": {"values": values}, "mark": mark, "encoding": {"y": _y(field)}}


def _points(points: Sequence[Point]) -> list[dict[str, Any]]:
    return [{"at": _ms(at), "lag": lag} for at, lag in points]


def _alone(points: Sequence[Point]) -> list[Point]:
    known = [False, *(lag is not None for _, lag in points), False]
    return [point for index, point in enumerate(points) if known[index : index + 3] == [False, True, False]]


def _x(since: datetime, until: datetime, width: int) -> dict[str, Any]:
    length = until - since
    pattern = "%b %d" if length > 3 * _DAY else "%b %d %H:%M" if length > _DAY else "%H:%M"
    ticks = 3 if width <= NARROW else 6
    if length < timedelta(minutes=5):
        pattern, ticks = "%H:%M:%S", ticks - 1
    axis = {
        "title": None, "format": pattern, "tickCount": ticks, "grid": False, "labelOverlap": "greedy", "labelFlush": False,
    }  # fmt: skip
    domain = [_ms(since), _ms(until if until > since else since + timedelta(minutes=1))]
    return {"field": "at", "type": "temporal", "scale": {"type": "utc", "domain": domain}, "axis": axis}


def _y(field: str) -> dict[str, Any]:
    axis = {
        "title": None,
        "labelExpr": _SHORT,
        "tickCount": 4,
        "tickMinStep": 1,
        "domain": False,
        "ticks": False,
        "minExtent": 44,
        "maxExtent": 44,
    }
    return {"field": field, "type": "quantitative", "scale": {"domainMin": 0, "nice": True}, "axis": axis}


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1_000)
