"""The parts of both REST clients that all calls use: connections, one call, and lists of many pages."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx

from gantry.http.call import PAGE_ITEMS, Call, Page, Paged, read_answer
from gantry.http.exchange import explained, request_of
from gantry.http.proxies import follows_proxies
from gantry.http.stack import read_stack

T = TypeVar("T")

TIMEOUT_MS: Final = 10_000
CONNECTIONS_MAX: Final = 64
"""More connections than this do not make one gateway faster, and the gateway has to hold each of them."""


class BaseClient:
    """Runs calls and waits for their answers. Concurrency: may be used by several threads."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        timeout_ms: int = TIMEOUT_MS,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Make a client; nothing is sent yet.

        Args:
            base_url: URL of the gateway, such as `http://127.0.0.1:8080`, without `/v1`.
            api_key: API key; None for a gateway that needs none.
            timeout_ms: Time-out for connecting, and for each read and each write; not for a whole call.
            transport: Replaces the network; for tests.
        """
        self.base_url = base_url.rstrip("/")
        self._timeout_s = timeout_ms / 1_000
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(
            base_url=self.base_url,
            headers=headers,
            timeout=self._timeout_s,
            transport=transport,
            trust_env=follows_proxies(self.base_url),
        )

    @classmethod
    def from_stack(cls, data_dir: str | Path) -> Self:
        """Return a client of the stack that `gantry up --data DIR` runs. Raises NoStackError."""
        stack = read_stack(data_dir)
        return cls(stack.http, stack.api_key)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def run(self, call: Call[T]) -> T:
        """Run a call of `gantry.http.calls`, `alertcalls`, `reportcalls` or `workcalls`, and return its decoded answer."""
        with explained(call, self.base_url):
            answer = self._http.request(**request_of(call, self._timeout_s))
        return read_answer(call, answer.status_code, answer.headers, answer.content)

    def stream(self, call: Call[Any]) -> Iterator[bytes]:
        """Run a call whose answer has no limit, such as an export, and yield the bytes of its body as they come."""
        with explained(call, self.base_url), self._http.stream(**request_of(call, self._timeout_s)) as answer:
            if answer.is_error:
                read_answer(call, answer.status_code, answer.headers, answer.read())
            yield from answer.iter_bytes()

    def _all_pages(self, page_at: Callable[[str | None], Call[Page[T]]]) -> list[T]:
        page = self.run(page_at(None))
        self._add_pages(page, page_at)
        return page.items

    def _add_pages(self, first: Paged, page_at: Callable[[str], Call[Paged]]) -> None:
        """Append the items of the later pages to those of the first page."""
        cursor = first.next_cursor
        while cursor is not None:
            page = self.run(page_at(cursor))
            first.items.extend(page.items)
            cursor = page.next_cursor

    def _some_pages(self, limit: int, page_at: Callable[..., Call[Page[T]]]) -> list[T]:
        """Return at most `limit` items; `page_at` gets the arguments `limit` and `cursor`."""
        items: list[T] = []
        cursor: str | None = None
        while True:
            page = self.run(page_at(limit=min(limit - len(items), PAGE_ITEMS), cursor=cursor))
            items += page.items
            cursor = page.next_cursor
            if cursor is None or len(items) >= limit:
                return items


class AsyncBaseClient:
    """Runs calls on one event loop. The gateway may have carried out a cancelled call."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        timeout_ms: int = TIMEOUT_MS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self._timeout_s = timeout_ms / 1_000
        headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
        limits = httpx.Limits(max_connections=CONNECTIONS_MAX, max_keepalive_connections=CONNECTIONS_MAX)
        self._http = httpx.AsyncClient(
            base_url=self.base_url,
            headers=headers,
            timeout=self._timeout_s,
            limits=limits,
            transport=transport,
            trust_env=follows_proxies(self.base_url),
        )

    @classmethod
    def from_stack(cls, data_dir: str | Path) -> Self:
        """Return a client of the stack that `gantry up --data DIR` runs. Raises NoStackError."""
        stack = read_stack(data_dir)
        return cls(stack.http, stack.api_key)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def run(self, call: Call[T]) -> T:
        """Run a call of `gantry.http.calls`, `alertcalls`, `reportcalls` or `workcalls`, and return its decoded answer."""
        with explained(call, self.base_url):
            answer = await self._http.request(**request_of(call, self._timeout_s))
        return read_answer(call, answer.status_code, answer.headers, answer.content)

    async def stream(self, call: Call[Any]) -> AsyncIterator[bytes]:
        """Run a call whose answer has no limit, such as an export, and yield the bytes of its body as they come."""
        with explained(call, self.base_url):
            async with self._http.stream(**request_of(call, self._timeout_s)) as answer:
                if answer.is_error:
                    read_answer(call, answer.status_code, answer.headers, await answer.aread())
                async for piece in answer.aiter_bytes():
                    yield piece

    async def _all_pages(self, page_at: Callable[[str | None], Call[Page[T]]]) -> list[T]:
        page = await self.run(page_at(None))
        await self._add_pages(page, page_at)
        return page.items

    async def _add_pages(self, first: Paged, page_at: Callable[[str], Call[Paged]]) -> None:
        """Append the items of the later pages to those of the first page."""
        cursor = first.next_cursor
        while cursor is not None:
            page = await self.run(page_at(cursor))
            first.items.extend(page.items)
            cursor = page.next_cursor

    async def _some_pages(self, limit: int, page_at: Callable[..., Call[Page[T]]]) -> list[T]:
        """Return at most `limit` items; `page_at` gets the arguments `limit` and `cursor`."""
        items: list[T] = []
        cursor: str | None = None
        while True:
            page = await self.run(page_at(limit=min(limit - len(items), PAGE_ITEMS), cursor=cursor))
            items += page.items
            cursor = page.next_cursor
            if cursor is None or len(items) >= limit:
                return items
