"""The garbage collector's settings in a process that answers calls."""

import gc
import subprocess
import sys

_FIGURES = """
import gc
from evald_server import memory

memory.prepare_for_calls()
print(gc.get_threshold()[0], gc.get_freeze_count())
"""


def test_the_collector_looks_seldom_and_not_at_what_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", _FIGURES], capture_output=True, text=True, check=True)
    often, frozen = map(int, done.stdout.split())
    assert often >= 10_000
    assert frozen > 1000
    assert gc.get_threshold()[0] < often
