"""TLS on the port of the plain protocol.

A TLS client's first byte is 22 (a handshake record). A plain one's is the high byte of a frame length, which is 0
or, for a frame of the full 16 MiB, 1. So the first byte decides, without a port of its own: RocketMQ calls this
mode permissive. The bytes that decided must be given to TLS, which is why the server's side runs over memory
buffers within the channel and not in the event loop's own TLS.

Source: RocketMQ NettyRemotingServer's handshake handler and TlsSystemConfig.
"""

import contextlib
import enum
import ssl
from dataclasses import dataclass

from gantry.remoting.errors import RemoteProtocolError
from gantry.runtime.errors import StartupError

TLS_HANDSHAKE_BYTE = 0x16
_READ_BYTES = 64 * 1024  # OpenSSL gives one record, at most 16 KiB, a call.


class TlsMode(enum.StrEnum):
    """Who may connect."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(enum.StrEnum):
    """Whether clients show a certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """A server's TLS: PEM files, and a CA file where clients show certificates."""

    cert_file: str
    key_file: str
    mode: TlsMode = TlsMode.PERMISSIVE
    client_auth: ClientAuth = ClientAuth.NONE
    ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class ClientTlsSettings:
    """A client's TLS. Without ca_file the system's authorities are trusted."""

    ca_file: str | None = None
    # Brokers are addressed by IP, which their certificates seldom name.
    check_host_name: bool = False
    verify: bool = True
    cert_file: str | None = None
    key_file: str | None = None


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Read the files and return the context.

    Raises:
        StartupError: A file is missing or not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load(context, settings.cert_file, settings.key_file, settings.ca_file)
    context.verify_mode = {
        ClientAuth.NONE: ssl.CERT_NONE,
        ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
        ClientAuth.REQUIRE: ssl.CERT_REQUIRED,
    }[settings.client_auth]
    return context


def client_context(settings: ClientTlsSettings) -> ssl.SSLContext:
    """Read the files and return the context.

    Raises:
        StartupError: A file is missing or not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.check_host_name and settings.verify
    context.verify_mode = ssl.CERT_REQUIRED if settings.verify else ssl.CERT_NONE
    if settings.ca_file is None and settings.verify:
        context.load_default_certs()
    _load(context, settings.cert_file, settings.key_file, settings.ca_file)
    return context


def _load(context: ssl.SSLContext, cert_file: str | None, key_file: str | None, ca_file: str | None) -> None:
    try:
        if ca_file is not None:
            context.load_verify_locations(cafile=ca_file)
        if cert_file is not None:
            context.load_cert_chain(cert_file, key_file)
    except OSError as error:  # ssl.SSLError is one.
        names = ", ".join(name for name in (cert_file, key_file, ca_file) if name is not None)
        raise StartupError(f"TLS: {names}: {error.strerror or error}; PEM files are expected") from None


class TlsPipe:
    """The server's side of one TLS connection over memory: ciphertext in, plaintext out, and back.

    After every call `take_outgoing` has what must go to the peer.
    """

    __slots__ = ("_incoming", "_is_broken", "_outgoing", "_tls", "ended", "handshake_done")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_broken = False
        self.handshake_done = False
        self.ended = False

    def receive(self, data: bytes) -> bytes:
        """Take ciphertext and return the plaintext it completes.

        Raises:
            RemoteProtocolError: The peer's TLS is broken, or it showed no certificate we trust.
        """
        self._incoming.write(data)
        parts: list[bytes] = []
        try:
            if not self.handshake_done:
                self._tls.do_handshake()
                self.handshake_done = True
            while chunk := self._tls.read(_READ_BYTES):
                parts.append(chunk)
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            self._is_broken = True
            raise RemoteProtocolError(f"TLS: {error.reason or error}") from None
        return b"".join(parts)

    def send(self, data: bytes | bytearray | memoryview) -> bytes:
        """Return the ciphertext of `data`, and whatever else waits for the peer; nothing once TLS has failed."""
        if not self._is_broken:
            self._tls.write(data)
        return self._outgoing.read()

    def close(self) -> bytes:
        """Return the ciphertext that says we send no more."""
        if self.handshake_done and not self._is_broken:
            with contextlib.suppress(ssl.SSLError):  # It would wait for the peer's own goodbye; we don't.
                self._tls.unwrap()
        return self._outgoing.read()

    def take_outgoing(self) -> bytes:
        """Return ciphertext that waits for the peer."""
        return self._outgoing.read()
