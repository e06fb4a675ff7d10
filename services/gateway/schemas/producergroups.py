"""The settings of producer groups: where an open transaction of the group is asked about."""

from collections.abc import Sequence
from typing import Final

import msgspec

from gantry.model.errors import NO_VALUE, InvalidValueError
from services.gateway.schemas.webhooks import Network, check_url

SECRET_LENGTH_MIN: Final = 16
SECRET_LENGTH_MAX: Final = 256


class ProducerGroupSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request; without a secret, the group keeps the one that it has."""

    check_url: str | None
    check_secret: str | None = None

    def check(self, networks: Sequence[Network]) -> None:
        """Raise InvalidValueError if a value is not valid. `networks` are those of `webhook_private_networks`."""
        if self.check_url is None:
            if self.check_secret is not None:
                raise InvalidValueError("/check_secret", NO_VALUE, "is of no use without check_url")
            return
        try:
            check_url(self.check_url, networks)
        except InvalidValueError as error:
            raise InvalidValueError("/check_url", error.value, error.reason) from None
        if not networks and not self.check_url.startswith("https:"):
            raise InvalidValueError("/check_url", self.check_url, "is not https://HOST/PATH")
        secret = self.check_secret
        if secret is None:
            return
        if not SECRET_LENGTH_MIN <= len(secret) <= SECRET_LENGTH_MAX or not (secret.isascii() and secret.isprintable()):
            reason = f"has not {SECRET_LENGTH_MIN} to {SECRET_LENGTH_MAX} printable ASCII characters"
            raise InvalidValueError("/check_secret", NO_VALUE, reason)
