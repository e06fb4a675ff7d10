"""Users and log-ins as requests give them."""

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

PASSWORD_LENGTH_MIN = 10
PASSWORD_LENGTH_MAX = 256

UserName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._@-]{0,63}\Z")]
NewPassword = Annotated[str, Meta(min_length=PASSWORD_LENGTH_MIN, max_length=PASSWORD_LENGTH_MAX)]
RoleName = Literal["viewer", "operator", "admin"]


class LogIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a session."""

    user: Annotated[str, Meta(min_length=1, max_length=255)]
    password: Annotated[str, Meta(min_length=1, max_length=PASSWORD_LENGTH_MAX)]


class PutUser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user to create or change; fields that are not given keep their value."""

    role: RoleName | UnsetType = UNSET
    password: NewPassword | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET


class ChangePassword(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of the caller's own password."""

    password: Annotated[str, Meta(min_length=1, max_length=PASSWORD_LENGTH_MAX)]
    new_password: NewPassword
