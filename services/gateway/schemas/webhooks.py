"""Webhooks as requests give them, their addresses and secrets.

Secrets are those of Standard Webhooks: `whsec_` and the base64 of 24 to 64 bytes, which sign each delivery.
"""

import base64
import binascii
import ipaddress
from collections.abc import Sequence
from typing import Annotated, Any, Final
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gantry.model.errors import NO_VALUE, InvalidValueError
from gantry.model.lag import VERDICTS
from gantry.runtime.rng import secret_bytes
from services.gateway.schemas.rights import Pattern

PATTERNS_MAX: Final = 20
"""Limit for one webhook: each event is matched with all webhooks' patterns between two turns of the event loop."""
URL_LENGTH_MAX: Final = 2_000
SECRET_PREFIX: Final = "whsec_"  # noqa: S105 - the prefix of all secrets, not a secret.
_SECRET_BYTES_MIN: Final = 24
_SECRET_BYTES_MAX: Final = 64

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

GroupPatterns = Annotated[tuple[Pattern, ...], Meta(min_length=1, max_length=PATTERNS_MAX)]
Verdicts = Annotated[tuple[str, ...], Meta(max_length=len(VERDICTS))]

# These networks carry an IPv4 address in the last four bytes.
_CARRIERS: Final = (
    ipaddress.IPv6Network("64:ff9b::/96"),  # NAT64 (RFC 6052).
    ipaddress.IPv6Network("::/96"),  # IPv4-compatible (RFC 4291).
    ipaddress.IPv6Network("::ffff:0:0:0/96"),  # IPv4-translated (RFC 2765).
)
# NAT64 inside a network (RFC 8215): the operator chooses the bytes that carry the address. Python calls it public
# before 3.11.10 and 3.12.4.
_LOCAL_NAT64: Final = ipaddress.IPv6Network("64:ff9b:1::/48")


class NewWebhook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a new webhook; without a secret it gets a generated one."""

    url: str
    groups: GroupPatterns = ("*",)
    verdicts: Verdicts = ()
    enabled: bool = True
    secret: str | None = None


class WebhookChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of a webhook; fields that it does not name stay as they are."""

    url: str | UnsetType = UNSET
    groups: GroupPatterns | UnsetType = UNSET
    verdicts: Verdicts | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET
    secret: str | UnsetType = UNSET


def wanted_columns(wanted: NewWebhook | WebhookChange, networks: Sequence[Network]) -> dict[str, Any]:
    """Return the columns that a request names. Raises InvalidValueError if a value is not valid."""
    given = {name: value for name, value in msgspec.structs.asdict(wanted).items() if value is not UNSET}
    if "url" in given:
        check_url(given["url"], networks)
    for at, verdict in enumerate(given.get("verdicts", ())):
        if verdict not in VERDICTS:
            raise InvalidValueError(f"/verdicts/{at}", verdict, f"is not one of {', '.join(VERDICTS)}")
    if given.get("secret") is not None:
        key_of(given["secret"])
    elif "secret" in given:
        given["secret"] = make_secret()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}


def make_secret() -> str:
    """Return a new secret."""
    return SECRET_PREFIX + base64.b64encode(secret_bytes(32)).decode()


def key_of(secret: str) -> bytes:
    """Return the bytes of a secret. Raises InvalidValueError, which does not show it."""
    try:
        key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(SECRET_PREFIX) or not _SECRET_BYTES_MIN <= len(key) <= _SECRET_BYTES_MAX:
        reason = f"is not {SECRET_PREFIX} and the base64 of {_SECRET_BYTES_MIN} to {_SECRET_BYTES_MAX} bytes"
        raise InvalidValueError("/secret", NO_VALUE, reason)
    return key


def check_url(url: str, networks: Sequence[Network]) -> None:
    """Raise InvalidValueError if the URL is not valid, or its address is not allowed.

    A host name is looked up, and its addresses are checked, at each delivery.
    """
    parts = _split(url)
    try:
        address = ipaddress.ip_address((parts.hostname or "").partition("%")[0])
    except ValueError:
        return
    if not is_allowed(address, networks):
        raise InvalidValueError("/url", url, "is an address that is not public (setting webhook_private_networks)")


def _split(url: str) -> SplitResult:
    reason = None
    try:
        parts = urlsplit(url)
        if parts.port == 0:
            reason = "has port 0"
    except ValueError as error:
        raise InvalidValueError("/url", url, f"is not a valid URL: {error}") from None
    if not (url.isascii() and url.isprintable() and " " not in url):
        reason = "contains characters other than printable ASCII"
    elif len(url) > URL_LENGTH_MAX:
        reason = f"is longer than {URL_LENGTH_MAX:,} characters"
    elif parts.scheme not in {"https", "http"} or not parts.hostname:
        reason = "is not https://HOST/PATH or http://HOST/PATH"
    elif parts.username is not None or parts.password is not None:
        # Lists, and logs on the way, would show it.
        reason = "contains credentials: leave them out, each delivery is signed"
    elif parts.fragment:
        reason = "has a fragment, which is never sent"
    if reason is not None:
        raise InvalidValueError("/url", url if parts.password is None else NO_VALUE, reason)
    return parts


def is_allowed(address: Address, networks: Sequence[Network]) -> bool:
    """Return whether an address is allowed: it is public, or in one of the networks of the setting.

    An address that carries another one, such as that of a tunnel or a translator, is as public as the carried one.
    """
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return is_allowed(address.ipv4_mapped, networks)
    if any(address.version == network.version and address in network for network in networks):
        return True
    is_public = address.is_global and not address.is_multicast
    if isinstance(address, ipaddress.IPv4Address):
        return is_public
    if address.is_site_local or address in _LOCAL_NAT64:
        return False
    return is_public and all(is_allowed(each, networks) for each in _embedded_ipv4(address))


def _embedded_ipv4(address: ipaddress.IPv6Address) -> tuple[ipaddress.IPv4Address, ...]:
    if any(address in network for network in _CARRIERS):
        return (ipaddress.IPv4Address(int(address) & 0xFFFFFFFF),)
    if address.teredo is not None:
        return address.teredo
    return () if address.sixtofour is None else (address.sixtofour,)
