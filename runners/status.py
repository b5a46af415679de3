"""RunState as JSON values: what `status --json` prints. Field names are the interface; see docs/cli.md."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from . import meshes
from .model import HUB
from .state import Attempt, Node, Progress, Rank, RunState


def status(state: RunState, now: float | None = None) -> dict[str, Any]:
    """The whole state of a run. Unknown values are null. Ages in seconds, sizes in bytes, times unix seconds."""
    now = time.time() if now is None else now
    plan, arranged = state.plan, meshes.sizes(state)
    return {
        "run": state.run,
        "name": state.name,
        "state": str(state.phase),
        "attempt": state.attempt,
        "began": state.began or None,
        "ended": state.ended,
        "exit_code": state.exit_code,
        "text": state.end_text,
        "plan": None
        if plan is None
        else msgspec.to_builtins(plan, builtin_types=()) | _plan_defaults(plan),
        "nodes": [_node(node, now) for _, node in sorted(state.nodes.items())],
        "ranks": [
            _rank(number, rank) | {"mesh": meshes.coordinates(arranged, number)}
            for number, rank in sorted(state.ranks.items())
        ],
        "findings": [_finding(finding) for finding in state.findings.values()],
        "attempts": [_attempt(attempt) for attempt in state.attempts],
        "cluster": None if state.cluster is None else _whole(state.cluster),
        "stages": [_stage(progress) for progress in state.stages.values()],
        "agent_pid": state.agent_pid,
        "runner_pid": state.runner_pid,
    }


def _plan_defaults(plan: Any) -> dict[str, Any]:
    """Fields that the wire leaves out when they have their default."""
    return {
        "preset": plan.preset, "nnodes": plan.nnodes, "nproc_per_node": plan.nproc_per_node,
        "backend": plan.backend, "obeys": plan.obeys, "notes": list(plan.notes), "mesh": plan.mesh,
    }  # fmt: skip


def _node(node: Node, now: float) -> dict[str, Any]:
    return {
        "node": node.node,
        "host": node.host,
        "state": str(node.link) if node.link else "up" if node.heard else "unknown",
        "age_s": round(max(0.0, now - node.heard), 3) if node.heard else None,
        "problem": node.link_text or None,
        "outcome": None if node.phase is None else str(node.phase),
        "gpus": [_whole(gpu) for gpu in node.gpus],
        "gpu_problem": node.gpu_problem,
        "host_metrics": None if node.metrics is None else _whole(node.metrics),
    }


def _whole(struct: msgspec.Struct) -> dict[str, Any]:
    """All fields, also those that have their default."""
    return {name: msgspec.to_builtins(getattr(struct, name)) for name in struct.__struct_fields__}


def _stage(progress: Progress) -> dict[str, Any]:
    state = "failed" if progress.failed else "begun" if progress.ended is None else "done"
    return {
        "stage": str(progress.stage),
        "node": None if progress.node == HUB else progress.node,
        "state": state,
        "began": progress.began,
        "ended": progress.ended,
        "text": progress.text,
    }


def _rank(number: int, rank: Rank) -> dict[str, Any]:
    sample = rank.sample
    return {
        "rank": number,
        "local_rank": rank.place.local_rank,
        "node": rank.place.node,
        "pid": rank.pid,
        "state": str(rank.phase),
        "exit_code": rank.exit_code,
        "signal": rank.signal,
        "cpu_percent": sample.cpu_percent if sample else None,
        "rss_bytes": sample.rss_bytes if sample else None,
        "gpu": sample.gpu if sample else None,
        "gpu_source": sample.gpu_source if sample else None,
        "gpu_mem": sample.gpu_mem if sample else None,
        "step": sample.step if sample else None,
        "step_s": sample.step_s if sample else None,
        "nccl_debug": rank.nccl_debug,
        "hook": rank.hook,
    }


def _finding(finding: msgspec.Struct) -> dict[str, Any]:
    return _whole(finding)


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "began": attempt.began,
        "ended": attempt.ended,
        "cause": attempt.cause,
        "env_diff": attempt.env_diff,
        "outcome": None if attempt.outcome is None else str(attempt.outcome),
        "first_cause": None if attempt.first_cause is None else _whole(attempt.first_cause),
        "text": attempt.text,
    }
