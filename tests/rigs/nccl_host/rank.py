"""One rank of a program on NCCL's API: `rank.py LIBRARY RANK WORLD OPTION=VALUE…`. Standard library, no torch.

It talks to the conductor by lines through the socket that RIG_CONTROL numbers: each waits for what the other says, and
nobody sleeps. Whatever goes wrong is an exception that nobody catches, as in a user's program.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket
import sys
import time
from typing import Any

IN_PROGRESS = 7
NOT_READY = 600
FLOAT, SUM = 7, 0
NUMBERS = 1 << 16
"""Elements of a tensor."""


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("bytes", ctypes.c_char * 128),)


class Config(ctypes.Structure):
    """ncclConfig_t as of NCCL 2.18; later versions read no more of it than it says to have."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cluster_size", ctypes.c_int),
        ("min_blocks", ctypes.c_int),
        ("max_blocks", ctypes.c_int),
        ("network", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    )


MAGIC, VERSION, UNDEFINED = 0xCAFEBEEF, 21800, -(1 << 31)


class Conductor:
    """The other end of the control socket."""

    def __init__(self) -> None:
        self._socket = socket.socket(fileno=int(os.environ["RIG_CONTROL"]))
        self._lines = self._socket.makefile("r")

    def tell(self, line: str) -> None:
        """Something has happened here."""
        self._socket.sendall(f"{line}\n".encode())

    def hear(self) -> str:
        """The next thing to do; ends this process where the conductor is gone."""
        line = self._lines.readline()
        if not line:
            sys.exit(0)
        return line.strip()


