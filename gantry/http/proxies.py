"""Whether a gateway is reached through the proxy that the environment names (HTTP_PROXY, HTTPS_PROXY, NO_PROXY).

Our own machine never is: `gantry up` serves on loopback, and a proxy elsewhere would look for it on its own.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit


def follows_proxies(url: str) -> bool:
    """Say whether the environment's proxies are for the host of a URL; those in NO_PROXY are left to the HTTP library."""
    try:
        host = (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return False  # It is no URL, which whoever connects says better.
    if host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not ip_address(host).is_loopback
    except ValueError:
        return True
