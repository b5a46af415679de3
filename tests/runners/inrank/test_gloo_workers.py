"""The end of a rank beside threads of gloo's that are late: real ones of torch's, and threads that bear their name."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from each import for_each

from distui.runners.inrank import gloo_workers

from .inrank_rig import rank
from .test_inrank_hook import place

__all__ = ["place"]

LATE = """
import hashlib, threading
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
begun = threading.Event()
def late(future):
    begun.set()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)  # without the GIL; then it wants that
big = torch.ones(16 << 20)
dist.all_gather([torch.empty_like(big)], big, async_op=True).get_future().then(late)
begun.wait()
"""


@pytest.mark.long
@pytest.mark.torch
def test_a_rank_ends_well_while_gloo_still_holds_what_it_has_sent(place: Path) -> None:
    with rank(place, LATE) as started:
        assert started.ends() == 0, started.read("err")


@for_each("awake", [True, False])
def test_only_a_thread_that_is_awake_is_waited_for_and_not_for_ever(
    awake: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gloo_workers, "LIMIT_S", 0.3 if awake else 60.0)
    over, named = threading.Event(), threading.Event()

    def spin() -> None:
        while not over.is_set():
            pass

    work: Callable[[], object] = spin if awake else over.wait

    def run() -> None:
        ctypes.CDLL(None).prctl(15, b"pt_gloo_runloop")  # PR_SET_NAME
        named.set()
        work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        named.wait()
        began = time.monotonic()
        gloo_workers.settle()
        assert (time.monotonic() - began >= gloo_workers.LIMIT_S) is awake
    finally:
        over.set()
        thread.join()


def test_a_process_without_gloo_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", None)
    gloo_workers.settle()
