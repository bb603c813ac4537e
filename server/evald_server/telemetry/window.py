"""Numbers of the last minutes, for people who look at a gauge."""

from collections.abc import Sequence

_SLOT_SECONDS = 10
_SLOTS = 30
_WORST_SECONDS = 30


class PassWindow:
    """The share of passed over the last five minutes.

    Counts only ever grow, so it is enough to note what they were when each of the last slots
    of ten seconds began.
    """

    __slots__ = ("_counts", "_slots", "ends")

    def __init__(self, counts: Sequence[int]) -> None:
        self._counts = counts
        self._slots: tuple[tuple[int, int, int], ...] = ()  # replaced, never changed: another thread reads it
        self.ends = float("-inf")

    def turn(self, now: float) -> None:
        """Begin the slot of this moment. Call once `ends` has passed, before counting."""
        slot = int(now // _SLOT_SECONDS)
        self._slots = (*self._slots[1 - _SLOTS :], (slot, self._counts[1], self._counts[2]))
        self.ends = (slot + 1) * _SLOT_SECONDS

    def ratio(self, now: float) -> float | None:
        """Passed out of passed and failed; None when there were neither."""
        oldest = int(now // _SLOT_SECONDS) - _SLOTS
        for slot, passed_before, failed_before in self._slots:
            if slot > oldest:
                passed = self._counts[1] - passed_before
                failed = self._counts[2] - failed_before
                return passed / (passed + failed) if passed + failed else None
        return None


class RecentWorst:
    """The largest number of the last 30 to 60 seconds: whoever looks every 30 seconds misses none."""

    __slots__ = ("_window", "_worsts")

    def __init__(self) -> None:
        self._window = 0
        self._worsts = (0.0, 0.0)  # of the window before, and of this one

    def observe(self, number: float, now: float) -> None:
        """Count a number of this moment."""
        self._worsts = self._at(now)
        self._window = int(now // _WORST_SECONDS)
        self._worsts = (self._worsts[0], max(self._worsts[1], number))

    def worst(self, now: float) -> float:
        """The largest one; 0 without any."""
        return max(self._at(now))

    def _at(self, now: float) -> tuple[float, float]:
        passed = int(now // _WORST_SECONDS) - self._window
        return self._worsts if passed == 0 else (self._worsts[1] if passed == 1 else 0.0, 0.0)
