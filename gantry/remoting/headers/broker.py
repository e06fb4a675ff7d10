"""A broker's own settings and numbers: 26 and 315."""

from gantry.remoting.headers.fields import Header


class GetBrokerConfigResponseHeader(Header):
    """26: `version` is the settings' DataVersion as JSON."""

    version: str


class ViewBrokerStatsDataHeader(Header):
    """315: one counter's last minute, hour and day."""

    stats_name: str
    stats_key: str
