"""Decides whether to use the proxy from the environment (HTTP_PROXY, HTTPS_PROXY, NO_PROXY) for a gateway.

Loopback addresses never use it: `gantry up` serves on loopback, and a proxy on another machine would connect to its own
loopback.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit


def follows_proxies(url: str) -> bool:
    """Return whether the proxy applies to the host of a URL. The HTTP library handles the hosts in NO_PROXY."""
    try:
        host = (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return False  # This is not a URL; the connection attempt gives a better error.
    if host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return True
