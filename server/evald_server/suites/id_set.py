"""Sets of ids that take little memory."""

from array import array
from bisect import bisect_left
from hashlib import blake2b
from heapq import merge


class IdSet:
    """A set of ids in 8 bytes each: digests, in a sorted array and the latest in a set."""

    def __init__(self) -> None:
        self._sorted = array("Q")
        self._latest: set[int] = set()

    def add(self, text: str) -> bool:
        """Add an id. Returns False if it is there already."""
        one = digest(text)
        index = bisect_left(self._sorted, one)
        if one in self._latest or self._sorted[index : index + 1] == array("Q", [one]):
            return False
        self._latest.add(one)
        # 64 Ki: a million ids are merged 16 times.
        if len(self._latest) >= 1 << 16:
            self._sorted = array("Q", merge(self._sorted, sorted(self._latest)))
            self._latest.clear()
        return True


def digest(key: object) -> int:
    """Return 64 bits of a key: among a million the chance that two are equal is 1 in 37 million."""
    return int.from_bytes(blake2b(repr(key).encode(errors="replace"), digest_size=8).digest(), "big")
