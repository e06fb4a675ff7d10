"""Bodies that stay the same while the gateway runs: compressed once, and not sent to callers who have them already."""

import gzip
import hashlib
from dataclasses import dataclass
from typing import Self

from services.gateway.asgi.answer import Answer, Headers
from services.gateway.asgi.call import Call
from services.gateway.asgi.conditions import tags_of


@dataclass(frozen=True, slots=True)
class FixedBody:
    """A body that never changes.

    Attributes:
        body: Content.
        zipped: Content in gzip; None if nobody has made it.
        headers: Headers of every answer with this body.
        etag: ETag of the content.
    """

    body: bytes
    zipped: bytes | None
    headers: Headers
    etag: bytes

    @classmethod
    def of(cls, body: bytes, headers: Headers, *, zipped: bytes | None = None) -> Self:
        """Return a body with its ETag; the answers depend on the coding that a caller accepts."""
        etag = b'"%b"' % hashlib.sha256(body).hexdigest()[:32].encode()
        return cls(body, zipped, [*headers, (b"vary", b"accept-encoding")], etag)

    def compressed(self) -> Self:
        """Return the same with its content in gzip. This takes milliseconds: it is for the start."""
        return type(self)(self.body, gzip.compress(self.body, mtime=0), self.headers, self.etag)

    def answer(self, call: Call) -> Answer:
        """Return the body, or 304 if the caller has it already. Raises ProblemError (400): a wrong If-None-Match."""
        headers = [*self.headers, (b"etag", self.etag)]
        none_match = call.header(b"if-none-match")
        if none_match is not None and {"*", self.etag.decode()} & set(tags_of(none_match)):
            return Answer(304, b"", headers)
        if self.zipped is None or b"gzip" not in (call.header_values.get(b"accept-encoding") or b""):
            return Answer(200, self.body, headers)
        return Answer(200, self.zipped, [*headers, (b"content-encoding", b"gzip")])
