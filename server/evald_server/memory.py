"""Settings of the garbage collector and the interpreter's lock."""

import gc
import sys
from typing import Final

# Time after which a computing thread releases the interpreter's lock to a waiting one. At Python's 5 ms, a small call
# beside two such threads takes half a second, because it needs the lock many times; at 1 ms a tenth of that.
_SWITCH_SECONDS: Final = 0.001


def collect_rarely() -> None:
    """Collect garbage a seventieth as often as Python does by default. Call it before the program's imports.

    Imports create hundreds of thousands of objects that are never freed. At Python's thresholds, searching them for
    garbage takes a tenth of a command's start time.
    """
    gc.set_threshold(50_000, 20, 20)


def prepare_for_calls() -> None:
    """Set up the interpreter for answering calls. Call it after all imports."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    # Exclude all loaded objects from collections: searching them stops every call for milliseconds.
    # Calls leave almost no cycles, so rare collections are enough.
    gc.collect()
    gc.freeze()
    collect_rarely()
