"""Errors of interfaces within the last minute."""

from __future__ import annotations

from pathlib import Path

from distui.runners.telemetry.host import HostSampler, NicErrors


class Clock:
    """A clock that the test winds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def counted(root: Path, errors: int, symbols: int) -> None:
    lines = (
        f"  eth0: 9 1 {errors} 77 0 0 0 0 9 1 1 55 0 0 0 0\n",
        "    lo: 9 1 50 0 0 0 0 0 9 1 1 0 0 0 0 0\n",
    )
    put(root / "proc/net/dev", "Inter-|\n face |\n" + "".join(lines))
    (root / "sys/class/net/eth0").mkdir(parents=True, exist_ok=True)
    ports = root / "sys/class/infiniband/mlx5_0/ports/1/counters"
    put(ports / "port_rcv_data", "1\n")
    put(ports / "port_xmit_data", "1\n")
    put(ports / "symbol_error", f"{symbols}\n")


def test_errors_are_those_of_the_last_minute_without_drops(tmp_path: Path) -> None:
    clock = Clock()
    counted(tmp_path, 100, 7)
    sampler = HostSampler(tmp_path, tmp_path, clock)
    assert sampler.sample().nic_errors is None
    counted(tmp_path, 130, 9)
    clock.now += 5
    assert sampler.sample().nic_errors == 32
    for _ in range(13):
        clock.now += 5
        sampler.sample()
    assert sampler.sample().nic_errors == 0


def test_a_counter_that_falls_or_appears_adds_no_old_errors() -> None:
    errors = NicErrors()
    for now, total in ((0.0, 50), (5.0, 60), (10.0, 3)):
        errors.add(now, {"eth0": total})
    assert errors.lately == 10
    errors.add(15.0, {"eth0": 4, "mlx5_0/ports/1/symbol_error": 9_000})
    assert errors.lately == 11
    errors.add(20.0, {"eth0": 4})  # the port cannot be read for a moment
    errors.add(25.0, {"eth0": 4, "mlx5_0/ports/1/symbol_error": 9_002})
    assert errors.lately == 13


def test_a_look_is_due_every_few_seconds() -> None:
    errors = NicErrors()
    assert errors.due(0.0)
    errors.add(0.0, {"eth0": 1})
    assert not errors.due(4.0)
    assert errors.due(5.0)
