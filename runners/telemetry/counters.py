"""Rates per second from growing counters of the kernel or of a driver, without invented values."""

from __future__ import annotations


class Counter:
    """One counter of the kernel or of a driver, read repeatedly.

    `ceiling` is its maximum growth per second, in its own unit (None: unknown). A decrease counts as a wrap only if the
    counter is 32 bits wide and the ceiling excludes a second wrap. Otherwise it is a reset, and the rate is unknown
    once.
    """

    def __init__(self, ceiling: float | None = None) -> None:
        self._ceiling = ceiling
        self._value: int | None = None
        self._time = 0.0
        self._narrow = False
        """True if the register may have only 32 bits: see `_may_wrap`."""

    def rate(self, value: int | None, now: float, *, bits: int = 64) -> float | None:
        """Growth per second since the previous reading; None for the first, after a reset, or if unknown.

        `now` is in monotonic seconds; `bits` is the value's width as declared by its source.
        """
        before, seconds = self._value, now - self._time
        self._value, self._time = value, now
        if value is None or before is None or seconds <= 0:
            return None
        self._narrow = self._may_wrap(before, value, bits)
        if self._narrow and self._could_have_wrapped(seconds):
            return None
        growth = value - before
        if growth < 0:
            if not self._narrow or bits != 32 or self._ceiling is None:
                return None
            growth += 2**32
        rate = growth / seconds
        return rate if self._ceiling is None or rate <= self._ceiling else None

    def _may_wrap(self, before: int, value: int, bits: int) -> bool:
        """Whether the register may have only 32 bits.

        A value typed as 64 bits that falls from below 2^32 may come from a 32-bit register: it is distrusted until it
        has a value that such a register cannot hold.
        """
        if value >= 2**32:
            return False
        return self._narrow or bits == 32 or value < before < 2**32

    def _could_have_wrapped(self, seconds: float) -> bool:
        """Whether a 32-bit register could have wrapped unnoticed in that time."""
        return self._ceiling is not None and self._ceiling * seconds >= 2**32
