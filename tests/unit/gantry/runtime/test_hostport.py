"""Hosts and ports in settings."""

import pytest

from gantry.runtime.hostport import is_loopback, split_host_port


def test_a_host_and_a_port_are_split_and_brackets_removed():
    assert split_host_port("127.0.0.1:0", field="listen") == ("127.0.0.1", 0)
    assert split_host_port("[::1]:65535", field="listen") == ("::1", 65_535)


@pytest.mark.parametrize("text", ["", "9876", ":9876", "host:", "host:x", "host:-1", "host:65536", "host:٣"])
def test_another_form_is_an_error_that_names_the_setting(text):
    with pytest.raises(ValueError, match=r"listen: .* is not HOST:PORT"):
        split_host_port(text, field="listen")


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("", False)],
)
def test_loopback(host, expected):
    assert is_loopback(host) is expected