class Rank:
    """Of one communicator."""

    def __init__(self, library: str, rank: int, world: int, options: dict[str, str]) -> None:
        self.rank, self.world, self.options = rank, world, options
        self.conductor = Conductor()
        self.cuda: Any = ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
        self.nccl: Any = ctypes.CDLL(library)
        self.nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self.nccl.ncclGetLastError.restype = ctypes.c_char_p
        self.comm, self.stream, self.buffer = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self.time_limit = float(options.get("limit", 0)) or None

    def check(self, code: int, call: str) -> None:
        """Raise what torch would."""
        if code not in (0, IN_PROGRESS):
            text, last = self.nccl.ncclGetErrorString(code), self.nccl.ncclGetLastError(None)
            raise RuntimeError(f"NCCL error in {call}: {text.decode()}\nLast error:\n{last.decode()}")

    def cuda_check(self, code: int, call: str) -> None:
        """Raise what a caller of CUDA would."""
        if code:
            self.cuda.cudaGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"CUDA error in {call}: {self.cuda.cudaGetErrorString(code).decode()}")

    def initialise(self) -> None:
        """All ranks make the communicator."""
        self.cuda_check(
            self.cuda.cudaSetDevice(int(self.options.get("device", self.rank))), "cudaSetDevice"
        )
        unique = UniqueId()
        if self.rank == 0:
            self.check(self.nccl.ncclGetUniqueId(ctypes.byref(unique)), "ncclGetUniqueId")
            self.conductor.tell(f"id {bytes(unique).hex()}")
        else:
            self.conductor.tell("id")
        ctypes.memmove(ctypes.byref(unique), bytes.fromhex(self.conductor.hear().removeprefix("id ")), 128)
        world = int(self.options.get("claims", self.world))
        if self.time_limit is None:
            self.nccl.ncclCommInitRank.argtypes = [ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int]
            code = self.nccl.ncclCommInitRank(ctypes.byref(self.comm), world, unique, self.rank)
            self.check(code, "ncclCommInitRank")
        else:
            self._initialise_in_time(world, unique)
        self.cuda_check(
            self.cuda.cudaStreamCreateWithFlags(ctypes.byref(self.stream), 1), "cudaStreamCreate"
        )
        size = ctypes.c_size_t(4 * NUMBERS * max(self.world, 2))
        self.cuda_check(self.cuda.cudaMalloc(ctypes.byref(self.buffer), size), "cudaMalloc")

    def _initialise_in_time(self, world: int, unique: UniqueId) -> None:
        """As torch does with a time limit: start it, ask how it goes, abort it."""
        undefined = dict.fromkeys(("cluster_size", "min_blocks", "max_blocks", "split_share"), UNDEFINED)
        config = Config(size=ctypes.sizeof(Config), magic=MAGIC, version=VERSION, blocking=0, **undefined)
        self.nccl.ncclCommInitRankConfig.argtypes = [
            ctypes.c_void_p, ctypes.c_int, UniqueId, ctypes.c_int, ctypes.c_void_p,
        ]  # fmt: skip
        code = self.nccl.ncclCommInitRankConfig(
            ctypes.byref(self.comm), world, unique, self.rank, ctypes.byref(config)
        )
        self.check(code, "ncclCommInitRankConfig")
        self._until_ready("ncclCommInitRankConfig")

    def _until_ready(self, call: str) -> None:
        state, end = ctypes.c_int(IN_PROGRESS), time.monotonic() + (self.time_limit or 0)
        while state.value == IN_PROGRESS:
            self.check(self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(state)), call)
            if time.monotonic() > end:
                self.abort()
                raise TimeoutError(f"{call} timed out after {self.time_limit:g} s")
            time.sleep(0.01)  # the API has nothing to wait on
        self.check(state.value, call)

    def abort(self) -> None:
        """What is in flight ends without a result."""
        self.cuda.rig_end_kernels()
        self.nccl.ncclCommAbort(self.comm)

    def call(self, operation: str) -> None:
        """One collective of all ranks, to its end."""
        count, args = ctypes.c_size_t(NUMBERS), (self.comm, self.stream)
        root = int(self.options.get("root_of_broadcast", 0))
        if operation == "AllReduce":
            code = self.nccl.ncclAllReduce(self.buffer, self.buffer, count, FLOAT, SUM, *args)
        elif operation == "Broadcast":
            code = self.nccl.ncclBroadcast(self.buffer, self.buffer, count, FLOAT, root, *args)
        elif operation == "AllGather":
            code = self.nccl.ncclAllGather(self.buffer, self.buffer, count, FLOAT, *args)
        else:
            code = self._neighbours(count)
        self.check(code, f"nccl{operation}")
        self.conductor.tell("calls")
        self._until_done(operation)

    def _neighbours(self, count: ctypes.c_size_t) -> int:
        after, before = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        self.nccl.ncclGroupStart()
        self.check(self.nccl.ncclSend(self.buffer, count, FLOAT, after, self.comm, self.stream), "ncclSend")
        self.check(
            self.nccl.ncclRecv(self.buffer, count, FLOAT, before, self.comm, self.stream), "ncclRecv"
        )
        return int(self.nccl.ncclGroupEnd())

    def _until_done(self, operation: str) -> None:
        limit = float(self.options.get("wait", 60))
        state, end = ctypes.c_int(0), time.monotonic() + limit
        while (code := self.cuda.cudaStreamQuery(self.stream)) == NOT_READY:
            self.check(
                self.nccl.ncclCommGetAsyncError(self.comm, ctypes.byref(state)), "ncclCommGetAsyncError"
            )
            if state.value not in (0, IN_PROGRESS):
                self.abort()
                self.check(state.value, operation)
            if time.monotonic() > end:
                self.abort()
                raise TimeoutError(f"nccl{operation} timed out after {limit:g} s")
            time.sleep(0.01)
        self.cuda_check(code, "cudaStreamQuery")

    def toggle(self, variables: list[str]) -> None:
        """NCCL logs otherwise from now on."""
        for variable in variables:
            name, _, value = variable.partition("=")
            os.environ[name] = value
        self.nccl.ncclResetDebugInit()

    def run(self) -> None:
        """Do what the conductor says, until it says to end."""
        self.initialise()
        self.conductor.tell("ready")
        while (order := self.conductor.hear()) != "end":
            verb, *words = order.split()
            if verb == "call":
                for operation in words:
                    self.call(operation)
            elif verb == "limit":
                self.options["wait"] = words[0]
            elif verb == "toggle":
                self.toggle(words)
            elif verb == "raise":
                raise ValueError(" ".join(words))
            elif verb == "abort":
                self.abort()
                return
            elif verb == "leave":
                return
            self.conductor.tell("done")
        self.check(self.nccl.ncclCommDestroy(self.comm), "ncclCommDestroy")


def main() -> None:
    """Read the command line."""
    library, rank, world, *options = sys.argv[1:]
    chosen = dict(option.split("=", 1) for option in options)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = int(chosen.get("files", min(most, 65536)))
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    Rank(library, int(rank), int(world), chosen).run()


if __name__ == "__main__":
    main()
