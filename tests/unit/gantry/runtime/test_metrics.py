"""The port that serves the metrics."""

import pytest

from gantry.runtime.metrics import choose_metrics_port


@pytest.mark.parametrize(
    ("text", "listen_port", "port"),
    [("auto", 9876, 9883), ("auto", 0, 0), ("off", 9876, None), ("0", 9876, 0), ("9000", 9876, 9000)],
)
def test_the_port_is_given_or_derived_from_the_services_port(text: str, listen_port: int, port: int | None):
    assert choose_metrics_port(text, listen_port=listen_port) == port


@pytest.mark.parametrize(("text", "listen_port"), [("on", 1), ("-1", 1), ("65536", 1), ("", 1), ("auto", 65_530)])
def test_other_values_are_refused_by_name(text: str, listen_port: int):
    with pytest.raises(ValueError, match="metrics_port"):
        choose_metrics_port(text, listen_port=listen_port)
