"""All calls of SkyPilot's SDK: candidates, clusters and their jobs, managed jobs; and the process that makes them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import io
import os
import shutil
import subprocess
import sys
from typing import Any

from .serve import LineStream, SkyCall, SkyServer

SUPPORTED = (0, 14)
"""The SkyPilot release that this package was written for and tested with."""


def version(call: SkyCall) -> dict[str, Any]:
    """Return SkyPilot's version and this Python's path, without importing SkyPilot."""
    if importlib.util.find_spec("sky") is None:
        return {"version": None, "python": sys.executable, "supported": False}
    try:
        release = importlib.metadata.version("skypilot")
    except importlib.metadata.PackageNotFoundError:
        try:
            release = importlib.metadata.version("skypilot-nightly")
        except importlib.metadata.PackageNotFoundError:
            release = ""
    numbers = tuple(int(part) for part in release.split(".")[:2] if part.isdigit())
    return {"version": release, "python": sys.executable, "supported": numbers == SUPPORTED}


def candidates(call: SkyCall, config: dict[str, Any]) -> dict[str, str]:
    """Return the optimizer's table for a task as text, because SkyPilot returns no other form."""
    import sky
    from sky.client import sdk

    dag = sky.Dag()
    dag.add(sky.Task.from_yaml_config(config))
    sdk.validate(dag)
    text = io.StringIO()
    request = sky.optimize(dag)
    call.began(request)
    sky.stream_and_get(request, output_stream=text)
    return {"text": text.getvalue()}


# -----------------------------------------------------------------------------------------------------------
# Clusters and their jobs.


def launch(
    call: SkyCall, config: dict[str, Any], cluster: str, fast: bool = False, retry_until_up: bool = False
) -> dict[str, Any]:
    """Bring the cluster up (or reuse it) and submit the task. Return {"job": number}."""
    import sky
    from sky.client import sdk

    task = sky.Task.from_yaml_config(config)
    request = sdk.launch(task, cluster_name=cluster, fast=fast, retry_until_up=retry_until_up)
    call.began(request)
    return follow(call, request)


def follow(call: SkyCall, request: str) -> dict[str, Any]:
    """Wait for a launch at the API server. Its text is reported immediately."""
    import sky

    call.request = str(request)
    job, _ = sky.stream_and_get(request, output_stream=LineStream(call))
    return {"job": job}


def give_up(request: str) -> None:
    """Cancel a request at the API server."""
    import sky
    from sky.client import sdk

    sky.get(sdk.api_cancel([request], silent=True))


def describe(call: SkyCall, cluster: str, refresh: bool = False) -> dict[str, Any] | None:
    """Return SkyPilot's record of a cluster, or None if there is none. `refresh`: also query the cloud."""
    import sky
    from sky.utils import common_utils

    mode = sky.StatusRefreshMode.FORCE if refresh else sky.StatusRefreshMode.NONE
    records = sky.get(sky.status([cluster], refresh=mode, all_users=True))
    if not records:
        return None
    record = records[0]
    handle = record["handle"]
    launched = getattr(handle, "launched_resources", None)
    minutes = record["autostop"]
    return {
        "state": record["status"].value,
        "nodes": record.get("nodes") or getattr(handle, "launched_nodes", None),
        "resources": str(record.get("resources_str") or ""),
        "infra": str(launched.infra.to_str() or "") if launched is not None else "",
        "since": record["launched_at"],
        "autostop_min": minutes if isinstance(minutes, int) and minutes >= 0 else None,
        "ours": record["user_hash"] == common_utils.get_user_hash(),
        "user": record["user_name"],
        "managed": bool(record.get("is_managed")),
    }


def cost(call: SkyCall, cluster: str) -> dict[str, float] | None:
    """Return the cost and duration of a cluster from SkyPilot's report, or None without a price."""
    import sky

    for report in sky.get(sky.cost_report(days=None)) or ():
        if report["name"] == cluster and report.get("total_cost") and report.get("duration"):
            return {"total": float(report["total_cost"]), "seconds": float(report["duration"])}
    return None


def reach(call: SkyCall, cluster: str) -> dict[str, Any]:
    """Write ~/.ssh/config, and return the alias of every node, on Slurm also its host.

    After the SDK's launch, the file lacks the connection through the API server on Slurm, so that a node's alias is the
    login host. Only SkyPilot's command line writes the complete file, and this is its function.
    """
    import sky
    from sky.client.cli import command

    write = getattr(command, "_get_cluster_records_and_set_ssh_config", None)
    if write is not None:
        write(clusters=[cluster])
    else:
        beside = shutil.which("sky", path=os.path.dirname(sys.executable)) or "sky"
        subprocess.run([beside, "status", cluster], stdin=subprocess.DEVNULL, check=True, timeout=120)
    record = sky.get(sky.status([cluster], all_users=True))[0]
    nodes = len(record["handle"].cached_external_ips)
    aliases = [cluster if node == 0 else f"{cluster}-worker{node}" for node in range(nodes)]
    names = [name for name in str(record.get("node_names") or "").split(",") if name]
    infra = str(record["handle"].launched_resources.infra.to_str() or "")
    return {"aliases": aliases, "hosts": names if infra.startswith("slurm") else []}


