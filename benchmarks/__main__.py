"""`python -m benchmarks [NAME …] [--tiny] [--json]`: measure, and compare the figures with the promises to users.

Each figure comes with a baseline of the same run. `--tiny` only proves that the benchmarks work. Without names, all
benchmarks run except `scale`, which takes minutes and up to 10 GB of disk, `timers`, which takes eight minutes and 1 GB,
`forecasts`, which takes a quarter of an hour, `console`, which needs Chromium and npm, and `rocketmq`, which needs Java.
"""

import argparse
import sys
from collections.abc import Callable, Iterator

from benchmarks import (
    bench_connections,
    bench_console,
    bench_duplicates,
    bench_filters,
    bench_forecasts,
    bench_groups,
    bench_http,
    bench_listener,
    bench_memory,
    bench_pop,
    bench_receipts,
    bench_remoting,
    bench_rocketmq,
    bench_samples,
    bench_scale,
    bench_spark,
    bench_store,
    bench_stream,
    bench_timers,
    bench_waiting,
)
from benchmarks.report import Row, show


def _store(*, tiny: bool = False) -> Iterator[Row]:
    rows, _ = bench_store.measure(tiny=tiny)
    yield from rows


BENCHMARKS: dict[str, Callable[..., Iterator[Row]]] = {
    "store": _store,
    "filters": bench_filters.run,
    "remoting": bench_remoting.run,
    "pop": bench_pop.run,
    "http": bench_http.run,
    "stream": bench_stream.run,
    "listener": bench_listener.run,
    "receipts": bench_receipts.run,
    "memory": bench_memory.run,
    "connections": bench_connections.run,
    "waiting": bench_waiting.run,
    "duplicates": bench_duplicates.run,
    "groups": bench_groups.run,
    "samples": bench_samples.run,
    "spark": bench_spark.run,
    "scale": bench_scale.run,
    "timers": bench_timers.run,
    "forecasts": bench_forecasts.run,
    "console": bench_console.run,
    "rocketmq": bench_rocketmq.run,
}
BY_NAME_ONLY = {"scale", "timers", "forecasts", "console", "rocketmq"}


def main() -> int:
    """Run the named benchmarks, or by default all except those in BY_NAME_ONLY; return 1 if an aim was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "name", nargs="*", choices=[*BENCHMARKS, []], help=f"default: all but {', '.join(sorted(BY_NAME_ONLY))}"
    )
    parser.add_argument("--tiny", action="store_true", help="only prove that they work; the figures mean nothing")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    arguments = parser.parse_args()
    names = arguments.name or [name for name in BENCHMARKS if name not in BY_NAME_ONLY]
    rows = [row for name in names for row in BENCHMARKS[name](tiny=arguments.tiny)]
    show(rows, as_json=arguments.json)
    return 1 if any(row.reached is False for row in rows) and not arguments.tiny else 0


if __name__ == "__main__":
    sys.exit(main())
