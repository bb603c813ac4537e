"""Settings of the garbage collector and the interpreter's lock, for processes that answer calls."""

import gc
import sys
from typing import Final

# Seconds after which a thread that computes gives the interpreter to one that waits. At Python's 5 ms a small
# call beside two such threads waits half a second, because it needs the interpreter again and again; at 1 ms a
# tenth of that.
_SWITCH_SECONDS: Final = 0.001


def prepare_for_calls() -> None:
    """Prepare a process that has loaded what it needs and is about to answer calls."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    # What is loaded by now stays: to search it for garbage again and again stops every call for milliseconds.
    # Calls leave next to no cycles behind, so that rare collections are enough.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
