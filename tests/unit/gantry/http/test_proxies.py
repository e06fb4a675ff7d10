"""Whether requests to a gateway go through the environment's proxies."""

import pytest

from gantry.http.proxies import follows_proxies


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8080",
        "http://127.8.9.10",
        "http://[::1]:8080/",
        "http://localhost:8080",
        "http://LOCALHOST./",
        "ws://gateway.localhost/v1/stream",
        "http://[broken",
    ],
)
def test_this_machine_is_called_without_a_proxy(url: str) -> None:
    assert not follows_proxies(url)


@pytest.mark.parametrize(
    "url", ["http://gateway.example", "https://10.0.0.1:8080", "wss://[fd00::1]/v1/stream", "http://localhost.example"]
)
def test_other_machines_are_called_through_the_proxy(url: str) -> None:
    assert follows_proxies(url)
