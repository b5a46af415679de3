"""From a cluster's aliases to routes."""

from __future__ import annotations

from distui.runners.hub.cluster_launch import ClusterNodes, routes, suspect

ALIASES = ("tc", "tc-worker1")


NAMES = [
    (("job7-c1", "job7-gpu-02.lab.example"), ["c1", "gpu-02"]),
    (("c1", "gpu-02"), ["c1", "gpu-02"]),
    ((), ["tc", "tc-worker1"]),
    (("job7-c1",), ["tc", "tc-worker1"]),
]
ANSWERED: list[tuple[tuple[str, ...], tuple[str, ...], str]] = [
    (("c1", "c2"), ("job7-c1", "job7-c2"), ""),
    (("c1.lab", "c2.lab"), ("job7-c1", "c2"), ""),
    (("ip-10-0-0-1", "ip-10-0-0-2"), (), ""),
    (("gpu-1.lab", "gpu-2.lab"), ("job2-gpu-1", "job2-gpu-2"), ""),
    (("c2", "c1"), ("job2-c1", "job2-c2"), "ssh tc leads to c2, and that node is job2-c1"),
    (("login", "c2"), ("job7-c1", "job7-c2"), "ssh tc leads to login, and that node is job7-c1"),
    (("login", "login"), (), "several nodes' aliases lead to login"),
]


def test_nodes_are_named_as_their_users_know_them() -> None:
    for hosts, names in NAMES:
        found = routes(ClusterNodes(ALIASES, hosts), "~/.distui/bundle-1", "0123abcd")
        assert [(one.host, one.target) for one in found] == list(zip(names, ALIASES, strict=True))


def test_an_alias_that_leads_elsewhere() -> None:
    for answered, hosts, problem in ANSWERED:
        found = suspect(ClusterNodes(ALIASES, hosts), answered)
        assert (found or "").partition(":")[0] == problem, answered
