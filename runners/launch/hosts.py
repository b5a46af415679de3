"""Launches on named hosts over ssh: host facts and problems, the syntax of host lists, and the runs on other hosts."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...presets.finding import PlanError
from ...presets.load import load
from ...presets.model import Loaded
from ...presets.plan import Place, make_plan
from ...presets.request import Named, Request
from ...presets.worker_group import parse_nnodes
from ..hub.on_hosts import KIND, HostsRequest
from ..hub.on_hosts import read as order_of
from ..node.routes import check_destination, check_remote_word
from ..run import clock, file_io, run_directories
from ..run.errors import RunError, UnreachableError
from ..run.run_record import RunRecord
from ..run.wire.ssh import HostError, Way, call, each
from .prepared import Prepared, check_inside, check_port, hub_record, place_of_nodes, run_name, script_texts


def settled(request: Request) -> Request:
    """Return the request with its host file read and absolute paths, so that a rerun is equivalent. Raises RunError."""
    hosts = request.hosts
    if request.hostfile is not None:
        if hosts:
            raise RunError("--hosts and --hostfile exclude each other: leave one out")
        hosts = tuple(from_file(Path(request.hostfile).expanduser()))
    if not hosts:
        return request
    ssh_config, workdir = request.ssh_config, request.workdir
    return replace(
        request,
        hosts=hosts,
        hostfile=None,
        ssh_config=ssh_options(ssh_config)[1] if ssh_config is not None else None,
        workdir=_directory(workdir) if workdir else None,
    )


def _directory(text: str) -> str:
    path = Path(text).expanduser().resolve()
    if not path.is_dir():
        raise RunError(f"--workdir {text}: there is no such directory here")
    if path in (Path("/"), Path.home()):
        raise RunError(f"--workdir {text}: all of {path} would be copied; name the directory of your code")
    return str(path)


def prepare(request: Request) -> Prepared:
    """Query every host, and plan a run on them. Raises RunError, PresetError and PlanError."""
    loaded = load(request.preset, request.overrides)
    check_port(request.port)
    record = run_directories.new_record(request.name or run_name(request.script))
    request = _completed(loaded, replace(request, hosts=_as_many(request)))
    options = ssh_options(request.ssh_config)
    facts = _probed(request.hosts, options, wanted(request))
    reached, problem = addresses(facts, request.head_addr or "")
    if problem:
        raise RunError(problem)
    plan = make_plan(loaded, request, _facts(record, request, facts))
    plan = replace(plan, notes=(*plan.notes, *notes(facts)))
    order = HostsRequest(
        kind=KIND,
        hosts=tuple(host.destination for host in facts),
        names=tuple(_names(facts)),
        addresses=tuple(reached),
        options=options,
        workdir=request.workdir or "",
        work=_work(record) if request.workdir else "",
    )
    listed = [
        {
            "host": host.destination,
            "address": address,
            "gpus": host.gpus,
            "cores": host.cores,
            "torch": host.torch,
        }
        for host, address in zip(facts, reached, strict=True)
    ]
    about = {"hosts": listed, "workdir": request.workdir}
    return Prepared(plan, hub_record(record, plan), order, details=_details(order, listed), about=about)


def _details(order: HostsRequest, hosts: Sequence[dict[str, Any]]) -> str:
    """Return the list of hosts that is printed below the plan."""
    lines = [
        f"  node {node}  {host['host']}  {host['address']}  {host['gpus']} GPUs  {host['cores']} cores"
        f"  torch {host['torch'] or 'n/a'}"
        for node, host in enumerate(hosts)
    ]
    copied = [f"  {order.workdir} is copied to ~/.distui/{order.work}"] if order.workdir else []
    return "\n".join(["Hosts", "", *lines, *copied, ""])


def _as_many(request: Request) -> tuple[Named, ...]:
    """Return the first hosts that the request needs, or all of them. Raises RunError and PlanError."""
    hosts = request.hosts
    if request.nnodes is None:
        return hosts
    _, most = parse_nnodes(request.nnodes)
    if most > len(hosts):
        raise RunError(f"--nnodes {request.nnodes} needs {most} hosts, and {len(hosts)} are named")
    return hosts[: max(most, 1)]


def _completed(loaded: Loaded, request: Request) -> Request:
    """Add the number of nodes, and the ranks from a hostfile's slots. Raises RunError."""
    per_node = request.nproc_per_node
    if per_node is None:
        per_node = slots(request.hosts)
    nnodes = request.nnodes
    if nnodes is None:
        fewest = loaded.preset.topology.nnodes_min
        nnodes = (
            len(request.hosts)
            if fewest is None
            else f"{min(fewest, len(request.hosts))}:{len(request.hosts)}"
        )
    python = request.python
    if python and "/" in python and not python.startswith("~"):
        python = str(Path.cwd() / python)
    return replace(request, nproc_per_node=per_node, nnodes=nnodes, python=python)


