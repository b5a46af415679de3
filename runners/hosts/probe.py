"""What each host is, asked before anything starts: by a shell script on ssh's stdin, which needs nothing there."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .calls import HostError, Way, call, each
from .names import duplicates

MAGIC = "DISTUI-HOST/1"
PROBE_SECONDS = 60.0
MOST_SKEW_S = 2.0

SCRIPT = r"""
say() { printf '%s=%s\n' "$1" "$2"; }
echo DISTUI-HOST/1
say hostname "$(uname -n)"
say boot "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
say home "$HOME"
set -- $SSH_CONNECTION
say address "$3"
say clock "$(date +%s.%N)"
say cores "$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)"
say gpus "$(ls -d /proc/driver/nvidia/gpus/* 2>/dev/null | wc -l)"
for name in "$DISTUI_PYTHON" python3.13 python3.12 python3.11 python3.14 python3 python uv "$HOME/.local/bin/uv" \
    "$HOME/miniconda3/bin/python3" "$HOME/miniforge3/bin/python3" /opt/conda/bin/python3; do
    [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 || continue
    case "$name" in
        *uv) say agent "$name"; break ;;
        *) "$name" -I -S -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (4,))' 2>/dev/null &&
            say agent "$name" && break ;;
    esac
done
if [ -n "$work" ]; then
    case "$work" in "~"*) work="$HOME${work#?}" ;; esac
    if cd "$work" 2>/dev/null; then say work yes; else say work no; fi
fi
if [ -n "$script" ]; then
    case "$script" in "~"*) script="$HOME${script#?}" ;; esac
    if [ -f "$script" ]; then say script yes; else say script no; fi
fi
for name in "$python" ${python:-python python3}; do
    [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 || continue
    found=$("$name" -c 'import importlib.metadata as m, sys
try: print(m.version("torch"), sys.executable)
except m.PackageNotFoundError: print("none", sys.executable)' 2>/dev/null) || continue
    say torch "$found"
    case "$found" in none*) ;; *) break ;; esac
done
echo end
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a host must have."""

    work: str = ""
    """Directory in which the ranks start; "" where it is brought along."""
    script: str = ""
    """File, seen from there; "" where it is brought along, or is none."""
    python: str = ""
    """Interpreter of the ranks; "": what PATH calls python."""
    torch: bool = True


@dataclass(frozen=True, slots=True)
class Found:
    """What a host says of itself."""

    destination: str
    hostname: str
    boot: str
    home: str
    address: str
    """By which it was reached, seen from itself; "" where sshd does not say."""
    skew_s: float
    """Its clock ahead of ours, in seconds, give or take the time of the answer."""
    cores: int
    gpus: int
    agent: str
    """A Python 3.11 or newer, or uv, which can bring one; "" without either."""
    torch: str
    """Version; "" without torch."""
    python: str
    work: bool
    script: bool


async def probe(way: Way, wanted: Wanted) -> Found:
    """Ask one host. Raises HostError."""
    values = {"work": wanted.work, "script": wanted.script, "python": wanted.python}
    head = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    began = time.time()
    out = await call(way, ("sh",), (head + SCRIPT).encode(), PROBE_SECONDS)
    return read(way.destination, out, began, time.time())


def read(destination: str, out: bytes, began: float, ended: float) -> Found:
    """The answer; `began` and `ended`: unix times of the question. Raises HostError."""
    _, magic, said = out.decode("utf-8", "replace").partition(MAGIC + "\n")
    body, end, _ = said.rpartition("end\n")
    if not magic or not end:
        raise HostError(f"{destination} gives no shell to a command: `ssh {destination} sh` has to work")
    values = dict(line.split("=", 1) for line in body.splitlines() if "=" in line)
    torch, _, python = values.get("torch", "").partition(" ")
    clock = _number(values.get("clock", "").replace(".%N", ""))
    return Found(
        destination=destination,
        hostname=values.get("hostname", ""),
        boot=values.get("boot", ""),
        home=values.get("home", ""),
        address=values.get("address", ""),
        skew_s=_off(clock, began, ended),
        cores=int(_number(values.get("cores", "")) or 1),
        gpus=int(_number(values.get("gpus", "")) or 0),
        agent=values.get("agent", ""),
        torch="" if torch == "none" else torch,
        python=python,
        work=values.get("work", "yes") == "yes",
        script=values.get("script", "yes") == "yes",
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _off(clock: float | None, began: float, ended: float) -> float:
    """How far a clock that was read between two times is certainly off; 0 within them, or a second around."""
    if clock is None or began - 1 <= clock <= ended + 1:
        return 0.0
    return clock - (began if clock < began else ended)


async def ask_all(ways: Sequence[Way], wanted: Wanted) -> tuple[list[Found], list[str]]:
    """What the hosts are, and for each that cannot be used a sentence."""
    answers = await each(ways, lambda way: probe(way, wanted))
    found = [answer for answer in answers if isinstance(answer, Found)]
    refused = [
        str(answer) if isinstance(answer, HostError) else why
        for answer in answers
        if isinstance(answer, HostError) or (why := problem(answer, wanted))
    ]
    return found, refused


def problem(host: Found, wanted: Wanted) -> str:
    """Why a host cannot be used, as a sentence; "" when it can."""
    name = host.destination
    if not host.agent:
        return f"{name} has no Python 3.11 or newer for distui's agent, and no uv: install one there"
    if not host.work:
        return (
            f"{name} has no directory {wanted.work}: copy it there, or give --workdir DIR to have it copied"
        )
    if not host.script:
        return f"{name} has no {wanted.script} in {wanted.work or 'its home'}: copy it there, or give --workdir DIR"
    if wanted.torch and not host.torch:
        where = wanted.python or host.python or "python"
        return f"{name} has no torch in {where}: name the training environment's interpreter with --python"
    return ""


def notes(hosts: Sequence[Found]) -> list[str]:
    """What the user should know of hosts that can be used, a sentence each."""
    found = []
    same = duplicates(host.boot for host in hosts if host.boot)
    for boot in same:
        names = [host.destination for host in hosts if host.boot == boot]
        found.append(f"{', '.join(names)} are one machine: they share its cores and GPUs.")
    for what in ("gpus", "torch"):
        values = {getattr(host, what) for host in hosts}
        if len(values) > 1:
            told = ", ".join(f"{host.destination} {getattr(host, what)}" for host in hosts)
            found.append(f"The hosts differ in {what}: {told}.")
    found += [
        f"The clock of {host.destination} is {abs(host.skew_s):.0f} s {'ahead' if host.skew_s > 0 else 'behind'}."
        for host in hosts
        if abs(host.skew_s) > MOST_SKEW_S
    ]
    return found


def addresses(hosts: Sequence[Found], head: str = "") -> tuple[list[str], str]:
    """Where each node is reached by the others, and why that cannot work, as a sentence or "".

    `head`: the user's word for node 0.
    """
    found = [host.address or host.hostname for host in hosts]
    found[0] = head or found[0]
    loopback = [address.startswith("127.") or address == "::1" for address in found]
    one_machine = len({host.boot for host in hosts}) == 1
    if any(loopback) and not one_machine:
        name = hosts[loopback.index(True)].destination
        return (
            found,
            f"{name} is this machine's own loopback, which the other hosts cannot reach: give --head-addr",
        )
    return found, ""
