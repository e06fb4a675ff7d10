"""Groups of addresses that count as one, for every limit by address."""

import ipaddress
from functools import lru_cache
from typing import Final

# One customer has a whole /64 of IPv6 addresses.
_IPV6_PREFIX_BITS: Final = 64


@lru_cache(maxsize=1_024)
def address_group(host: str) -> str:
    """Return the group of an address: the IPv4 address itself, or the /64 network of an IPv6 address."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, _IPV6_PREFIX_BITS), strict=False))
