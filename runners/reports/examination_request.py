"""The request to examine nodes by `doctor`: those of a run, named hosts, or this node."""

from __future__ import annotations

from pathlib import Path

from ...presets.request import Request
from ..doctor.examine import DoctorRequest, NodeToCheck
from ..doctor.node_checks import MIB
from ..hub import on_hosts
from ..launch.hosts import settled, ssh_options
from ..launch.prepared import check_port
from ..run import own_runs, run_directories
from ..run.errors import RunError
from ..run.wire.ssh import Way

MOST_MIB = 4096
SIZE_MIB = 16


def doctor_request(
    *,
    run: str | None = None,
    named: Request | None = None,
    ssh_config: str | None = None,
    python: str | None = None,
    port: int | None = None,
    head: str = "",
    try_pairs: bool = True,
    size_mib: int = SIZE_MIB,
) -> DoctorRequest:
    """Return the request to examine the nodes of a run, named hosts, or else this node. Raises RunError.

    `named`: a request with hosts or a file of them. `size_mib`: of the all-reduce between pairs.
    """
    check_port(port)
    if not 0 < size_mib <= MOST_MIB:
        raise RunError(f"--size {size_mib}: write MiB from 1 to {MOST_MIB}")
    if run is not None and named is not None:
        raise RunError("a run has its own hosts: leave out --hosts and --hostfile, or the run")
    places, cwd = [NodeToCheck("this node")], ""
    if run is not None:
        places, cwd = _of_run(run)
    elif named is not None:
        ssh = ssh_options(ssh_config)
        hosts = settled(named).hosts
        places = [NodeToCheck(host.destination, Way(host.destination, ssh)) for host in hosts]
    return DoctorRequest(
        places=places,
        python=_python(python),
        cwd=cwd,
        port=port,
        head=head,
        try_pairs=try_pairs,
        size=size_mib * MIB,
    )


def _of_run(name: str) -> tuple[list[NodeToCheck], str]:
    """Return the nodes of a run, and the start directory of its ranks. Raises RunError."""
    entry = run_directories.resolve(name)
    if entry.record.kind != "hub":
        return [NodeToCheck("this node")], ""
    own_runs.check(entry.path)
    order = on_hosts.read(entry.path)
    if order is None:
        raise RunError(
            f"the nodes of {entry.record.name} are SkyPilot's: name those you can ssh to with --hosts"
        )
    places = [NodeToCheck(host, Way(host, order.options)) for host in order.hosts]
    return places, f"~/.distui/{order.work}" if order.work else ""


def _python(text: str | None) -> str:
    """Return an interpreter's absolute path; a bare name is looked up on each node's PATH."""
    if text and "/" in text and not text.startswith("~"):
        return str(Path.cwd() / text)
    return text or ""
