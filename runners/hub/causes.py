"""Why SkyPilot could not do it, in plain words: the kind of its error and its text → a sentence and what to do."""

from __future__ import annotations

import re

from ..logs.clean import clean_lines

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
    said = shortened(text)
    if kind in KINDS:
        return KINDS[kind]
    if kind == "ResourcesMismatchError":
        return f"the cluster there does not fit what is asked for: another --cluster, or other resources ({said})"
    for pattern, sentence in TEXTS:
        if re.search(pattern, text, re.IGNORECASE | re.DOTALL):
            return f"{sentence} ({said})" if said else sentence
    return f"SkyPilot says: {said}" if said else f"SkyPilot failed without a word ({kind})"


def shortened(text: str) -> str:
    """The lines of a text that say something, in one, cleaned and cut."""
    lines = [line.strip(" │├└─") for line in clean_lines(text.encode())]
    whole = " ".join(line for line in lines if line and not re.fullmatch(r"[\W_]*", line))
    return whole if len(whole) <= MOST else whole[: MOST - 1] + "…"
