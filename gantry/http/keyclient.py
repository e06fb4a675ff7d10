"""The methods of both clients for API keys."""

from typing import Any

from gantry.http import keycalls
from gantry.http.baseclient import AsyncBaseClient, BaseClient
from gantry.http.results import Key, KeyLimits, Rights


class KeyClient(BaseClient):
    """API keys."""

    def list_keys(self, *, revoked: bool = False) -> list[Key]:
        """Return the API keys without their secret parts; with `revoked`, revoked keys too."""
        return self._all_pages(lambda cursor: keycalls.list_keys(revoked=revoked, cursor=cursor))

    def create_key(
        self, name: str, rights: Rights, *, expires_at: str | None = None, limits: KeyLimits | None = None
    ) -> Key:
        """Create an API key. Only this answer contains the key itself."""
        return self.run(keycalls.create_key(name, rights, expires_at=expires_at, limits=limits))

    def change_key(self, key_id: str, **changes: Any) -> Key:
        """Change `name`, `expires_at` (None: never) or `limits`, which replaces all limits of the key."""
        return self.run(keycalls.change_key(key_id, changes))

    def rotate_key(self, key_id: str, *, overlap: str | None = None) -> Key:
        """Give an API key another secret; the present one stays valid for `overlap`, 24h by default."""
        return self.run(keycalls.rotate_key(key_id, overlap=overlap))

    def revoke_key(self, key_id: str) -> None:
        """Revoke an API key."""
        self.run(keycalls.revoke_key(key_id))


class AsyncKeyClient(AsyncBaseClient):
    """API keys."""

    async def list_keys(self, *, revoked: bool = False) -> list[Key]:
        """Return the API keys without their secret parts; with `revoked`, revoked keys too."""
        return await self._all_pages(lambda cursor: keycalls.list_keys(revoked=revoked, cursor=cursor))

    async def create_key(
        self, name: str, rights: Rights, *, expires_at: str | None = None, limits: KeyLimits | None = None
    ) -> Key:
        """Create an API key. Only this answer contains the key itself."""
        return await self.run(keycalls.create_key(name, rights, expires_at=expires_at, limits=limits))

    async def change_key(self, key_id: str, **changes: Any) -> Key:
        """Change `name`, `expires_at` (None: never) or `limits`, which replaces all limits of the key."""
        return await self.run(keycalls.change_key(key_id, changes))

    async def rotate_key(self, key_id: str, *, overlap: str | None = None) -> Key:
        """Give an API key another secret; the present one stays valid for `overlap`, 24h by default."""
        return await self.run(keycalls.rotate_key(key_id, overlap=overlap))

    async def revoke_key(self, key_id: str) -> None:
        """Revoke an API key."""
        await self.run(keycalls.revoke_key(key_id))
