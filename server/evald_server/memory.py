"""Settings of the garbage collector and the interpreter's lock."""

import gc
import sys
from typing import Final

# Seconds after which a thread that computes gives the interpreter to one that waits. At Python's 5 ms a small
# call beside two such threads waits half a second, because it needs the interpreter again and again; at 1 ms a
# tenth of that.
_SWITCH_SECONDS: Final = 0.001


def collect_rarely() -> None:
    """Look for cycles of garbage a seventieth as often as Python does; call it before a program loads its modules.

    Loading makes hundreds of thousands of objects that all stay: at Python's own thresholds a tenth of the time
    until a command does something goes to looking for garbage among them.
    """
    gc.set_threshold(50_000, 20, 20)


def prepare_for_calls() -> None:
    """Prepare a process that has loaded what it needs and is about to answer calls."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    # What is loaded by now stays: to search it for garbage again and again stops every call for milliseconds.
    # Calls leave next to no cycles behind, so that rare collections are enough.
    gc.collect()
    gc.freeze()
    collect_rarely()
