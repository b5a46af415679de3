"""Interfaces, names, ports: how a node is reached, and how it reaches others."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

from .system import read

SIOCGIFADDR = 0x8915
DNS_SECONDS = 10.0
LISTENING = "0A"


def interfaces(root: str = "/") -> list[dict[str, Any]]:
    """Network interfaces; `mbps` is None where the kernel does not know the speed (virtual ones)."""
    base = root + "sys/class/net"
    try:
        names = sorted(name for name in os.listdir(base) if os.path.isdir(base + "/" + name))
    except OSError:
        return []
    six = _ipv6(read(root + "proc/net/if_inet6"))
    faces = []
    for name in names:
        path = base + "/" + name
        speed, mtu = read(path + "/speed"), read(path + "/mtu")
        flags = int(read(path + "/flags") or "0", 16)
        four = ipv4(name)
        faces.append(
            {
                "name": name,
                "up": bool(flags & 1) and read(path + "/operstate") in ("up", "unknown"),
                "loopback": bool(flags & 8),
                "device": os.path.exists(path + "/device"),
                "mtu": int(mtu) if mtu.isdigit() else None,
                "mbps": int(speed) if speed.isdigit() and int(speed) > 0 else None,
                "addresses": ([four] if four else []) + six.get(name, []),
            }
        )
    return faces


def ipv4(name: str) -> str | None:
    """The first address of an interface; None without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(reply[20:24])


def _ipv6(text: str) -> dict[str, list[str]]:
    """Addresses by interface, without those of a link alone."""
    addresses: dict[str, list[str]] = {}
    for words in (line.split() for line in text.splitlines()):
        if len(words) == 6 and words[3] != "20":
            address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))
            addresses.setdefault(words[5], []).append(address)
    return addresses


def limited(do: Callable[[], Any], seconds: float = DNS_SECONDS) -> Any:
    """What a call that may hang returns, or "no answer within …"; its OSError in words."""
    box: list[Any] = []

    def work() -> None:
        try:
            box.append(do())
        except OSError as error:
            box.append("%s" % (error.strerror or error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return box[0] if box else f"no answer within {seconds:.0f} s"


def resolve(name: str) -> dict[str, Any]:
    """Addresses of a name, how long that took in seconds, and why there are none."""
    began = time.monotonic()
    outcome = limited(lambda: sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None)}))
    answer = {"name": name, "addresses": [], "problem": "", "seconds": round(time.monotonic() - began, 3)}
    answer["problem" if isinstance(outcome, str) else "addresses"] = outcome
    return answer


def reverse(address: str) -> dict[str, Any]:
    """Name of an address, and why there is none."""

    def name() -> list[str]:
        return [socket.getnameinfo((address, 0), socket.NI_NAMEREQD)[0]]

    outcome = limited(name)
    return {"address": address, "name": None if isinstance(outcome, str) else outcome[0],
            "problem": outcome if isinstance(outcome, str) else ""}  # fmt: skip


def ssh_address() -> str | None:
    """By which the one who asks reached this node; None where it is the same machine, or sshd does not say."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else None


def names(faces: list[dict[str, Any]], address: str | None) -> dict[str, Any]:
    """DNS both ways: the own name's addresses, and the name of the own address."""
    own = [each for face in faces if face["up"] and not face["loopback"] for each in face["addresses"]]
    at = address or (own[0] if own else None)
    return {"own": resolve(socket.gethostname()), "reverse": reverse(at) if at else None}


# --- ports ---------------------------------------------------------------------------------------------------------


def listener(port: int) -> socket.socket:
    """A socket that listens on every address, as torch's store does. Raises OSError."""
    six = socket.has_ipv6 and os.path.exists("/proc/net/if_inet6")
    server = socket.socket(socket.AF_INET6 if six else socket.AF_INET)
    try:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if six:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind(("::" if six else "", port))
        server.listen(64)
    except OSError:
        server.close()
        raise
    return server


def port_state(port: int) -> dict[str, Any]:
    """Whether a port is free, and who has it: pid and command, as far as this user may see."""
    try:
        listener(port).close()
    except OSError as error:
        busy = error.errno == errno.EADDRINUSE
        owner = _owner(port) if busy else None
        return {"port": port, "free": False, "owner": owner, "problem": error.strerror or str(error)}
    return {"port": port, "free": True, "owner": None, "problem": ""}


def _owner(port: int) -> dict[str, Any] | None:
    inodes = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for words in (line.split() for line in read(path).splitlines()[1:]):
            if words[3] == LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{words[9]}]")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if any(os.readlink(f"/proc/{pid}/fd/{fd}") in inodes for fd in os.listdir(f"/proc/{pid}/fd")):
                command = read(f"/proc/{pid}/cmdline").replace("\0", " ").strip()
                return {"pid": int(pid), "command": command[:200]}
        except OSError:
            continue
    return None


def connect(host: str, port: int, seconds: float) -> dict[str, Any]:
    """Whether a connection comes about, and why not."""
    began = time.monotonic()
    try:
        socket.create_connection((host, port), seconds).close()
    except OSError as error:
        late = isinstance(error, socket.timeout)
        return {"ok": False, "problem": "timed out" if late else error.strerror or str(error)}
    return {"ok": True, "problem": "", "seconds": round(time.monotonic() - began, 4)}


def masked(text: str) -> str:
    """Without what looks like a password in a URL."""
    return re.sub(r"//[^/@\s]+@", "//***@", text)