def jobs(call: SkyCall, cluster: str) -> list[dict[str, Any]]:
    """Return the cluster's queue, newest first."""
    import sky

    return [{"job": record["job_id"], "name": record["job_name"]} for record in sky.get(sky.queue(cluster))]


def job_state(call: SkyCall, cluster: str, job: int) -> str | None:
    """Return SkyPilot's state of a job, or None if it does not know the job."""
    import sky

    states = sky.get(sky.job_status(cluster, [job]))
    state = next((word for key, word in states.items() if key is not None and int(key) == job), None)
    return None if state is None else str(state.value)


def tail(call: SkyCall, cluster: str, job: int) -> int:
    """Report the output of a cluster's job until it ends or the call is cancelled."""
    import sky

    call.pass_on(sky.tail_logs(cluster, job, follow=True, preload_content=False))
    return 0


def cancel(call: SkyCall, cluster: str, job: int) -> bool:
    """Cancel a job. SkyPilot sends SIGTERM to its living ranks."""
    import sky

    sky.get(sky.cancel(cluster, job_ids=[job]))
    return True


def autostop(call: SkyCall, cluster: str, minutes: int | None) -> bool:
    """Take the cluster down after `minutes` without a job, or never for None."""
    import sky

    sky.get(sky.autostop(cluster, -1 if minutes is None else minutes, down=minutes is not None))
    return True


def down(call: SkyCall, cluster: str) -> bool:
    import sky

    request = sky.down(cluster)
    call.began(request)
    sky.stream_and_get(request, output_stream=LineStream(call))
    return True


# -----------------------------------------------------------------------------------------------------------
# Managed jobs: SkyPilot recovers them on new clusters, and provides no ssh to their nodes.


FIELDS = ("job_id", "job_name", "status", "submitted_at", "end_at", "recovery_count", "failure_reason")


def managed_launch(call: SkyCall, config: dict[str, Any], name: str) -> dict[str, Any]:
    """Submit a managed job. Return {"job": number}."""
    import sky
    from sky import jobs

    request = jobs.launch(sky.Task.from_yaml_config(config), name=name)
    call.began(request)
    # The handle is never printed, because that raises an exception.
    numbers, _ = sky.stream_and_get(request, output_stream=LineStream(call))
    return {"job": (numbers or [None])[0]}


def managed_jobs(call: SkyCall, job: int) -> list[dict[str, Any]]:
    """Return the state of a managed job, or [] while SkyPilot does not list it."""
    import sky
    from sky import jobs

    answer = sky.get(jobs.queue_v2(refresh=False, job_ids=[job], fields=FIELDS))
    records = answer[0] if isinstance(answer, tuple) else answer
    return [
        {
            "job": record["job_id"],
            "state": record["status"].value,
            "recoveries": record["recovery_count"],
            "why": record.get("failure_reason"),
        }
        for record in records
    ]


def managed_cancel(call: SkyCall, job: int) -> bool:
    """Cancel a managed job, which also takes its cluster down."""
    import sky
    from sky import jobs

    sky.get(jobs.cancel(job_ids=[job]))
    return True


def managed_tail(call: SkyCall, job: int) -> int:
    """Report the output of a managed job until it ends or the call is cancelled."""
    from sky import jobs

    call.pass_on(jobs.tail_logs(job_id=job, follow=True, preload_content=False) or ())
    return 0


# -----------------------------------------------------------------------------------------------------------
# The process: its verbs and its streams.


VERBS = {
    verb.__name__: verb
    for verb in (
        version,
        candidates,
        launch,
        follow,
        describe,
        reach,
        jobs,
        job_state,
        tail,
        cancel,
        autostop,
        down,
        cost,
        managed_launch,
        managed_jobs,
        managed_cancel,
        managed_tail,
    )
}
"""Function name → function."""


def main() -> None:
    """Serve. SkyPilot's own output goes to stderr, and its stdin is empty, so that it cannot ask questions."""
    questions = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    sys.stdout = sys.stderr
    SkyServer(questions, answers, VERBS, give_up).serve()
    os._exit(0)  # without waiting for threads in SkyPilot
