"""TLS on the port of the plain protocol.

The first byte from a TLS client is 22 (a handshake record). The first byte from a plain client is the high byte of a
frame length: 0, or 1 for a frame of the full 16 MiB. So the first byte tells TLS from plain, and TLS needs no port of
its own. RocketMQ calls this mode permissive. TLS needs these first bytes too. Therefore the server runs TLS over
memory buffers within the channel and does not use the TLS of the event loop.

Source: RocketMQ NettyRemotingServer (handshake handler) and TlsSystemConfig.
"""

import contextlib
import enum
import ssl
from dataclasses import dataclass

from gantry.remoting.errors import RemoteProtocolError
from gantry.runtime.errors import StartupError

TLS_HANDSHAKE_BYTE = 0x16
_READ_BYTES = 64 * 1024  # More than one call returns: OpenSSL returns one record per call, at most 16 KiB.


class TlsMode(enum.StrEnum):
    """The kinds of connection that a server accepts: plain only, plain and TLS, or TLS only."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(enum.StrEnum):
    """Whether the server asks clients for a certificate."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The TLS settings of a server: PEM files, and a CA file if clients present certificates."""

    cert_file: str
    key_file: str
    mode: TlsMode = TlsMode.PERMISSIVE
    client_auth: ClientAuth = ClientAuth.NONE
    ca_file: str | None = None


def tls_settings(
    *, mode: TlsMode, cert_path: str | None, key_path: str | None, trust_cert_path: str | None, client_auth: ClientAuth
) -> TlsSettings | None:
    """Return the TLS settings of a server from its settings `tls_server_…`, which have RocketMQ's names.

    Returns:
        None if TLS is disabled or there is no certificate.

    Raises:
        ValueError: Only one of certificate and key is given, or both are missing though TLS is enforced.
    """
    if (cert_path is None) != (key_path is None):
        raise ValueError("tls_server_cert_path: tls_server_cert_path and tls_server_key_path need each other")
    if mode is TlsMode.ENFORCING and cert_path is None:
        raise ValueError("tls_server_mode: enforcing needs tls_server_cert_path and tls_server_key_path")
    if cert_path is None or key_path is None or mode is TlsMode.DISABLED:
        return None
    return TlsSettings(cert_path, key_path, mode, client_auth, trust_cert_path)


@dataclass(frozen=True, slots=True)
class ClientTlsSettings:
    """The TLS settings of a client. Without `ca_file` the client trusts the authorities of the system."""

    ca_file: str | None = None
    # Clients address brokers by IP address, and certificates seldom contain IP addresses.
    check_host_name: bool = False
    verify: bool = True
    cert_file: str | None = None
    key_file: str | None = None


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Read the certificate files and return the TLS context of a server.

    Raises:
        StartupError: A file is missing or invalid.
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
    """Read the certificate files and return the TLS context of a client.

    Raises:
        StartupError: A file is missing or invalid.
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
    except OSError as error:  # ssl.SSLError is a subclass.
        names = ", ".join(name for name in (cert_file, key_file, ca_file) if name is not None)
        raise StartupError(f"TLS: {names}: {error.strerror or error}; PEM files are expected") from None


class TlsPipe:
    """The server side of one TLS connection over memory buffers: it decrypts received bytes and encrypts sent bytes.

    After every call of `receive`, the owner sends the bytes from `take_outgoing` to the peer.
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
        """Process ciphertext and return the plaintext of the complete records.

        Raises:
            RemoteProtocolError: The peer broke the TLS protocol, or it has no certificate that the server trusts.
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
        """Return the ciphertext of `data`, after the ciphertext that already waits. If TLS has failed, skip `data`."""
        if not self._is_broken:
            self._tls.write(data)
        return self._outgoing.read()

    def close(self) -> bytes:
        """Return the ciphertext of the TLS message that ends our side of the connection."""
        if self.handshake_done and not self._is_broken:
            with contextlib.suppress(ssl.SSLError):  # OpenSSL wants to wait for the peer's end message. We do not wait.
                self._tls.unwrap()
        return self._outgoing.read()

    def take_outgoing(self) -> bytes:
        """Return the ciphertext that waits to be sent to the peer."""
        return self._outgoing.read()
