"""API keys in answers."""

from datetime import UTC, datetime

import msgspec

from services.gateway.db.models import ApiKey
from services.gateway.usecases.keys import CreatedKey
from services.gateway.views.keys import created_key_view, key_view

AT = datetime(2026, 11, 21, 9, 30, 0, 123_000, tzinfo=UTC)
KEY = ApiKey(id="key-1", sha256=bytes(32), name="n", rights={"publish": ["A*"]}, created_at=AT, expires_at=AT)
KEY.limits = {"in_flight": 7}
SHOWN = (
    '"id":"key-1","name":"n","rights":{"publish":["A*"],"consume":{"topics":[],"groups":[]},"admin":false,'
    '"metrics":false},"limits":{"messages_per_s":null,"bytes_per_s":null,"connections":null,"in_flight":7},'
    '"created_at":"2026-11-21T09:30:00.123Z","expires_at":"2026-11-21T09:30:00.123Z","rotated_at":null,'
    '"previous_valid_until":null,"revoked_at":null,"last_used_at":null'
)


def test_a_key_is_shown_with_all_rights_and_without_its_secret():
    assert msgspec.json.encode(key_view(KEY)).decode() == f"{{{SHOWN}}}"


def test_only_a_new_key_shows_its_secret():
    created = CreatedKey(KEY, "gk_secret")
    assert msgspec.json.encode(created_key_view(created)).decode() == f'{{{SHOWN},"key":"gk_secret"}}'
    assert "gk_secret" not in repr(created)
