"""How a run on several nodes ended, and SkyPilot's errors in plain words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ...presets.sanitize import clean_lines
from ..formatting import agreeing
from ..model import FirstCause, LinkState, RunEnded, RunPhase

# -----------------------------------------------------------------------------------------------------------
# Why SkyPilot could not do it, in plain words: the kind of its error and its text → a sentence and what to do.


MOST = 300
"""Characters of SkyPilot's own words that a sentence quotes."""

KINDS: dict[str, str] = {
    "ApiServerConnectionError": "SkyPilot's API server does not answer: `sky api start` starts one here, "
    "`sky api info` names it",
    "ApiServerAuthenticationError": "SkyPilot's API server wants a login: `sky api login`",
    "APIVersionMismatchError": "SkyPilot here and its API server are of different versions: "
    "`sky api stop; sky api start` where it runs, or install the server's version",
    "NoCloudAccessError": "SkyPilot may use no infrastructure: `sky check` shows why for each",
    "RequestCancelled": "the request was cancelled at SkyPilot's API server",
    "CloudUserIdentityError": "SkyPilot does not know who you are at the cloud: log in with the cloud's own tool, "
    "then `sky check`",
    "ClusterOwnerIdentityMismatchError": "that cluster belongs to another identity at the cloud: "
    "choose another name with --cluster",
    "InvalidCloudCredentials": "the credentials of a cloud are not valid: `sky check` shows which",
}
"""Errors whose kind says it all."""

QUOTA = "quota"
CAPACITY = (
    "insufficient(?:instance)?capacity|capacity|ZONE_RESOURCE_POOL_EXHAUSTED|out of stock|stockout|SkuNotAvailable"
    r"|BadConstraints|QOS\w*Limit|Requested node configuration is not available"
    "|timed? ?out.*(?:pending|provision)|(?:pending|provision).*timed? ?out"
)
LET_IN = "credential|unauthori[sz]ed|permission denied|AuthFailure|AccessDenied|forbidden|expired token"
NOT_ENABLED = "which is not enabled|is not enabled"
NO_SUCH = (
    "Catalog does not contain any|not available in|Invalid accelerator|is not (?:a )?(?:valid|supported) accelerator"
    "|No launchable resource|No resource satisfying|not found in .*slurm|resources? .*not found"
)
SERVER = "Connection refused|Connection reset|Max retries exceeded|RemoteDisconnected|Connection aborted"
TEXTS: tuple[tuple[str, str], ...] = (
    (
        QUOTA,
        "the account's quota is used up there: ask the cloud for more, or take another region or accelerator",
    ),
    (NOT_ENABLED, "SkyPilot may not use that infrastructure: `sky check` shows why"),
    (
        NO_SUCH,
        "no enabled infrastructure has such nodes: `distui candidates` and `sky show-gpus` show what there is",
    ),
    (CAPACITY, "no such nodes are free there now: take another infrastructure, or --retry-until-up"),
    (LET_IN, "SkyPilot was not let in there: `sky check` shows what is wrong with the credentials"),
    (SERVER, "SkyPilot's API server went away: `sky api start` starts it again"),
)
"""What is looked for in the text of an error, the first that is found counts."""


def plain(kind: str, text: str) -> str:
    """One sentence: what is wrong, what to do, and SkyPilot's own words where ours would hide something."""
    short = shortened(text)
    if kind in KINDS:
        return KINDS[kind]
    if kind == "ResourcesMismatchError":
        return f"the cluster there does not fit what is asked for: another --cluster, or other resources ({short})"
    for pattern, sentence in TEXTS:
        if re.search(pattern, text, re.IGNORECASE | re.DOTALL):
            return f"{sentence} ({short})" if short else sentence
    return f"SkyPilot says: {short}" if short else f"SkyPilot failed without a word ({kind})"


def shortened(text: str) -> str:
    """The lines of a text that say something, in one, cleaned and cut."""
    lines = [line.strip(" │├└─") for line in clean_lines(text.encode())]
    whole = " ".join(line for line in lines if line and not re.fullmatch(r"[\W_]*", line))
    return whole if len(whole) <= MOST else whole[: MOST - 1] + "…"


# -----------------------------------------------------------------------------------------------------------
# When a run on several nodes has ended, and how. Pure.


GIVE_UP_S = 60.0
"""Seconds without a link after which a node counts as gone, where all others have ended."""
STOP_GIVE_UP_S = 15.0
"""The same for a run that is being stopped."""
UNHEARD_S = 600.0
"""The same where no node heard of the stop: one that answers again still will."""


