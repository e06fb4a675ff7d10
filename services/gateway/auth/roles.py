"""Roles: what a user may do, as the rights that keys have.

| role | reads | changes |
|---|---|---|
| viewer | names, settings, offsets, lag, reports, messages | nothing |
| operator | the same | messages, topics, groups, offsets, transactions, jobs, reports, objectives |
| admin | the same, and keys, users, webhooks, the audit trail | everything |
"""

import enum
from typing import Final

from services.gateway.schemas.rights import ALL_RIGHTS, ConsumeRights, Rights


class Role(enum.StrEnum):
    """A role; each one may do all that the roles before it may do."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


_VIEWER: Final = Rights(consume=ConsumeRights(topics=("*",)), metrics=True)
_OPERATOR: Final = Rights(publish=("*",), consume=ConsumeRights(topics=("*",), groups=("*",)), metrics=True)
_RIGHTS: Final = {Role.VIEWER: _VIEWER, Role.OPERATOR: _OPERATOR, Role.ADMIN: ALL_RIGHTS}


def rights_of(role: Role) -> Rights:
    """Return the rights of a role."""
    return _RIGHTS[role]
