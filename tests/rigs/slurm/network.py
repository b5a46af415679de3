"""The rig's network: a bridge in a namespace of its own, one cable to each host. No cable leaves the rig."""

from __future__ import annotations

import json
import subprocess

from .settings import PROBED, Trouble, address


def ip(namespace: int, *lines: str) -> str:
    """Run lines of `ip` in the network namespace of a process. Raises Trouble."""
    command = ["nsenter", "-t", str(namespace), "-n", "ip", "-batch", "-"]
    text = "\n".join(lines) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise Trouble(f"the kernel refuses the rig's network: {done.stderr.strip().splitlines()[0]}")
    return done.stdout


def begin(lan: int) -> None:
    """Make the bridge."""
    ip(lan, "link add lan type bridge", "link set lan up")


def connect(lan: int, host: str, init: int) -> None:
    """Give a host its only network card. `init` is its first process, `lan` one in the bridge's namespace."""
    if port_exists(lan, host):
        ip(lan, f"link del {port(host)}")
    ip(
        lan,
        f"link add {port(host)} type veth peer name eth0 netns {init}",
        f"link set {port(host)} master lan up",
    )
    probed = [f"addr add {one}/32 dev lo" for one in PROBED] if host == "client" else []
    ip(init, f"addr add {address(host)}/24 dev eth0", "link set eth0 up", "link set lo up", *probed)


def port(host: str) -> str:
    """Name of the bridge's end of a host's cable."""
    return f"to-{host}"


def port_exists(lan: int, host: str) -> bool:
    """Whether a cable was ever laid to a host that has not been powered off since."""
    command = ["nsenter", "-t", str(lan), "-n", "ip", "-j", "link"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    return any(link["ifname"] == port(host) for link in json.loads(done.stdout))


def cut(lan: int, host: str) -> None:
    """Nothing passes to or from a host any more; neither end is told."""
    ip(lan, f"link set {port(host)} down")


def heal(lan: int, host: str) -> None:
    """What `cut` cut."""
    ip(lan, f"link set {port(host)} up")