@dataclass(frozen=True, slots=True)
class NodeEnding:
    """What is known of one node's part."""

    node: int
    host: str
    ended: RunEnded | None = None
    read: bool = True
    """Whether everything that is wanted of an ended part was read."""
    link: LinkState | None = None
    silent_s: float = 0.0
    """How long its link has been as it is."""

    @property
    def name(self) -> str:
        return f"node {self.node} ({self.host})" if self.host else f"node {self.node}"


@dataclass(frozen=True, slots=True)
class Whole:
    """What is known of the run."""

    name: str
    stopping: bool = False
    why: str = "stopped"
    """What is said of a run that was stopped."""
    nnodes_min: int | None = None
    """An elastic run goes on, and succeeds, with as few nodes."""
    cause: FirstCause | None = None
    """Of the newest attempt."""
    cluster_down: bool = False
    idle: str = ""
    """Of the newest attempt, where it succeeded without a training step."""


def ending(whole: Whole, parts: list[NodeEnding]) -> RunEnded | None:
    """How the run ended; None while it goes on."""
    patient_s = patience(whole.stopping, any(part.ended for part in parts), whole.cluster_down)
    open_parts = [part for part in parts if part.ended is None]
    gone = [part for part in open_parts if part.link is LinkState.LOST and part.silent_s >= patient_s]
    if not parts or len(gone) < len(open_parts) or any(part.ended and not part.read for part in parts):
        return None
    ended = {part.node: part.ended for part in parts if part.ended is not None}
    if whole.stopping:
        return RunEnded(RunPhase.STOPPED, 1, whole.why + _without(gone, whole.cluster_down))
    if not ended:
        return _all_gone(whole)
    good = [node for node, end in ended.items() if end.phase is RunPhase.SUCCEEDED]
    if len(good) == len(parts) or (whole.nnodes_min is not None and len(good) >= whole.nnodes_min):
        but = f", but {whole.idle}" if whole.idle else ""
        return RunEnded(RunPhase.SUCCEEDED, 0, f"every rank ended with exit code 0{but}" + _without(gone))
    return _failed(whole, parts, ended, gone)


def patience(stopping: bool, some_ended: bool, cluster_down: bool) -> float:
    """Seconds without a link after which a node counts as gone; of a run that is being stopped, since then."""
    if cluster_down:
        return 0.0
    if not stopping:
        return GIVE_UP_S
    return STOP_GIVE_UP_S if some_ended else UNHEARD_S


def _all_gone(whole: Whole) -> RunEnded | None:
    """No node answers. Unless the cluster is known to be gone, that says nothing about the run."""
    if not whole.cluster_down:
        return None
    return RunEnded(RunPhase.LOST, None, "the cluster was taken down before the run's end was reported")


def _without(gone: list[NodeEnding], cluster_down: bool = False) -> str:
    names = ", ".join(part.name for part in gone)
    if gone and cluster_down:
        return f"; how {names} ended nobody saw"
    return f"; {names} did not answer: whatever runs there still does" if gone else ""


def _failed(
    whole: Whole, parts: list[NodeEnding], ended: Mapping[int, RunEnded], gone: list[NodeEnding]
) -> RunEnded | None:
    by_node = {part.node: part for part in parts}
    bad = {node: end for node, end in ended.items() if end.phase is not RunPhase.SUCCEEDED}
    if not bad:  # what became of the silent ones is unknown
        names = ", ".join(part.name for part in gone)
        return RunEnded(RunPhase.LOST, None, f"all others succeeded; how {names} ended nobody saw")
    node = whole.cause.node if whole.cause is not None and whole.cause.node in bad else min(bad)
    text = bad[node].text
    if whole.cause is not None and whole.cause.text and whole.cause.text not in text:
        text = f"{whole.cause.text}; {text}"
    text = f"{by_node[node].name}: {text}"
    phases = {end.phase for end in bad.values()}
    stopped = phases == {RunPhase.STOPPED}
    if any(part.node == 0 for part in gone) or (gone and stopped):
        text = _lost(whole, gone, stopped) + ("" if stopped else f"; {text}")
    elif stopped:
        text = "stopped on the nodes, not from here"
    elif gone:
        text += _without(gone)
    phase = RunPhase.STOPPED if stopped and not gone else RunPhase.FAILED
    return RunEnded(phase, bad[node].exit_code, text)


def _lost(whole: Whole, gone: list[NodeEnding], stopped: bool) -> str:
    """Without the lost nodes the others could not go on. Nobody here stopped them: what started them did."""
    names = ", ".join(part.name for part in gone)
    where = ", where the rendezvous was," if any(part.node == 0 for part in gone) else ""
    verb = agreeing(gone, "is", "are")
    others = "were ended by what started them" if stopped else "failed"
    return (
        f"{names}{where} {verb} lost, and the others {others}: "
        f"`distui relaunch {whole.name}` starts the run anew"
    )
