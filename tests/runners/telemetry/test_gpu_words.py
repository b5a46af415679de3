"""Counters, words and health: pure functions, as tables."""

from __future__ import annotations

from distui.runners.run.samples import Gpu
from distui.runners.telemetry.counters import Counter
from distui.runners.telemetry.gpu_words import judge, recovery_words, throttle_words, xid_finding

WRAP = 2**32


def test_rates() -> None:
    cases: list[tuple[list[int | None], int, float | None, list[float | None]]] = [
        ([100, 300, 300], 64, None, [None, 200.0, 0.0]),
        ([100, None, 300, 400], 64, None, [None, None, None, 100.0]),
        ([5 * WRAP, 10, 30], 64, None, [None, None, 20.0]),  # reset of a wide counter
        ([WRAP - 10, 20], 32, 1000.0, [None, 30.0]),  # one wrap, as the ceiling proves
        ([WRAP - 10, 20], 32, None, [None, None]),  # wrap or reset: nobody knows
        ([10, 20], 32, 1e10, [None, None]),  # may have gone round in between
        ([500, 100], 32, 1000.0, [None, None]),  # as a wrap it would exceed the ceiling: a reset
        ([WRAP - 10, 20, 50], 64, 1e10, [None, None, None]),  # called wide, behaves narrow
        ([WRAP - 10, 20, 2 * WRAP, 2 * WRAP + 7], 64, 1e10, [None, None, 2.0 * WRAP - 20, 7.0]),
        ([0, 10**15], 64, 1e10, [None, None]),  # faster than the link
    ]
    for readings, bits, ceiling, expected in cases:
        counter = Counter(ceiling)
        assert [
            counter.rate(value, float(now), bits=bits) for now, value in enumerate(readings)
        ] == expected


def test_no_rate_without_time() -> None:
    counter = Counter()
    counter.rate(1, 5.0)
    assert counter.rate(2, 5.0) is None


def test_throttle_words() -> None:
    assert throttle_words(0) == ()
    assert throttle_words(0x60) == ("thermal (software)", "thermal (hardware)")
    assert throttle_words(0x1000) == ("reason 0x1000",)


def test_recovery_words() -> None:
    assert [recovery_words(action) for action in (0, 2, 99)] == [None, "node reboot", "recovery action 99"]


def test_xid_finding() -> None:
    assert xid_finding(31, 2, times=5).text == (
        "Xid 31 on GPU 2: a kernel touched memory that is not mapped, 5 times"
    )
    unknown = xid_finding(4242, None)
    assert (unknown.id, unknown.severity) == ("xid-4242", "warning")
    assert "an unknown GPU" in unknown.text


def test_health_names_what_is_wrong_and_nothing_else() -> None:
    assert judge([Gpu(0, "u", "n"), Gpu(1, "u", "n", ecc_uncorrected=0, remap_pending=False)]) == ()
    bad = Gpu(3, "u", "n", ecc_uncorrected=2, remap_pending=True, remap_failed=True, recovery="GPU reset")
    found = {finding.id: finding for finding in judge([bad], node=1)}
    assert set(found) == {
        f"gpu-{name}:gpu3" for name in ("ecc", "remap-pending", "remap-failed", "recovery")
    }
    assert found["gpu-ecc:gpu3"].text.startswith("GPU 3 counts 2 uncorrected ECC errors")
    assert all(finding.node == 1 and finding.remedy for finding in found.values())
