"""Makes the specs of lines over time: lag with its forecasts, time behind, and rates in and out."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from spark.page.chart import NARROW, Spec
from spark.page.palette import ACCENT, MUTED, SECOND
from spark.page.series import Forecast, Point

HEIGHT: Final = 150
_DAY = timedelta(days=1)
_CLOCK_STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400)
_CLOCK: Final = (
    "datum.value === 0 ? '0' : datum.value % 86400 === 0 ? datum.value / 86400 + ' d' : datum.value % 3600 === 0 ?"
    " datum.value / 3600 + ' h' : datum.value % 60 === 0 ? datum.value / 60 + ' min' : datum.value + ' s'"
)
_SHORT: Final = "datum.value === 0 ? '0' : format(datum.value, '~s')"


def lag_lines(
    points: Sequence[Point],
    *,
    since: datetime,
    until: datetime,
    forecast: Forecast | None,
    band: Sequence[tuple[datetime, float, float]] = (),
) -> Spec:
    """Return the spec of lag over time: solid for samples, dashed for the forecast, shaded for the expected drain."""
    end = max([until, *(at for at, _, _ in band)])

    def spec(width: int) -> dict[str, Any]:
        layers = [
            _layer({"type": "area", "color": ACCENT, "opacity": 0.12, **_GAPS}, _points(points), "lag"),
            _layer({"type": "line", "color": ACCENT, "strokeWidth": 2, **_GAPS}, _points(points), "lag"),
            # A single sample between two gaps makes no line, so it is drawn as a point.
            _layer(
                {"type": "point", "color": ACCENT, "filled": True, "size": 18}, _points(_isolated_points(points)), "lag"
            ),
        ]
        if band:
            edges = [{"at": _ms(at), "low": low, "high": high} for at, low, high in band]
            layers.append(
                {
                    "data": {"values": edges},
                    "mark": {"type": "area", "color": SECOND, "opacity": 0.25},
                    "encoding": {"x": _x_axis(since, end, width), "y": _y_axis("low"), "y2": {"field": "high"}},
                }
            )
            now = {"data": {"values": [{"at": _ms(band[0][0])}]}, "mark": {"type": "rule", "color": MUTED}}
            layers.append({**now, "encoding": {"x": _x_axis(since, end, width)}})
        if forecast is not None:
            line: list[Point] = [(forecast.made_at, forecast.start), (forecast.until, forecast.expected)]
            dashed = {"type": "line", "color": SECOND, "strokeWidth": 2, "strokeDash": [5, 4]}
            layers.append(_layer(dashed, _points(line), "lag"))
            diamond = {"type": "point", "shape": "diamond", "color": SECOND, "size": 60}
            layers.append(_layer(diamond, _points(line[1:]), "lag"))
        for layer in layers:
            layer["encoding"]["x"] = _x_axis(since, end, width)
        return {"width": width - 56, "height": HEIGHT, "autosize": {"type": "pad"}, "layer": layers}

    return spec


def behind_lines(points: Sequence[Point], *, since: datetime, until: datetime) -> Spec:
    """Return the spec of time behind over time, in seconds."""
    top = max((waited for _, waited in points if waited is not None), default=0.0)
    y = _y_axis("lag")
    # Ticks at round times, such as 1 h, and not at round numbers of seconds, such as 5,000 s.
    step = next((step for step in _CLOCK_STEPS if top <= step * 5), _CLOCK_STEPS[-1])
    every = max(step, step * (round(top / step) // 5))
    y["axis"] |= {"labelExpr": _CLOCK, "values": [every * at for at in range(round(top // every) + 2)]}
    y["scale"] = {"domainMin": 0, "domainMax": every * (top // every + 1), "nice": False}

    def spec(width: int) -> dict[str, Any]:
        layers = [
            _layer({"type": "area", "color": SECOND, "opacity": 0.12, **_GAPS}, _points(points), "lag"),
            _layer({"type": "line", "color": SECOND, "strokeWidth": 2, **_GAPS}, _points(points), "lag"),
            _layer(
                {"type": "point", "color": SECOND, "filled": True, "size": 18}, _points(_isolated_points(points)), "lag"
            ),
        ]
        for layer in layers:
            layer["encoding"] = {"x": _x_axis(since, until, width), "y": y}
        return {"width": width - 56, "height": HEIGHT, "autosize": {"type": "pad"}, "layer": layers}

    return spec


def in_and_out(
    into: Sequence[Point], out: Sequence[Point], peaks: Sequence[Point], *, since: datetime, until: datetime
) -> Spec:
    """Return the spec of rates in (solid) and out (dashed), with ticks up to the known peaks of the rate in."""
    tops = dict(peaks)
    band = [
        {"at": _ms(at), "low": mean, "high": peak}
        for at, mean in into
        if mean is not None and (peak := tops.get(at)) is not None
    ]

    def spec(width: int) -> dict[str, Any]:
        layers = [
            _layer({"type": "line", "color": ACCENT, "strokeWidth": 2, **_GAPS}, _points(into), "lag"),
            _layer(
                {"type": "line", "color": SECOND, "strokeWidth": 2, "strokeDash": [5, 3], **_GAPS}, _points(out), "lag"
            ),
            _layer(
                {"type": "point", "color": ACCENT, "filled": True, "size": 18}, _points(_isolated_points(into)), "lag"
            ),
            _layer({"type": "point", "color": SECOND, "size": 26}, _points(_isolated_points(out)), "lag"),
        ]
        if band:
            # Ticks, not an area: a peak says nothing about the time between two buckets.
            mark = {"type": "rule", "color": ACCENT, "opacity": 0.35, "strokeWidth": 2}
            up = {"y": _y_axis("low"), "y2": {"field": "high"}}
            layers.insert(0, {"data": {"values": band}, "mark": mark, "encoding": up})
        for layer in layers:
            layer["encoding"]["x"] = _x_axis(since, until, width)
        return {"width": width - 56, "height": HEIGHT, "layer": layers}

    return spec


_GAPS: Final = {"invalid": "break-paths-show-path-domains"}


def _layer(mark: dict[str, Any], values: list[dict[str, Any]], field: str) -> dict[str, Any]:
    return {"data": {"values": values}, "mark": mark, "encoding": {"y": _y_axis(field)}}


def _points(points: Sequence[Point]) -> list[dict[str, Any]]:
    return [{"at": _ms(at), "lag": lag} for at, lag in points]


def _isolated_points(points: Sequence[Point]) -> list[Point]:
    known = [False, *(lag is not None for _, lag in points), False]
    return [point for index, point in enumerate(points) if known[index : index + 3] == [False, True, False]]


def _x_axis(since: datetime, until: datetime, width: int) -> dict[str, Any]:
    length = until - since
    pattern = "%b %d" if length > 3 * _DAY else "%b %d %H:%M" if length > 1.5 * _DAY else "%H:%M"
    ticks = 3 if width <= NARROW else 6
    if length < timedelta(minutes=5):
        pattern, ticks = "%H:%M:%S", ticks - 1
    axis = {
        "title": None, "format": pattern, "tickCount": ticks, "grid": False, "labelOverlap": "greedy", "labelFlush": False,
    }  # fmt: skip
    domain = [_ms(since), _ms(until if until > since else since + timedelta(minutes=1))]
    return {"field": "at", "type": "temporal", "scale": {"type": "utc", "domain": domain}, "axis": axis}


def _y_axis(field: str) -> dict[str, Any]:
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
