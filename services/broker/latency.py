"""A histogram of latencies, with the buckets of request 28."""

# Upper bounds in ms of the buckets of the put latency. The texts are those of request 28.
LATENCY_BOUNDS_MS = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_LATENCY_TEXTS = (
    "[<=0ms]",
    "[0~10ms]",
    "[10~50ms]",
    "[50~100ms]",
    "[100~200ms]",
    "[200~500ms]",
    "[500ms~1s]",
    "[1~2s]",
    "[2~3s]",
    "[3~4s]",
    "[4~5s]",
    "[5~10s]",
    "[10s~]",
)
assert len(_LATENCY_TEXTS) == len(LATENCY_BOUNDS_MS) + 1


class Latency:
    """A histogram that needs one comparison for most events."""

    __slots__ = ("counts", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * len(_LATENCY_TEXTS)
        self.sum_ms = 0
        self.max_ms = 0

    def observe(self, elapsed_ms: int, count: int) -> None:
        """Count `count` events that took `elapsed_ms` each."""
        index = 0
        for bound in LATENCY_BOUNDS_MS:
            if elapsed_ms <= bound:
                break
            index += 1
        self.counts[index] += count
        self.sum_ms += elapsed_ms * count
        self.max_ms = max(self.max_ms, elapsed_ms)

    @property
    def total(self) -> int:
        """Number of counted events."""
        return sum(self.counts)

    def quantile_ms(self, share: float) -> float:
        """Return the upper bound of the bucket that contains this quantile; `share` is between 0 and 1."""
        wanted = self.total * share
        seen = 0
        for bound, count in zip(LATENCY_BOUNDS_MS, self.counts, strict=False):
            seen += count
            if seen >= wanted:
                return float(bound)
        return float(self.max_ms)

    def text(self) -> str:
        """Return the distribution in the format of request 28."""
        return "".join(f"{name}:{count} " for name, count in zip(_LATENCY_TEXTS, self.counts, strict=True))