def _probed(hosts: Sequence[Named], options: tuple[str, ...], wants: Wanted) -> list[HostFacts]:
    """Return the facts of every host. Raises UnreachableError, which names each unusable host."""
    ways = [Way(host.destination, options) for host in hosts]
    facts, refused = asyncio.run(ask_all(ways, wants))
    if refused:
        count = f"{len(refused)} of {len(ways)} hosts" if len(ways) > 1 else "the host"
        raise UnreachableError(f"{count} cannot be used, and nothing was started:", refused)
    return facts


def wanted(request: Request) -> Wanted:
    """Return the requirements for each host. Raises PlanError."""
    is_file = bool(request.script) and not request.no_python and not request.module
    script = request.script if request.script and is_file else ""
    python, torch = request.python or "", not request.no_python
    if not request.workdir:
        return Wanted(str(Path.cwd()), script, python, torch)
    check_inside(script, request.workdir)
    if not script or Path(script).is_absolute() or script.startswith("~"):
        return Wanted(script=script, python=python, torch=torch)
    if not (Path(request.workdir) / script).is_file():
        raise PlanError(f"script not found: {script} (looked in {request.workdir})")
    return Wanted(python=python, torch=torch)


def _facts(record: RunRecord, request: Request, facts: Sequence[HostFacts]) -> Place:
    return place_of_nodes(
        record,
        request.port,
        gpus=min(host.gpus for host in facts),
        cores=min(host.cores for host in facts),
        cwd=f"~/.distui/{_work(record)}" if request.workdir else str(Path.cwd()),
        nodes=len(facts),
        **script_texts(request),
    )


def _work(record: RunRecord) -> str:
    """Return a run's own directory below ~/.distui on every host, so that no other launch changes its files."""
    return f"work/{record.run}"


def _names(facts: Sequence[HostFacts]) -> list[str]:
    """Return the displayed names of the hosts: their host names if those are unique."""
    own = [host.hostname or host.destination for host in facts]
    return own if not duplicates(own) else [host.destination for host in facts]


# -----------------------------------------------------------------------------------------------------------
# The facts of each host, queried before anything starts by a shell script on ssh's stdin, without other requirements.


MAGIC = "DISTUI-HOST/1"
PROBE_SECONDS = 60.0
MOST_SKEW_S = 2.0

SCRIPT = r"""
say() { printf '%s=%s\n' "$1" "$2"; }
echo DISTUI-HOST/1
say hostname "$(uname -n)"
say boot "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
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
# Before cd: an empty entry of a search path means the folder, and nothing in it is to be loaded.
for name in "$python" ${python:-python python3}; do
    [ -n "$name" ] && command -v "$name" >/dev/null 2>&1 || continue
    found=$("$name" -c 'import sys
sys.path[:] = [part for part in sys.path if part]
import importlib.metadata as m
try: print(m.version("torch"), sys.executable)
except m.PackageNotFoundError: print("none", sys.executable)' 2>/dev/null) || continue
    say torch "$found"
    case "$found" in none*) ;; *) break ;; esac
done
if [ -n "$work" ]; then
    case "$work" in "~"*) work="$HOME${work#?}" ;; esac
    if cd "$work" 2>/dev/null; then say work yes; else say work no; fi
fi
if [ -n "$script" ]; then
    case "$script" in "~"*) script="$HOME${script#?}" ;; esac
    if [ -f "$script" ]; then say script yes; else say script no; fi
fi
echo end
"""


