"""A training whose rank ROGUE breaks after some seconds so that the others wait: hangs.py FAULT."""

from __future__ import annotations

import ctypes
import fcntl
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from job import Trainer, begin, sign  # type: ignore[import-not-found]
from torch.utils.data import DataLoader, Dataset

FAULT = sys.argv[1]
ROGUE = 1
LONG_S = 1e6


def spin() -> None:
    """Python that never ends."""
    number = 0
    while True:
        number += 1


def doze() -> None:
    """Python that waits for nothing."""
    time.sleep(LONG_S)


def hold_the_gil() -> None:
    """C code that waits for itself and keeps the GIL: PyDLL does not release it, and no signal ends the wait."""
    libc, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)


def stop_myself() -> None:
    """What a debugger, a job scheduler or ^Z does."""
    os.kill(os.getpid(), signal.SIGSTOP)


def leave() -> None:
    """A script that thinks it is done."""
    sys.stdout.flush()
    os._exit(0)


def save_to_a_pipe() -> None:
    """A checkpoint onto storage that does not take it: a pipe that nobody reads."""
    path = Path(os.environ["FAULT_SIGN"]).with_name("storage")
    os.mkfifo(path)
    holder = os.open(path, os.O_RDWR)
    torch.save({"weights": torch.zeros(1 << 20)}, path)
    os.close(holder)


def lock_and_meet() -> None:
    """What guards a cache on a shared disk: the lock is kept over a collective that needs those who wait for it."""
    with Path(os.environ["FAULT_SIGN"]).with_name("cache.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sign(ROGUE)
        dist.barrier()


def lock_later() -> None:
    """The other side of it."""
    while not Path(os.environ["FAULT_SIGN"]).exists():
        time.sleep(0.05)
    with Path(os.environ["FAULT_SIGN"]).with_name("cache.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        dist.barrier()


def wait_for_a_dead_thread() -> None:
    """A queue whose producer has died of its own mistake."""
    batches: queue.Queue[int] = queue.Queue()

    def produce() -> None:
        batches.put({"first": 1}["second"])

    threading.Thread(target=produce, name="producer").start()
    batches.get()


def never_leave() -> None:
    """A thread of a logger that nobody ends keeps the process after the last line."""

    def upload() -> None:
        threading.Event().wait()

    threading.Thread(target=upload, name="uploader").start()
    sys.exit(0)


def ask_for_a_key() -> None:
    """A plan that no rank publishes."""
    dist.distributed_c10d._get_default_store().get(f"plan/{ROGUE}")


def feed_a_reader() -> None:
    """A child that takes nothing, and a pipe that is soon full."""
    with subprocess.Popen(["sleep", str(int(LONG_S))], stdin=subprocess.PIPE) as child:
        assert child.stdin is not None
        child.stdin.write(bytes(1 << 20))


def wait_beside_a_spinner() -> None:
    """A queue that nobody fills, while another thread uses the core."""
    threading.Thread(target=spin, name="spinner", daemon=True).start()
    queue.Queue[int]().get()


def receive() -> None:
    """All ranks receive from the next one, and none sends."""
    at, ranks = dist.get_rank(), dist.get_world_size()
    dist.recv(torch.zeros(4), src=(at + 1) % ranks)


STUCK = {
    "thread": wait_for_a_dead_thread,
    "spin": spin,
    "doze": doze,
    "gil": hold_the_gil,
    "stopped": stop_myself,
    "leave": leave,
    "checkpoint": save_to_a_pipe,
    "key": ask_for_a_key,
    "reader": feed_a_reader,
    "beside": wait_beside_a_spinner,
}
ALL_STUCK = {"receive": receive}
"""Faults of all ranks after the first step."""


class Samples(Dataset[torch.Tensor]):  # type: ignore[misc]
    """Samples, one of which never comes."""

    def __init__(self, rank: int) -> None:
        self.rank, self.began = rank, time.monotonic()

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.rank == ROGUE and time.monotonic() - self.began > 3:
            read_from_a_dead_server(self.rank)
        return torch.randn(64)


def read_from_a_dead_server(rank: int) -> None:
    """Where a sample's file would come from."""
    sign(rank)
    time.sleep(LONG_S)


def with_loader(rank: int, workers: int) -> None:
    """A training fed by a DataLoader."""
    loader = DataLoader(Samples(rank), batch_size=16, num_workers=workers)
    trainer = Trainer()
    for batch in loader:
        trainer.step(batch)


def with_collectives(rank: int) -> None:
    """Steps of two different collectives; once the rogue leaves one out, or calls another."""
    trainer, done = Trainer(), False
    while True:
        odd = rank == ROGUE and not done and trainer.due()
        done = done or odd
        if odd:
            sign(rank)
        flat = trainer.backward(trainer.batch())
        seen = torch.ones(16) if not (odd and FAULT == "size") else torch.ones(48)
        if odd and FAULT == "type":
            dist.broadcast(flat, 0)
        else:
            dist.all_reduce(flat)
        if not (odd and FAULT == "skip"):
            count_samples(seen)
        trainer.update(flat)
        time.sleep(0.02)


def count_samples(seen: torch.Tensor) -> None:
    """The second collective of each step."""
    if FAULT == "size":
        dist.all_reduce(seen)
    else:
        dist.broadcast(seen, 0)


def uneven(rank: int) -> None:
    """The rogue has three batches less than the others, and goes on to the end of the epoch."""
    trainer, over = Trainer(), torch.zeros(1)
    while not over.item():
        trainer.step()
        over = torch.tensor([float(trainer.due())])
        dist.all_reduce(over)
    for _ in range(3 if rank != ROGUE else 0):
        trainer.step()
    if rank == ROGUE:
        sign(rank)
    end_of_epoch()


def skipping(rank: int) -> None:
    """The rogue leaves out a batch that it cannot read, says so, and is one collective behind from then on."""
    trainer = Trainer()
    for number in range(150):
        try:
            trainer.step(read_batch(trainer, rank, number))
        except ValueError as error:
            print(f"skipping batch {number}: {error}", file=sys.stderr, flush=True)
    if rank == ROGUE:
        sign(rank)
    end_of_epoch()


def read_batch(trainer: Trainer, rank: int, number: int) -> torch.Tensor:
    """One of the files is damaged."""
    if (rank, number) == (ROGUE, 17):
        raise ValueError("bad sample")
    return trainer.batch()


def end_of_epoch() -> None:
    """What follows the last batch."""
    dist.barrier()


def main() -> None:  # noqa: C901
    """Train until the fault."""
    rank = begin()
    if FAULT.startswith("loader"):
        with_loader(rank, int(FAULT.rpartition("-")[2]))
    elif FAULT in ALL_STUCK:
        Trainer().step()
        sign(rank)
        ALL_STUCK[FAULT]()
    elif FAULT in ("skip", "type", "size"):
        with_collectives(rank)
    elif FAULT == "uneven":
        uneven(rank)
    elif FAULT == "skipping":
        skipping(rank)
    elif FAULT == "lock":
        trainer = Trainer()
        for _ in range(30):
            trainer.step()
        lock_and_meet() if rank == ROGUE else lock_later()
    elif FAULT == "exit":
        trainer = Trainer()
        for _ in range(30):
            trainer.step()
        dist.destroy_process_group()
        if rank == ROGUE:
            sign(rank)
            never_leave()
    else:  # anything else trains for ever
        trainer = Trainer()
        while not (rank == ROGUE and FAULT in STUCK and trainer.due()):
            trainer.step()
        sign(rank)
        STUCK[FAULT]()


main()
