"""Memory that a process needed for a while goes back to the system."""

import subprocess
import sys

_FLOOD = """
import asyncio
from gantry.runtime.heap import configure_heap, trim_after_floods, _resident_bytes

async def main():
    trimming = asyncio.create_task(trim_after_floods(0.1))
    await asyncio.sleep(0.5)
    before = _resident_bytes()
    buffers = [bytearray(4_000) for _ in range(20_000)]
    kept, flooded = buffers[::100], _resident_bytes()
    # Memory is given back within the flood, too, when there is next to nothing to give.
    await asyncio.sleep(0.5)
    del buffers
    for _ in range(300):
        await asyncio.sleep(0.1)
        if _resident_bytes() < before + (flooded - before) // 4:
            break
    assert not trimming.done()
    print(before, flooded, _resident_bytes())

configure_heap()
asyncio.run(main())
"""


def test_free_pages_of_the_heap_are_released_after_a_flood():
    done = subprocess.run([sys.executable, "-c", _FLOOD], capture_output=True, text=True, check=True)
    before, flooded, after = map(int, done.stdout.split())
    assert flooded > before + 60_000_000
    assert after < before + (flooded - before) // 4
