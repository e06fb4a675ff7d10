"""The key that signs receipts. All gateways share it, and it survives the restart of everything.

The key is a row in Postgres, which the first gateway inserts. Each gateway keeps a copy in a file of mode 0600 beside the
cache of API keys, so that receipts can be made and checked while Postgres is away. If Postgres has lost the row, the
first gateway that has a copy inserts it again.
"""

from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from gantry.runtime.privatefiles import find_private, write_private
from gantry.runtime.rng import secret_bytes
from gantry.runtime.telemetry import logger
from services.gateway.db.secrets import share_secret
from services.gateway.errors import METADATA_UNAVAILABLE, ProblemError

log = logger("gateway.receiptkey")

RECEIPTS: Final = "receipts"
KEY_BYTES: Final = 32


class ReceiptKey:
    """The key, once it is known.

    Concurrency: the event loop's thread.
    """

    def __init__(self, path: str) -> None:
        """Make an unknown key.

        Args:
            path: The file with the copy.
        """
        self._path = path
        self._key: bytes | None = None
        self._is_shared = False

    def require(self) -> bytes:
        """Return the key. Raises ProblemError (503) if neither Postgres nor the file has given it yet."""
        if self._key is None:
            detail = "receipts: their key is not loaded from Postgres yet, so they can be neither made nor checked"
            raise ProblemError(METADATA_UNAVAILABLE, detail)
        return self._key

    def load(self) -> None:
        """Read the copy of the last run; a missing or damaged one changes nothing."""
        try:
            data = find_private(self._path)
            key = None if data is None else bytes.fromhex(data.decode("ascii").strip())
        except (OSError, ValueError) as error:
            log.warning(
                "cannot read the key of receipts; it is loaded from Postgres", path=self._path, error=str(error)
            )
            return
        if key is not None and len(key) == KEY_BYTES:
            self._key = key

    async def share(self, session: AsyncSession) -> None:
        """Agree with the other gateways on the key, once a run; keep a copy."""
        if self._is_shared:
            return
        key = await share_secret(session, RECEIPTS, self._key or secret_bytes(KEY_BYTES))
        if key != self._key:
            self._key = key
            try:
                write_private(self._path, key.hex().encode() + b"\n")
            except OSError as error:
                log.warning("cannot keep a copy of the key of receipts", path=self._path, error=str(error))
        self._is_shared = True
