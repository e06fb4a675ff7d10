"""The settings and statistics of a broker: 26 and 315."""

from gantry.remoting.headers.fields import Header


class GetBrokerConfigResponseHeader(Header):
    """The response to 26. `version` is the DataVersion of the settings as JSON."""

    version: str


class ViewBrokerStatsDataHeader(Header):
    """315: get the values of a counter for the last minute, hour and day."""

    stats_name: str
    stats_key: str


class StatisticsHeader(Header):
    """900033: get the traffic of a topic, of a group, or of a group in a topic."""

    topic: str | None = None
    consumer_group: str | None = None
