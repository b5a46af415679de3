"""What one rank alone may ask of the others, while they do something else: parts of a state that is divided over them.

Scripts save on rank 0 alone. A collective there would wait for ranks that never come, so every rank has a thread that
answers: questions stand in the job's own store, answers travel through a group of gloo's, each as the state of one
version. A rank whose script has ended stays until the others need nothing more of it.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .adopted import AdoptionError

POLL_S = 0.05
"""Seconds between two looks for a question."""
QUICK_S = 0.001
"""The same for a second after a question."""
STORE_S = 60.0
"""The longest that the store may take to answer."""
FAILED_S = 2.0
"""The longest that a rank which has failed waits for its threads."""
LINGER_S = 1800.0
"""The longest that a rank which has ended waits for the others: as long as gloo waits for anything."""


class Topic(NamedTuple):
    """Something that this rank answers for."""

    version: Callable[[], int]
    """Of the state here; it only grows."""
    answer: Callable[[Any], Any]
    """A question → what torch.save takes."""
    exact: bool = True
    """Whether a later version cannot answer."""


class PeerService:
    """Questions and answers between all ranks; every rank makes it at the same place of its script."""

    def __init__(self) -> None:
        """Raises AdoptionError where the ranks have no store that can be reached."""
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.passes = 0
        """Forward passes for training that this rank has begun: the others then wait for it in the backward pass."""
        self._group = dist.new_group(backend="gloo")
        self._store = dist.PrefixStore(
            f"distui/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", job_store()
        )
        self._gpu = _Gpu() if torch.cuda.is_initialized() else None
        self._topics: dict[str, Topic] = {}
        self._next = 1
        self._over, self._leaving = threading.Event(), False
        self._threads: list[threading.Thread] = []
        self.start("distui-peers", self._listen)

    def start(self, name: str, what: Callable[..., None], *args: Any) -> None:
        """A thread that asks or answers; the end of this process waits for it: cut off in torch it would abort that."""
        thread = threading.Thread(target=what, args=args, name=name, daemon=True)
        self._threads = [*(each for each in self._threads if each.is_alive()), thread]
        thread.start()

    def serve(
        self, name: str, version: Callable[[], int], answer: Callable[[Any], Any], exact: bool = True
    ) -> None:
        """Answer the questions about a topic from now on."""
        self._topics[name] = Topic(version, answer, exact)
        self.changed(name)

    def changed(self, name: str) -> None:
        """What a topic answers is now what the script's thread has given the GPU to do so far."""
        if self._gpu is not None:
            self._gpu.mark(name)

    def settle(self) -> None:
        """Wait until the GPU has come to here, and with it the other ranks to the collectives before."""
        if self._gpu is not None:
            torch.cuda.current_stream().synchronize()

    def ask(
        self, name: str, version: int, question: Any = None, ranks: Sequence[int] | None = None
    ) -> list[Any]:
        """The answers of the other ranks, or of some, in their order; they come once each has reached `version`.

        No other rank has to call this. Raises AdoptionError where a rank has ended, or is farther than `version`.
        """
        others = [rank for rank in (range(self.world) if ranks is None else ranks) if rank != self.rank]
        if not others:
            return []
        number = self._store.add("asked", 1)
        request = {"from": self.rank, "to": others, "topic": name, "version": version, "question": question}
        self._store.set(f"ask/{number}", json.dumps(request))
        gone = [rank for rank in others if self._store.check([f"gone/{rank}"])]
        if gone:
            raise AdoptionError(
                f"rank {gone[0]} has ended, and a part of the state that is asked for was there"
            )
        return [self._received(rank, number) for rank in others]

    def _received(self, rank: int, number: int) -> Any:
        head = torch.zeros(2, dtype=torch.int64)
        dist.recv(head, src=rank, group=self._group, tag=number)
        well, size = head.tolist()
        body = bytearray(size)
        dist.recv(torch.frombuffer(body, dtype=torch.uint8), src=rank, group=self._group, tag=number)
        if not well:
            raise AdoptionError(f"rank {rank}: {body.decode()}")
        return torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)

    def _listen(self) -> None:
        last = 0.0
        while not self._over.wait(QUICK_S if time.monotonic() - last < 1.0 else POLL_S):
            try:
                while self._store.check([f"ask/{self._next}"]):
                    last = time.monotonic()
                    request = json.loads(self._store.get(f"ask/{self._next}"))
                    if self.rank in request["to"]:
                        self.start("distui-answer", self._answer, self._next, request)
                    self._next += 1
                if self._store.add("leavers", 0):
                    self._release()
            except RuntimeError:  # the store went with rank 0
                return

    def _answer(self, number: int, request: dict[str, Any]) -> None:
        """Once this rank has come as far as the one that asks."""
        try:
            topic = self._reached(request["topic"], request["version"])
            with self._gpu.after(request["topic"]) if self._gpu else contextlib.nullcontext():
                text, well = _packed(topic.answer(request["question"])), 1
            if topic.exact and topic.version() != request["version"]:
                raise AdoptionError(
                    f"its {request['topic']} has changed meanwhile: the ranks differ in their steps"
                )
        except (AdoptionError, RuntimeError, TypeError, LookupError) as error:
            text, well = (str(error) or type(error).__name__).encode(), 0
        body = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        with contextlib.suppress(RuntimeError):  # the one that asked is gone
            for part in (torch.tensor([well, len(body)]), body):
                dist.send(part, dst=request["from"], group=self._group, tag=number)

    def _reached(self, name: str, version: int) -> Topic:
        """The topic, once this rank is at that version of it. Raises AdoptionError where it never will be."""
        began = time.monotonic()
        while name not in self._topics or self._topics[name].version() < version:
            if self._leaving or time.monotonic() - began > LINGER_S:
                raise AdoptionError(
                    f"its script {'has ended' if self._leaving else 'does not come'} before {name} was at {version}"
                )
            time.sleep(POLL_S / 10)
        here = self._topics[name].version()
        if here > version and self._topics[name].exact:
            raise AdoptionError(
                f"its {name} is at {here}, and {version} was asked for: the ranks differ in their steps"
            )
        return self._topics[name]

    def _release(self) -> None:
        """Send away the ranks that have ended and are missing in what this one does."""
        for rank in range(self.world):
            left = rank != self.rank and self._store.check([f"left/{rank}"])
            if left and int(self._store.get(f"left/{rank}")) < self.passes:
                self._store.set(f"go/{rank}", "1")

    def leave(self) -> None:
        """Wait until every rank has come to its end, then answer no more."""
        if self._over.is_set():
            return
        began, self._leaving = time.monotonic(), True
        try:
            self._store.set(f"left/{self.rank}", str(self.passes))
            self._store.add("leavers", 1)
            while not self._store.check([f"left/{rank}" for rank in range(self.world)]):
                if self._store.check([f"go/{self.rank}"]) or time.monotonic() - began > LINGER_S:
                    self._store.set(f"gone/{self.rank}", "1")
                    break
                time.sleep(POLL_S)
        except RuntimeError:  # the store went with rank 0, which needs nothing more
            pass
        self.close()

    def ended(self, seconds: float) -> bool:
        """Whether this rank has come to its end, after waiting so long for it."""
        return self._over.wait(seconds) or self._leaving

    def close(self, seconds: float = STORE_S) -> None:
        """Answer no more; waits at most so long for what is under way."""
        self._over.set()
        until = time.monotonic() + seconds
        while (alive := [each for each in self._threads if each.is_alive()]) and time.monotonic() < until:
            alive[0].join(until - time.monotonic())


