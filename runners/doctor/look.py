"""One node as it was found, for checks that only read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...presets.finding import Finding, Severity

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A node that answered."""

    name: str
    facts: Mapping[str, Any]
    """What runners/doctor/node/facts.py says; null is unknown."""
    ahead_s: float | None = None
    """Its clock ahead of this machine's."""
    doubt_s: float = 0.0
    """By how much that may be wrong: half of the quickest round trip."""
    several: bool = False
    """Whether it is one of several nodes."""

    def get(self, *path: str) -> Any:
        """A fact; None as soon as a part of its path is unknown."""
        found: Any = self.facts
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    def finding(
        self, id: str, severity: Severity, text: str, value: object = "", remedy: str = ""
    ) -> Finding:
        """A finding about this node."""
        shown = "" if value is None else str(value)
        return Finding(id=id, severity=severity, where=self.name, value=shown, text=text, remedy=remedy)

    @property
    def gpus(self) -> int:
        """GPUs that processes of this node can use, or that the kernel driver names where nobody could ask it."""
        nvml = self.get("nvml", "gpus")
        return len(self.get("kernel_gpus") or ()) if nvml is None else len(nvml)

    @property
    def models(self) -> str | None:
        """How many of which, as "8 × H100", or "none"; None where the driver does not say."""
        known = self.get("nvml", "gpus") or self.get("kernel_gpus")
        if not known and self.get("nvml") != {} and self.get("nvml", "gpus") is None:
            return None
        names = sorted(str(gpu.get("name") or "GPU") for gpu in known or ())
        return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "none"

    @property
    def ports(self) -> str | None:
        """How many active InfiniBand ports of which rate, or "none"; None where nobody knows."""
        if self.get("infiniband") is None:
            return None
        rates = sorted(port.get("gbps") or 0.0 for port in self.active_ports)
        return ", ".join(f"{rates.count(rate)} × {rate:g} Gb/s" for rate in dict.fromkeys(rates)) or "none"

    @property
    def driver(self) -> str | None:
        """Version of the NVIDIA driver."""
        found = self.get("nvml", "version") or self.get("driver", "version")
        return None if found is None else str(found)

    @property
    def active_ports(self) -> list[dict[str, Any]]:
        """InfiniBand ports that carry traffic."""
        return [port for port in self.get("infiniband") or () if port.get("state") == "ACTIVE"]

    @property
    def interface(self) -> dict[str, Any] | None:
        """The interface by which the node was reached; else the first that has an address of its own."""
        at = self.get("ssh_address")
        known = self.get("interfaces") or ()
        faces = [dict(one) for one in known if one["up"] and one["addresses"] and not one["loopback"]]
        named = [face for face in faces if at in face["addresses"]]
        return next(iter(named or faces), None)

    @property
    def address(self) -> str | None:
        """Where the other nodes reach it, as a launch takes it; None where nobody knows."""
        found = self.get("ssh_address") or self.get("hostname")
        return None if found is None else str(found)


def size(value: float) -> str:
    """Bytes as a person reads them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def sentence(text: str) -> str:
    """With a full stop, unless what somebody else said has its own end."""
    return text if text.endswith((".", "?", "!")) else f"{text}."
