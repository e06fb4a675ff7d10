"""Whether the environment's proxies are for a gateway."""

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
def test_our_own_machine_is_asked_directly(url: str) -> None:
    assert not follows_proxies(url)


@pytest.mark.parametrize(
    "url", ["http://gateway.example", "https://10.0.0.1:8080", "wss://[fd00::1]/v1/stream", "http://localhost.example"]
)
def test_others_are_not(url: str) -> None:
    assert follows_proxies(url)
