"""LoginThrottle: how long a caller must wait after failed log-ins.

Failures are counted for three kinds of holders within the same 15 minutes. Beyond the free attempts of a holder, each
failure doubles the wait.

| holder | free attempts | longest wait |
|---|---|---|
| a user name from one address | 5 | 15 min |
| an address | 20 | 15 min |
| a user name | 50 | 1 min |

The last one slows down a guess from many addresses. Its wait is short, because otherwise an attacker could lock a user
out. An attempt counts as failed from its start, so that attempts at the same time count, too.

Each gateway counts for itself.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

WINDOW_MS: Final = 15 * 60_000
HOLDERS_MAX: Final = 10_000
"""Limit of holders whose failures are remembered. Beyond it, the holder of the oldest failure is forgotten."""


WAITS_LISTED_MAX: Final = 10
"""Limit of the waits that are listed for a user. An attack from many addresses has one for each of them."""


class Wait(NamedTuple):
    """A wait before the next log-in of a user.

    Attributes:
        address: The address that has to wait; None: the user has to wait at every address.
        failures: Failed log-ins that led to it.
        wait_ms: Time until the next attempt is allowed.
    """

    address: str | None
    failures: int
    wait_ms: int


class _Rule(NamedTuple):
    free: int
    wait_ms_max: int


_USER_AT_ADDRESS: Final = _Rule(5, WINDOW_MS)
_ADDRESS: Final = _Rule(20, WINDOW_MS)
_USER: Final = _Rule(50, 60_000)


class _Failures:
    __slots__ = ("count", "last_ms")

    def __init__(self) -> None:
        self.count = 0
        self.last_ms = 0


class LoginThrottle:
    """The failed log-ins of the last minutes.

    Concurrency: the event loop's thread.
    """

    def __init__(self) -> None:
        self._failures: OrderedDict[tuple[str, str], _Failures] = OrderedDict()

    def wait_ms(self, user: str, address: str, now_ms: int) -> int:
        """Return the time (ms) until the next attempt is allowed; 0: now. `now_ms` is monotonic."""
        return max(self._wait_of(holder, rule, now_ms) for holder, rule in _holders(user, address))

    def waits(self, now_ms: int) -> dict[str, list[Wait]]:
        """Return the waits of all users who have some, the longest first, at most WAITS_LISTED_MAX of a user.

        An address that has to wait whatever the user is belongs to no user, so it is not listed.
        """
        found: dict[str, list[Wait]] = {}
        for (user, address), failures in self._failures.items():
            if user == "":
                continue
            wait_ms = self._wait_of((user, address), _USER_AT_ADDRESS if address else _USER, now_ms)
            if wait_ms > 0:
                found.setdefault(user, []).append(Wait(address or None, failures.count, wait_ms))
        return {user: sorted(waits, key=lambda wait: -wait.wait_ms)[:WAITS_LISTED_MAX] for user, waits in found.items()}

    def begin(self, user: str, address: str, now_ms: int) -> None:
        """Count an attempt, as if it failed."""
        for holder, _ in _holders(user, address):
            failures = self._failures.get(holder)
            if failures is None or now_ms - failures.last_ms > WINDOW_MS:
                failures = self._failures[holder] = _Failures()
            failures.count += 1
            failures.last_ms = now_ms
            self._failures.move_to_end(holder)
        while len(self._failures) > HOLDERS_MAX:
            self._failures.popitem(last=False)

    def withdraw(self, user: str, address: str) -> None:
        """Take an attempt back that could not be checked."""
        for holder, _ in _holders(user, address):
            failures = self._failures.get(holder)
            if failures is not None:
                failures.count -= 1

    def succeed(self, user: str, address: str) -> None:
        """Forget the failures of a user at an address, whose attempt succeeded, and take back its other counts."""
        pair, *others = [holder for holder, _ in _holders(user, address)]
        self._failures.pop(pair, None)
        for holder in others:
            failures = self._failures.get(holder)
            if failures is not None:
                failures.count -= 1

    def _wait_of(self, holder: tuple[str, str], rule: _Rule, now_ms: int) -> int:
        failures = self._failures.get(holder)
        if failures is None or failures.count < rule.free or now_ms - failures.last_ms > WINDOW_MS:
            return 0
        # The exponent is bounded, because a count may become large.
        wait_ms = min(1_000 << min(failures.count - rule.free, 30), rule.wait_ms_max)
        return max(failures.last_ms + wait_ms - now_ms, 0)


def _holders(user: str, address: str) -> tuple[tuple[tuple[str, str], _Rule], ...]:
    return (((user, address), _USER_AT_ADDRESS), (("", address), _ADDRESS), ((user, ""), _USER))
