"""The pass rate of an evaluator over the last five minutes, for a gauge that people read."""

from collections.abc import Sequence

from evald.result import Verdict

_SLOT_SECONDS = 10
_SLOTS = 30


class PassRate:
    """The share of passed results over the last five minutes.

    counts: numbers of results, indexed by the verdict's number. They only grow, so it is enough to record them at the
    start of each of the last 30 slots of 10 seconds. slot_end: when the next `start_slot` is due, monotonic seconds.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = counts
        # (slot number, passed, failed). Replaced, never changed in place, because another thread reads it.
        self._slots: tuple[tuple[int, int, int], ...] = ()
        self.slot_end = float("-inf")

    def start_slot(self, now: float) -> None:
        """Record the counts at the start of the current slot. Call once `slot_end` has passed, before counting."""
        slot = int(now // _SLOT_SECONDS)
        counts = self._counts
        self._slots = (
            *self._slots[1 - _SLOTS :],
            (slot, counts[Verdict.PASSED], counts[Verdict.FAILED]),
        )
        self.slot_end = (slot + 1) * _SLOT_SECONDS

    def ratio(self, now: float) -> float | None:
        """Return passed / (passed + failed); None without such results."""
        oldest = int(now // _SLOT_SECONDS) - _SLOTS
        for slot, passed_before, failed_before in self._slots:
            if slot > oldest:
                passed = self._counts[Verdict.PASSED] - passed_before
                failed = self._counts[Verdict.FAILED] - failed_before
                return passed / (passed + failed) if passed + failed else None
        return None
