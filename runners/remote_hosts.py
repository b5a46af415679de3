"""Hosts over the system's ssh: names, commands on several at once, copies, probes, and the runs there."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import shlex
import subprocess
import tarfile
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .errors import RunError
from .hub.routes import check_destination
from .wire import ssh

# -----------------------------------------------------------------------------------------------------------
# Commands on hosts through the system's ssh, some at once.


AT_ONCE = 8
"""Connections that are being made at the same time: sshd's MaxStartups begins to refuse at 10."""
T = TypeVar("T")
U = TypeVar("U")


class HostError(Exception):
    """Something on a host failed; the text is one sentence that names it."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a host is reached."""

    destination: str
    options: tuple[str, ...] = ()


async def call(way: Way, remote: Sequence[str], data: bytes, seconds: float) -> bytes:
    """Run a command there with `data` on its stdin; its stdout. Raises HostError."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *ssh.argv(way.destination, way.options, remote),
            stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise HostError(f"ssh cannot be executed here ({error.strerror}): install OpenSSH") from None
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate(data)
    except TimeoutError:
        raise HostError(
            f"host {way.destination} did not finish `{' '.join(remote)}` within {seconds:.0f} s"
        ) from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        lines = [line for line in err.decode("utf-8", "replace").splitlines() if line.strip()]
        why = ssh.explain(lines, process.returncode, way.destination)
        last = lines[-1].strip() if lines else f"exit code {process.returncode}"
        raise HostError(why or f"{way.destination}: {last}")
    return out


async def each(items: Sequence[T], do: Callable[[T], Awaitable[U]]) -> list[U | HostError]:
    """Do it for all, AT_ONCE at a time; what came of each, in order."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def limited(item: T) -> U | HostError:
        async with gate:
            try:
                return await do(item)
            except HostError as error:
                return error

    return list(await asyncio.gather(*(limited(item) for item in items)))


# -----------------------------------------------------------------------------------------------------------
# Hosts as a user writes them: `--hosts a,b,c`, or a file as MPI and DeepSpeed have it. Pure.
# A line of a file is `HOST [slots=N]` (`max_slots=N` is passed over); `#` begins a comment.


MOST_HOSTS = 4096
MOST_BYTES = 1 << 20
_OPTION = re.compile(r"(slots|max_slots)=(\d{1,4})")


@dataclass(frozen=True, slots=True)
class Named:
    """One host."""

    destination: str
    """As ssh takes it: a name, an alias of the user's configuration, user@host."""
    slots: int | None = None
    """Ranks that it is to have; None where nobody says."""


def of_options(hosts: str | None, hostfile: str | None) -> list[Named]:
    """The hosts that one of `--hosts` and `--hostfile` names. Raises RunError."""
    if hosts is not None and hostfile is not None:
        raise RunError("--hosts and --hostfile exclude each other: leave one out")
    if hostfile is not None:
        return from_file(Path(hostfile).expanduser())
    return from_words(hosts or "")


def ssh_options(config: str | None) -> tuple[str, ...]:
    """What ssh is told for `--ssh-config`, beside what distui always tells it. Raises RunError."""
    if config is None:
        return ()
    path = Path(config).expanduser().absolute()
    if not path.is_file():
        raise RunError(f"--ssh-config {path}: there is no such file")
    return ("-F", str(path))


def from_words(text: str) -> list[Named]:
    """The hosts of `--hosts`. Raises RunError."""
    return checked([Named(word.strip()) for word in text.split(",") if word.strip()], "--hosts")


