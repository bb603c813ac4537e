"""What a process that answers calls does about memory."""

import gc
import platform
import subprocess
import sys

import pytest

# Page faults for taking and freeing 4 MB in blocks, before and after.
_FAULTS = """
import gc, resource
from evald_server import memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [b"x" * 100_000 for _ in range(40)]
        del blocks
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20

faults()
before = faults()
memory.prepare_for_calls()
faults()
print(before, faults(), *gc.get_threshold(), gc.get_freeze_count())
"""


@pytest.fixture(scope="module")
def figures() -> list[float]:
    """Faults before and after, three thresholds of the collector, and what it no longer looks at."""
    done = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than GNU's")
def test_what_one_call_frees_is_kept_for_the_next_one(figures: list[float]) -> None:
    before, after, *_ = figures
    assert before > 100
    assert after < 10


def test_the_collector_looks_seldom_and_not_at_what_is_loaded(figures: list[float]) -> None:
    *_, often, _older, _oldest, frozen = figures
    assert often >= 10_000
    assert frozen > 1000
    assert gc.get_threshold()[0] < often
