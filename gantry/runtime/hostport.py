"""Hosts and ports in settings."""

import ipaddress
from typing import Final

from gantry.runtime.digits import parse_digits

PORT_MAX: Final = 65_535


def split_host_port(text: str, *, field: str) -> tuple[str, int]:
    """Return host and port of a text `HOST:PORT`. Brackets around an IPv6 address are removed.

    Args:
        text: The text. Port 0 is allowed.
        field: The name of the setting, for the error.

    Raises:
        ValueError: The text has another form.
    """
    host, _, digits = text.rpartition(":")
    port = parse_digits(digits, PORT_MAX)
    if not host or port is None:
        raise ValueError(f"{field}: {text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), port


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to a listener on this host. Names other than `localhost` are not resolved."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