def from_file(path: Path) -> list[Named]:
    """The hosts of a file. Raises RunError."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise RunError(
                f"--hostfile {path} has more than {MOST_BYTES >> 20} MiB: it is no list of hosts"
            )
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise RunError(f"--hostfile {path} cannot be read: {why}") from None
    hosts = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if words:
            hosts.append(_line(words, f"{path}, line {number}"))
    return checked(hosts, str(path))


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


def checked(hosts: list[Named], where: str) -> list[Named]:
    """The same, if they are hosts and each is there once. Raises RunError."""
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
    """What is there more than once, in order."""
    seen: set[str] = set()
    repeated: list[str] = []
    for name in names:
        if name in seen and name not in repeated:
            repeated.append(name)
        seen.add(name)
    return repeated


def slots(hosts: list[Named]) -> int | None:
    """Ranks a host, where the file says; None where it does not. Raises RunError where they differ."""
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
# Bring directories to hosts: tar over ssh's stdin, whole or not at all.


SECONDS = 600.0
LEFT_OUT = {".git", "__pycache__", ".venv", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
"""Of a directory that is no git checkout; of one, what git ignores."""
RECEIVE = r"""
mkdir -p "$HOME/.distui" && chmod 700 "$HOME/.distui" && cd "$HOME/.distui" || exit 2
cat > receive.sh.$$ <<'END'
# receive.sh NAME [replace]: unpack what comes on stdin as ~/.distui/NAME
cd "$HOME/.distui" || exit 2
fresh=".in-$(uname -n)-$$"
mkdir "$fresh" || exit 2
trap 'rm -rf "$fresh" "$fresh.old"' EXIT
tar -xzf - -C "$fresh" || { echo "distui: $(uname -n) could not unpack what was sent: is its disk full?" >&2; exit 2; }
mkdir -p "$(dirname "$1")"
if [ "$2" = replace ] && [ -d "$1" ]; then mv "$1" "$fresh.old"; fi
mv "$fresh/${1##*/}" "$(dirname "$1")/" 2>/dev/null || [ -d "$1" ] || exit 2
END
mv receive.sh.$$ receive.sh
if [ -f "$name/node.sh" ]; then echo DISTUI-THERE; else echo DISTUI-MISSING; fi
"""


def packed(root: Path, name: str, files: Iterator[Path]) -> bytes:
    """A gzipped tar of files below `root`, in it below `name`. Raises OSError."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as archive:
        for path in files:
            archive.add(path, f"{name}/{path.relative_to(root).as_posix()}", recursive=False)
    return out.getvalue()


def everything(root: Path) -> Iterator[Path]:
    """All files of a directory."""
    yield root
    yield from sorted(path for path in root.rglob("*"))


def code(root: Path) -> Iterator[Path]:
    """A working directory's files: of a git checkout what git would keep, else all but LEFT_OUT."""
    yield root
    listed = subprocess.run(
        ["git", "-C", str(root), "ls-files", "-coz", "--exclude-standard"], capture_output=True, check=False
    )
    if listed.returncode == 0:
        names = [name for name in listed.stdout.decode("utf-8", "surrogateescape").split("\0") if name]
        yield from (path for name in names if (path := root / name).exists() or path.is_symlink())
        return
    for path in sorted(root.rglob("*")):
        if not LEFT_OUT.intersection(path.relative_to(root).parts):
            yield path


async def send_bundle(way: Way, bundle: Path, data: bytes) -> None:
    """Put a bundle to ~/.distui/, unless it is there. Raises HostError."""
    script = f"name={shlex.quote(bundle.name)}\n{RECEIVE}"
    answer = await call(way, ("sh",), script.encode(), SECONDS)
    if b"DISTUI-THERE" in answer:
        return
    if b"DISTUI-MISSING" not in answer:
        raise HostError(
            f"host {way.destination} gives no shell to a command: `ssh {way.destination} sh` has to work"
        )
    await call(way, ("sh", "~/.distui/receive.sh", bundle.name), data, SECONDS)


async def send_work(way: Way, name: str, data: bytes) -> None:
    """Put a working directory to ~/.distui/NAME, in the place of an earlier one. Raises HostError."""
    await call(way, ("sh", "~/.distui/receive.sh", name, "replace"), data, SECONDS)


async def pack(root: Path, name: str, only_code: bool) -> bytes:
    """`packed` in a thread. Raises HostError."""
    try:
        return await asyncio.to_thread(packed, root, name, code(root) if only_code else everything(root))
    except OSError as error:
        raise HostError(f"{error.filename or root} cannot be read ({error.strerror})") from None


# -----------------------------------------------------------------------------------------------------------
# The runs that distui keeps on other hosts, asked there by ssh.


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
            except (ValueError, TypeError, RecursionError):
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
        f"host {way.destination} gives no shell to a command: `ssh {way.destination} sh` has to work"
    )