@dataclass(frozen=True, slots=True)
class Wanted:
    work: str = ""
    """Start directory of the ranks, or "" if it is copied."""
    script: str = ""
    """Script file relative to it, or "" if it is copied or there is none."""
    python: str = ""
    """Interpreter of the ranks, or "" for python from PATH."""
    torch: bool = True


@dataclass(frozen=True, slots=True)
class HostFacts:
    destination: str
    hostname: str
    boot: str
    address: str
    """Address of the connection as seen by the host, or "" if sshd does not set it."""
    skew_s: float
    """Lead of its clock over ours in seconds, with the uncertainty of the answer's time."""
    cores: int
    gpus: int
    agent: str
    """Python 3.11 or newer, or uv, which can install one, or "" without either."""
    torch: str
    """Version, or "" without torch."""
    python: str
    work: bool
    script: bool


async def probe(way: Way, wanted: Wanted) -> HostFacts:
    """Query one host. Raises HostError."""
    values = {"work": wanted.work, "script": wanted.script, "python": wanted.python}
    head = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    began = clock.now()
    out = await call(way, ("sh",), (head + SCRIPT).encode(), PROBE_SECONDS)
    return read(way.destination, out, began, clock.now())


def read(destination: str, out: bytes, began: float, ended: float) -> HostFacts:
    """Parse the answer. `began` and `ended`: Unix times of the query. Raises HostError."""
    _, magic, text = out.decode("utf-8", "replace").partition(MAGIC + "\n")
    body, end, _ = text.rpartition("end\n")
    if not magic or not end:
        raise HostError(
            f"host {destination} runs no command in a shell: `ssh {destination} sh` has to work"
        )
    values = dict(line.split("=", 1) for line in body.splitlines() if "=" in line)
    torch, _, python = values.get("torch", "").partition(" ")
    clock = _number(values.get("clock", "").replace(".%N", ""))
    return HostFacts(
        destination=destination,
        hostname=values.get("hostname", ""),
        boot=values.get("boot", ""),
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
    """Return the certain error of a clock that was read between two times, or 0 within them (or a second around)."""
    if clock is None or began - 1 <= clock <= ended + 1:
        return 0.0
    return clock - (began if clock < began else ended)


async def ask_all(ways: Sequence[Way], wanted: Wanted) -> tuple[list[HostFacts], list[str]]:
    """Return the facts of the hosts, and a sentence per unusable host."""
    answers = await each(ways, lambda way: probe(way, wanted))
    facts = [answer for answer in answers if isinstance(answer, HostFacts)]
    refused = [
        str(answer) if isinstance(answer, HostError) else why
        for answer in answers
        if isinstance(answer, HostError) or (why := problem(answer, wanted))
    ]
    return facts, refused


def problem(host: HostFacts, wanted: Wanted) -> str:
    """Return one sentence if a host is unusable, else ""."""
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


def notes(hosts: Sequence[HostFacts]) -> list[str]:
    """Return one sentence per fact about usable hosts that the user should know."""
    return [*_shared_machines(hosts), *_differences(hosts), *_clocks(hosts)]


def _shared_machines(hosts: Sequence[HostFacts]) -> Iterator[str]:
    for boot in duplicates(host.boot for host in hosts if host.boot):
        names = ", ".join(host.destination for host in hosts if host.boot == boot)
        yield f"{names} are one machine: they share its cores and GPUs."


def _differences(hosts: Sequence[HostFacts]) -> Iterator[str]:
    for what in ("gpus", "torch"):
        values = [getattr(host, what) for host in hosts]
        if len(set(values)) > 1:
            pairs = (f"{host.destination} {value}" for host, value in zip(hosts, values, strict=True))
            yield f"The hosts differ in {what}: {', '.join(pairs)}."


def _clocks(hosts: Sequence[HostFacts]) -> Iterator[str]:
    for host in hosts:
        if abs(host.skew_s) > MOST_SKEW_S:
            direction = "ahead" if host.skew_s > 0 else "behind"
            yield f"The clock of {host.destination} is {abs(host.skew_s):.0f} s {direction}."


def addresses(hosts: Sequence[HostFacts], head: str = "") -> tuple[list[str], str]:
    """Return the address of each node for the other nodes, and a sentence if that cannot work, or "".

    `head`: the user's address of node 0.
    """
    reached = [host.address or host.hostname for host in hosts]
    reached[0] = head or reached[0]
    loopback = [address.startswith("127.") or address == "::1" for address in reached]
    same_machine = len({host.boot for host in hosts}) == 1
    if any(loopback) and not same_machine:
        name = hosts[loopback.index(True)].destination
        return (
            reached,
            f"{name} is this machine's own loopback, which the other hosts cannot reach: give --head-addr",
        )
    return reached, ""


# -----------------------------------------------------------------------------------------------------------
# Hosts in the user's syntax: `--hosts a,b,c`, or a hostfile in the format of MPI and DeepSpeed. Pure. A line of a file
# is `HOST [slots=N]` (`max_slots=N` is ignored). `#` begins a comment.


MOST_HOSTS = 4096
MOST_BYTES = 1 << 20
_OPTION = re.compile(r"(slots|max_slots)=(\d{1,4})")


def ssh_options(config: str | None) -> tuple[str, ...]:
    """Return the ssh options for `--ssh-config`, in addition to distui's. Raises RunError."""
    if config is None:
        return ()
    path = Path(config).expanduser().absolute()
    try:
        file_io.opened(path).close()
    except file_io.FileError as error:
        raise RunError(f"--ssh-config {error}: name a configuration of ssh") from None
    return ("-F", str(path))


def from_words(text: str) -> list[Named]:
    """Parse `--hosts`. Raises RunError."""
    return check_hosts([Named(word.strip()) for word in text.split(",") if word.strip()], "--hosts")


def from_file(path: Path) -> list[Named]:
    """Parse a hostfile. Raises RunError."""
    try:
        text = file_io.content(path, MOST_BYTES, streams=True).decode("utf-8")
    except file_io.FileError as error:
        raise RunError(f"--hostfile {error}: name a list of hosts") from None
    except UnicodeDecodeError:
        raise RunError(f"--hostfile {path} cannot be read: it is not text") from None
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            hosts.append(_line(words, f"{path}, line {number}"))
    return check_hosts(hosts, str(path))


def _line(words: list[str], where: str) -> Named:
    slots = None
    for word in words[1:]:
        option = _OPTION.fullmatch(word)
        if option is None:
            raise RunError(f"{where}: {word!r} is not understood: write HOST, or HOST slots=8")
        slots = int(option[2]) if option[1] == "slots" else slots
    if slots == 0:
        raise RunError(f"{where}: slots=0 starts no rank on {words[0]}: take the line out")
    return Named(words[0], slots)


def named_ways(hosts: Iterable[str], where: str, ssh_config: str | None) -> list[Way]:
    """Return how to reach the hosts that the user named in `where`. Raises RunError."""
    named = check_hosts([Named(host) for host in hosts], where)
    return [Way(host.destination, ssh_options(ssh_config)) for host in named]


def check_hosts(hosts: list[Named], where: str) -> list[Named]:
    """Return the hosts if they are valid and unique. Raises RunError."""
    if not hosts:
        raise RunError(f"{where} names no host")
    if len(hosts) > MOST_HOSTS:
        raise RunError(f"{where} names {len(hosts)} hosts, and {MOST_HOSTS} are the most")
    for host in hosts:
        check_destination(host.destination)
    twice = duplicates(host.destination for host in hosts)
    if twice:
        raise RunError(f"{where} names {', '.join(twice)} more than once: each host is one node")
    return hosts


def duplicates(names: Iterable[str]) -> list[str]:
    """Return the names that occur more than once, in order."""
    seen: set[str] = set()
    repeated: list[str] = []
    for name in names:
        if name in seen and name not in repeated:
            repeated.append(name)
        seen.add(name)
    return repeated


def slots(hosts: Sequence[Named]) -> int | None:
    """Return the ranks per host from the file, or None without slots. Raises RunError if they differ."""
    counts = {host.slots for host in hosts if host.slots is not None}
    if not counts:
        return None
    if len(counts) > 1 or any(host.slots is None for host in hosts):
        words = ", ".join(f"{host.destination} {host.slots or 'none'}" for host in hosts)
        raise RunError(
            f"slots differ ({words}), and torchrun starts as many ranks on each node: "
            "give --nproc-per-node, or leave the others out"
        )
    return counts.pop()


# -----------------------------------------------------------------------------------------------------------
# The runs on other hosts, queried there by ssh.


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
NAME = WHICH + 'echo "DISTUI-IS $found"\n'


async def list_on(ways: Sequence[Way]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the runs on these hosts, each with its host as "on", and a sentence per host that cannot list them."""
    answers = await each(ways, _list)
    runs = [run for answer in answers if not isinstance(answer, HostError) for run in answer]
    return runs, [str(answer) for answer in answers if isinstance(answer, HostError)]


async def _list(way: Way) -> list[dict[str, Any]]:
    try:
        return [{**run, "on": way.destination} for run in json.loads(await json_of(way, "ls"))]
    except (ValueError, TypeError, RecursionError):
        raise HostError(
            f"{way.destination}: its distui does not list its runs: try `ssh {way.destination} distui ls`"
        ) from None


async def json_of(way: Way, *words: str) -> bytes:
    """Return the JSON that a verb of the distui on a host prints; b"" if it prints none. Raises HostError."""
    script = f'{WHICH}exec "$found" {shlex.join(words)} --json\n'
    out = await call(way, ("sh",), script.encode(), LIST_SECONDS)
    lines = [
        line for line in out.splitlines() if line.startswith((b"[", b"{"))
    ]  # the login may print first
    return lines[-1] if lines else b""


async def command_on(way: Way) -> str:
    """Return the path of the command `distui` on a host. Raises HostError."""
    out = await call(way, ("sh",), NAME.encode(), LIST_SECONDS)
    for line in out.decode("utf-8", "replace").splitlines():
        if line.startswith("DISTUI-IS "):
            return line.removeprefix("DISTUI-IS ").strip()
    raise HostError(
        f"host {way.destination} runs no command in a shell: `ssh {way.destination} sh` has to work"
    )


LAUNCHES = 50
"""Newest runs on several nodes whose launches provide hosts."""


def hosts_of_launches() -> list[Way]:
    """Return the hosts of launches from this machine, those of the newest run first."""
    ways: dict[str, Way] = {}
    merged = [entry for entry in run_directories.entries() if entry.record.kind == "hub"]
    for entry in merged[:LAUNCHES]:
        order = order_of(entry.path)
        for host in order.hosts if order is not None else ():
            ways.setdefault(host, Way(host, order.options if order is not None else ()))
    return list(ways.values())


def ways_of(named: Iterable[str]) -> list[Way]:
    """Return these hosts and those of earlier launches, without repetition. Raises RunError for an invalid host."""
    own = {host: Way(check_destination(host)) for host in named}
    launched = [way for way in hosts_of_launches() if way.destination not in own]
    return [*own.values(), *launched]


def attach_words(way: Way, command: str, run: str | None, *flags: str) -> list[str]:
    """Return the command for that host's cockpit in this terminal, over ssh.

    Raises RunError for words that ssh cannot pass.
    """
    remote = [command, *flags, "attach", *filter(None, [run])]
    for word in remote:
        check_remote_word(word)
    alive = ("-oServerAliveInterval=5", "-oServerAliveCountMax=3")
    return ["ssh", *way.options, "-t", *alive, "--", way.destination, *remote]
