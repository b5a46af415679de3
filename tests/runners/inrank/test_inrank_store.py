"""The store of a single node's ranks: it gets a socket on the loopback, in the way in which that torch takes it."""

from __future__ import annotations

import os
import socket
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from each import for_each

from distui.runners.inrank import rank_changes


class Store:
    """Takes what torch's takes: before 2.8 its libuv backend refuses a socket."""

    libuv_listens = True

    def __init__(
        self, host_name: str, port: int, *, is_master: bool, use_libuv: bool = True, **more: Any
    ) -> None:
        self.backend = "libuv" if use_libuv else "older"
        self.socket = more.get("master_listen_fd")
        if self.socket is not None and use_libuv and not self.libuv_listens:
            raise NotImplementedError("The libuv TCPStore backend does not support a listen fd")


@for_each(
    ("version", "listens", "backend"),
    [
        ("2.7.1+cu126", False, "older"),
        ("2.8.0", True, "libuv"),
        ("2.14.1+cu130", True, "libuv"),
        ("3.0.0a0+git1", True, "libuv"),
    ],
)
def test_the_socket_goes_to_a_backend_that_takes_it(
    monkeypatch: pytest.MonkeyPatch, version: str, listens: bool, backend: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))  # type: ignore[arg-type, unused-ignore]
    monkeypatch.setattr(Store, "libuv_listens", listens)
    module = ModuleType(rank_changes.MODULE)
    module.TCPStore = Store  # type: ignore[attr-defined]
    rank_changes._replace_store(module)
    store = module.TCPStore(host_name="127.0.0.1", port=0, is_master=True)
    assert store.backend == backend
    os.close(store.socket)
    other = module.TCPStore(host_name="127.0.0.1", port=0, is_master=False)
    assert (other.backend, other.socket) == ("libuv", None)


def test_a_client_connects_once_rank_0_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    servers: list[socket.socket] = []
    waits: list[float] = []

    def rank_0_listens_after_two_waits(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            servers.append(socket.create_server(("127.0.0.1", port)))

    monkeypatch.setattr(time, "sleep", rank_0_listens_after_two_waits)
    module = ModuleType(rank_changes.MODULE)
    module.TCPStore = lambda **named: socket.create_connection((named["host_name"], named["port"]))  # type: ignore[attr-defined]
    rank_changes._replace_store(module)
    with module.TCPStore(host_name="127.0.0.1", port=port, is_master=False), servers[0]:
        assert len(waits) == 2
