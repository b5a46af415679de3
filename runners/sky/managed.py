"""Managed jobs: SkyPilot recovers them on new clusters, and gives no ssh to their nodes."""

from __future__ import annotations

from typing import Any

from .serve import LineStream, SkyCall

FIELDS = ("job_id", "job_name", "status", "submitted_at", "end_at", "recovery_count", "failure_reason")


def managed_launch(call: SkyCall, config: dict[str, Any], name: str) -> dict[str, Any]:
    """Submit a managed job. {"job": number}."""
    import sky
    from sky import jobs

    request = jobs.launch(sky.Task.from_yaml_config(config), name=name)
    call.began(request)
    return managed_follow(call, request)


def managed_follow(call: SkyCall, request: str) -> dict[str, Any]:
    """Wait until the API server has submitted it."""
    import sky

    call.request = str(request)
    # The handle is never printed: that raises.
    numbers, _ = sky.stream_and_get(request, output_stream=LineStream(call))
    return {"job": (numbers or [None])[0]}


def managed_jobs(call: SkyCall, job: int | None = None) -> list[dict[str, Any]]:
    """Where managed jobs stand, or one of them."""
    import sky
    from sky import jobs

    answer = sky.get(jobs.queue_v2(refresh=False, job_ids=None if job is None else [job], fields=FIELDS))
    records = answer[0] if isinstance(answer, tuple) else answer
    return [
        {
            "job": record["job_id"],
            "name": record["job_name"],
            "state": record["status"].value,
            "recoveries": record["recovery_count"],
            "why": record.get("failure_reason"),
        }
        for record in records
    ]


def managed_cancel(call: SkyCall, job: int) -> bool:
    """Cancel a managed job; its cluster goes with it."""
    import sky
    from sky import jobs

    sky.get(jobs.cancel(job_ids=[job]))
    return True


def managed_tail(call: SkyCall, job: int) -> int:
    """What a managed job prints, told until it ends or the call is cancelled."""
    from sky import jobs

    call.pass_on(jobs.tail_logs(job_id=job, follow=True, preload_content=False) or ())
    return 0
