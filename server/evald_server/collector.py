"""Python's garbage collector, in processes that answer calls."""

import gc


def spare_the_collector() -> None:
    """What is loaded by now stays: looking through it for garbage again and again would stop every call
    for milliseconds. Calls leave next to no cycles behind, so that it need not look often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