class _Gpu:
    """How this rank's threads come by what its GPU has, while that waits in a collective for the one that asks.

    What they read was there when the topic changed last: they wait for the work before that, on a stream of theirs.
    """

    def __init__(self) -> None:
        self._device, self._stream = torch.cuda.current_device(), torch.cuda.Stream()
        self._marks: dict[str, torch.cuda.Event] = {}

    def mark(self, name: str) -> None:
        """Called by the thread that has changed the topic."""
        event = torch.cuda.Event()
        event.record()
        self._marks[name] = event

    @contextlib.contextmanager
    def after(self, name: str) -> Iterator[None]:
        """On this rank's GPU, behind the topic's last change."""
        torch.cuda.set_device(self._device)  # a thread begins on GPU 0
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._marks[name])
            yield
            self._stream.synchronize()


def _packed(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def job_store() -> dist.Store:
    """A connection of its own to the store at which the ranks have met. Raises AdoptionError."""
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    try:
        return dist.TCPStore(
            host, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=STORE_S)
        )
    except (RuntimeError, ValueError) as error:
        raise AdoptionError(
            f"the ranks have no store at {host}:{port} (MASTER_ADDR, MASTER_PORT), which --adopt needs: have the script "
            "call init_process_group() without an init_method"
        ) from error


class ScriptEnd:
    """Has this process leave in order where its script ends well, and at once where it fails."""

    def __init__(self, service: PeerService) -> None:
        self._service, self._failed, self._pid = service, False, os.getpid()
        self._raised, self._exit = sys.excepthook, sys.exit
        sys.excepthook, sys.exit = self._note_raised, self._note_exit  # type: ignore[assignment]
        atexit.register(self._ended)

    def _note_raised(
        self, kind: type[BaseException], value: BaseException, trace: TracebackType | None
    ) -> None:
        self._failed = True
        self._raised(kind, value, trace)

    def _note_exit(self, code: Any = None) -> None:
        self._failed = self._failed or bool(code)
        self._exit(code)

    def _ended(self) -> None:
        if os.getpid() != self._pid:
            return
        if self._failed:
            self._service.close(FAILED_S)
        else:
            self._service.leave()
