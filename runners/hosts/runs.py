"""The runs that distui keeps on other hosts, asked there by ssh."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .calls import HostError, Way, call, each

LIST_SECONDS = 60.0
WHICH = r"""
for name in "$HOME/.distui/distui" distui "$HOME/.local/bin/distui"; do
    found=$(command -v "$name") && break
done
if [ -z "$found" ]; then
    echo "distui: there is no distui: launch a run with --hosts there, or install it" >&2
    exit 127
fi
"""
LIST = WHICH + 'exec "$found" ls --json\n'
NAME = WHICH + 'echo "DISTUI-IS $found"\n'


async def list_on(ways: Sequence[Way]) -> tuple[list[dict[str, Any]], list[str]]:
    """The runs on these hosts, each with "on", its host; and a sentence for each host that cannot say."""
    answers = await each(ways, _list)
    runs = [run for answer in answers if not isinstance(answer, HostError) for run in answer]
    return runs, [str(answer) for answer in answers if isinstance(answer, HostError)]


async def _list(way: Way) -> list[dict[str, Any]]:
    out = await call(way, ("sh",), LIST.encode(), LIST_SECONDS)
    for line in reversed(out.decode("utf-8", "replace").splitlines()):  # a login may print before it
        if line.startswith("["):
            try:
                return [{**run, "on": way.destination} for run in json.loads(line)]
            except (ValueError, TypeError):
                break
    raise HostError(
        f"{way.destination}: its distui does not list its runs: try `ssh {way.destination} distui ls`"
    )


async def command_on(way: Way) -> str:
    """Path of the command `distui` there. Raises HostError."""
    out = await call(way, ("sh",), NAME.encode(), LIST_SECONDS)
    for line in out.decode("utf-8", "replace").splitlines():
        if line.startswith("DISTUI-IS "):
            return line.removeprefix("DISTUI-IS ").strip()
    raise HostError(
        f"{way.destination} gives no shell to a command: `ssh {way.destination} sh` has to work"
    )
