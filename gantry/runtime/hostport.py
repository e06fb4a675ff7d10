"""Hosts and ports in settings."""

import ipaddress
from typing import Final

PORT_MAX: Final = 65_535


def split_host_port(text: str, *, field: str) -> tuple[str, int]:
    """Return host and port of a text `HOST:PORT`. Brackets around an IPv6 address are removed.

    Args:
        text: The text. Port 0 is allowed.
        field: The name of the setting, for the error.

    Raises:
        ValueError: The text has another form.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > PORT_MAX:
        raise ValueError(f"{field}: {text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to a listener on this host. Names other than `localhost` are not resolved."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
