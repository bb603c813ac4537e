"""The garbage collector's settings in a process that answers calls."""

import subprocess
import sys

_FIGURES = """
import gc
from evald_server import memory

usual = gc.get_threshold()[0]
memory.prepare_for_calls()
print(usual, gc.get_threshold()[0], gc.get_freeze_count())
"""


def test_the_collector_looks_seldom_and_not_at_what_is_loaded() -> None:
    done = subprocess.run([sys.executable, "-c", _FIGURES], capture_output=True, text=True, check=True)
    usual, wanted, frozen = map(int, done.stdout.split())
    assert wanted >= max(10_000, 10 * usual)
    assert frozen > 1000
