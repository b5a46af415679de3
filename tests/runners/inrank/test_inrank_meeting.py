"""Where a torchrun of the user's own meets the others: both of SkyPilot's recipes, and one node alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from each import for_each

from distui.runners.inrank import coordinator, rendezvous

PART = {"run": "20260101-000000-own-0123abcd.n1", "node": 1, "nnodes": 2}


def parsed(**about: Any) -> SimpleNamespace:
    """What torchrun's own parser makes of a command line."""
    usual: dict[str, Any] = {
        "nnodes": "2",
        "rdzv_backend": "static",
        "rdzv_endpoint": "",
        "rdzv_id": "none",
        "rdzv_conf": "",
        "node_rank": 0,
        "master_addr": "127.0.0.1",
        "master_port": 29500,
        "local_addr": None,
    }
    return SimpleNamespace(**{**usual, **about})


@for_each("rank", [0, 1])
def test_the_static_recipe(rank: int) -> None:
    args = parsed(node_rank=rank, master_addr="127.0.0.1", master_port=8008)
    rendezvous.set_rendezvous(args, PART)
    assert (args.rdzv_backend, args.rdzv_endpoint) == ("distui", "127.0.0.1:8008")
    assert args.rdzv_id == "20260101-000000-own-0123abcd", "the same on every node"
    assert args.rdzv_conf.split(",")[0] == f"is_host={1 - rank}", "the node rank that the user gave decides"
    assert args.local_addr == "127.0.0.1"


def test_the_c10d_recipe_keeps_what_it_says() -> None:
    args = parsed(
        rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:29400", rdzv_id="sky-1", rdzv_conf="read_timeout=5"
    )
    rendezvous.set_rendezvous(args, PART)
    assert (args.rdzv_endpoint, args.rdzv_id) == ("127.0.0.1:29400", "sky-1")
    assert args.rdzv_conf == "is_host=0,read_timeout=5,order=1"
    own = parsed(
        rdzv_backend="c10d", rdzv_endpoint="127.0.0.1:29400", rdzv_conf="is_host=1", local_addr="10.0.0.9"
    )
    rendezvous.set_rendezvous(own, PART)
    assert (own.rdzv_conf, own.local_addr) == ("is_host=1,order=1", "10.0.0.9")


@for_each("backend", ["static", "c10d", "etcd-v2"])
def test_one_node_meets_itself(backend: str) -> None:
    args = parsed(nnodes="1:1", rdzv_backend=backend, rdzv_endpoint="10.0.0.1:29400", local_addr="10.0.0.1")
    rendezvous.set_rendezvous(args, PART)
    assert (args.rdzv_backend, args.rdzv_endpoint, args.local_addr) == ("distui", "", "10.0.0.1")
    usual = parsed(nnodes="1")
    rendezvous.set_rendezvous(usual, PART)
    assert usual.local_addr == "127.0.0.1"


def test_torch_warns_of_nothing_on_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    run = pytest.importorskip("torch.distributed.run")
    words = ["--nnodes", "1", "--standalone", "--local-addr", "127.0.0.1", "x.py"]
    args, warned = run.parse_args(words), list[str]()
    monkeypatch.setattr(run.logger, "warning", lambda text, *_: warned.append(text))
    rendezvous.set_rendezvous(args, PART)
    args.rdzv_backend = "c10d"  # distui's own is there in a runner alone
    run.config_from_args(args)
    assert not [text for text in warned if "master_addr" in text]


def test_another_rendezvous_is_left_alone() -> None:
    args = parsed(rdzv_backend="etcd-v2", rdzv_endpoint="etcd:2379")
    before = dict(vars(args))
    rendezvous.set_rendezvous(args, PART)
    assert vars(args) == before


@for_each(
    ("nnodes", "of_plan", "several"),
    [("1", 1, False), ("1:1", 4, False), ("2", 2, True), ("1:4", 4, True), ("2", 1, None)],
)
def test_who_the_others_are(nnodes: str, of_plan: int, several: bool | None) -> None:
    assert rendezvous.several_nodes(nnodes, {"nnodes": of_plan}) is several


def test_an_address_that_leads_nowhere_is_unknown() -> None:
    assert coordinator.address_towards("127.0.0.1:8008") == "127.0.0.1"
    assert coordinator.address_towards("[::1]:8008") in ("::1", None)
    assert coordinator.address_towards("no.such.host.invalid:8008") is None
