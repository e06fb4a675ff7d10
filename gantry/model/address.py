"""Network addresses in the format of records: the IP address in 4 or 16 bytes, and the port in 4 bytes."""

import struct
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple, Self

from gantry.model.errors import InvalidMessageError
from gantry.runtime.digits import parse_digits

HOST_V4_BYTES: Final = 8
HOST_V6_BYTES: Final = 20
PORT_MAX: Final = 65_535

# The ports of born hosts change often. A cache of this size saves nearly all conversions of a pull.
_CACHED_MAX = 4096
_PORT = struct.Struct(">I")


class Address(NamedTuple):
    """An IP address and a port. `str()` returns `ip:port`, with brackets around an IPv6 address."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"

    @property
    def is_v6(self) -> bool:
        """Whether the address is an IPv6 address."""
        return ":" in self.ip

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the address in a text `ip:port` or `[ip]:port`.

        Raises:
            InvalidMessageError: The text has another form.
        """
        ip, _, digits = text.rpartition(":")
        if ip.startswith("[") and ip.endswith("]"):
            ip = ip[1:-1]
        port = parse_digits(digits, PORT_MAX)
        if port is None:
            raise InvalidMessageError("address", text, "is not ip:port")
        try:
            return cls(str(ip_address(ip)), port)
        except ValueError:
            raise InvalidMessageError("address", text, "is not ip:port") from None


def pack_ip(ip: str) -> bytes:
    """Return an IP address as 4 or 16 bytes.

    Raises:
        InvalidMessageError: The text is not an IP address.
    """
    try:
        return IPv6Address(ip).packed if ":" in ip else IPv4Address(ip).packed
    except AddressValueError:
        raise InvalidMessageError("ip", ip, "is not an IP address") from None


@lru_cache(maxsize=_CACHED_MAX)
def pack_host(address: Address) -> bytes:
    """Return the address in the format of a record, 8 or 20 bytes.

    Raises:
        InvalidMessageError: `ip` is not an IP address (host names are not resolved), or the port is out of range.
    """
    if not 0 <= address.port <= PORT_MAX:
        raise InvalidMessageError("port", address.port, f"is not within 0…{PORT_MAX}")
    return pack_ip(address.ip) + _PORT.pack(address.port)


@lru_cache(maxsize=_CACHED_MAX)
def unpack_host(data: bytes) -> Address:
    """Return the address that 8 or 20 bytes contain. The port is not checked, so it may be out of range."""
    assert len(data) in (HOST_V4_BYTES, HOST_V6_BYTES), f"{len(data)} bytes of host"
    ip = data[:-4]
    text = f"{ip[0]}.{ip[1]}.{ip[2]}.{ip[3]}" if len(ip) == 4 else str(IPv6Address(ip))
    return Address(text, _PORT.unpack_from(data, len(ip))[0])
