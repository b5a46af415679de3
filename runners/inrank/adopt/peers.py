"""Read a state that is divided over the ranks on one rank only, while the others do something else.

Scripts save on rank 0 only. A collective there would wait for ranks that never come, so each rank has a thread that
waits for questions in the job's store and answers over gloo. The thread does not poll: the store wakes it. After its
script has ended, a rank stays until the scripts of all ranks have ended.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .meeting import END, Meeting
from .refusals import refusal
from .report import AdoptionError

WAIT = timedelta(hours=12)
"""Timeout of one wait for a question; the thread then waits again."""
STORE = timedelta(seconds=60)
"""Timeout of the store's other operations."""
JOIN_S = 10.0
"""Seconds to wait for the thread at the end of the process."""


class Peers:
    """Questions and answers between all ranks. Every rank has to create it at the same place of its script."""

    def __init__(self, meeting: Meeting) -> None:
        """Raise AdoptionError if this rank cannot reach the job's store."""
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._meeting, self._pid = meeting, os.getpid()
        self._group = dist.new_group(backend="gloo")
        self._store, self._heard = _job_store(), _job_store()
        self._topics: dict[str, tuple[int, Callable[[Any], Any]]] = {}
        """Name → version of the state on this rank, and the function that answers questions about it."""
        self._changed = threading.Condition()
        self._gpu = _Gpu() if torch.cuda.is_initialized() else None
        self._closed = False
        self._thread = threading.Thread(target=self._listen, name="distui-peers", daemon=True)
        self._thread.start()
        atexit.register(self._exit)

    def serve(self, topic: str, version: int, answer: Callable[[Any], Any]) -> None:
        """Answer questions about a topic after the main thread has brought its state to `version`."""
        if self._gpu is not None:
            self._gpu.mark(topic)
        with self._changed:
            self._topics[topic] = version, answer
            self._changed.notify_all()

    def settle(self) -> None:
        """Wait before a step until the GPU has finished its queued work, and with it all earlier collectives."""
        if self._gpu is not None:
            torch.cuda.current_stream().synchronize()

    def ask(
        self, topic: str, version: int, question: Any = None, ranks: Sequence[int] | None = None
    ) -> list[Any]:
        """Return the other ranks' answers (of `ranks`, if given) in rank order, each from the state at that version.

        Raises AdoptionError if a rank has ended, or is at another version.
        """
        asked = range(self.world) if ranks is None else ranks
        others = [rank for rank in asked if rank != self.rank]
        request = {"from": self.rank, "topic": topic, "version": version, "question": question}
        for rank in others:
            self._send(rank, json.dumps(request))
        try:
            return [self._received(rank) for rank in others]
        except RuntimeError as error:
            raise refusal("ended before state_dict") from error

    def _send(self, rank: int, text: str) -> None:
        """Put a message for a rank's thread into the store."""
        number = self._store.add(f"{rank}/count", 1)
        self._store.set(f"{rank}/{number}", text)

    def _received(self, rank: int) -> Any:
        answer: list[Any] = [None, ""]
        dist.recv_object_list(answer, src=rank, group=self._group)
        packed, error = answer
        if error:
            raise AdoptionError(f"rank {rank}: {error}")
        return torch.load(io.BytesIO(packed), map_location="cpu", weights_only=True)

    def _listen(self) -> None:
        number = 1
        while not self._closed:
            try:
                self._heard.wait([f"{self.rank}/{number}"], WAIT)
                text = self._heard.get(f"{self.rank}/{number}")
                self._heard.delete_key(f"{self.rank}/{number}")
            except dist.DistStoreError:  # no question in time
                continue
            except RuntimeError:  # the store has closed: the job is over
                return
            number += 1
            if text:
                self._answer(json.loads(text))

    def _answer(self, request: dict[str, Any]) -> None:
        answer: list[Any]
        try:
            answer = [self._state(request["topic"], request["version"], request["question"]), ""]
        except (AdoptionError, RuntimeError, TypeError, LookupError) as error:
            answer = [None, str(error) or type(error).__name__]
        with contextlib.suppress(RuntimeError):  # the asking rank has ended
            dist.send_object_list(answer, dst=request["from"], group=self._group)

    def _state(self, topic: str, version: int, question: Any) -> bytes:
        """Wait until this rank is at that version, and return the answer. Raises AdoptionError if it is past it."""

        def is_there() -> bool:
            return self._closed or (topic in self._topics and self._topics[topic][0] >= version)

        with self._changed:
            self._changed.wait_for(is_there)
            here, answer = self._topics.get(topic, (-1, lambda _: None))
        if here == version:
            with self._gpu.after(topic) if self._gpu else contextlib.nullcontext():
                packed = _packed(answer(question))
            if self._topics[topic][0] == version:
                return packed
        raise refusal("another version")

    def leave(self) -> None:
        """Answer until the scripts of all ranks have ended."""
        if not self._closed:
            with contextlib.suppress(AdoptionError):  # ranks that still train raise it, too
                self._meeting.meet(END)
            self._close()

    def _close(self) -> None:
        """End the thread: the end of the process would abort if it were still inside torch."""
        if self._closed:
            return
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        with contextlib.suppress(RuntimeError):
            self._send(self.rank, "")
        self._thread.join(JOIN_S)

    def _exit(self) -> None:
        if os.getpid() != self._pid:  # a fork
            return
        if hasattr(sys, "last_type"):  # the script has raised
            self._close()
        else:
            self.leave()


class _Gpu:
    """Reads this rank's GPU memory from another thread, while the GPU waits in a collective for the asking rank.

    The copy runs on a separate stream, which waits only for the event of the topic's last change.
    """

    def __init__(self) -> None:
        self._device, self._stream = torch.cuda.current_device(), torch.cuda.Stream()
        self._marks: dict[str, torch.cuda.Event] = {}

    def mark(self, topic: str) -> None:
        """Record the event of a change; the thread that has changed the topic's state calls this."""
        event = torch.cuda.Event()
        event.record()
        self._marks[topic] = event

    @contextlib.contextmanager
    def after(self, topic: str) -> Iterator[None]:
        """Use this rank's GPU after the topic's last change, on the separate stream."""
        torch.cuda.set_device(self._device)  # a thread begins on GPU 0
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._marks[topic])
            yield
            self._stream.synchronize()


def _packed(value: Any) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _job_store() -> dist.Store:
    """Open another connection to the job's store at MASTER_ADDR:MASTER_PORT. Raises AdoptionError."""
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    try:
        store = dist.TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=STORE)
    except (RuntimeError, ValueError) as error:
        raise refusal("no store", address=f"{host}:{port}") from error
    return dist.PrefixStore(f"distui/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
