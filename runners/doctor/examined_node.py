"""A node with its facts, as the checks see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...presets.finding import Finding, Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class ExaminedNode:
    name: str
    facts: Mapping[str, Any]
    """Result of `node_server.gather`; None means unknown."""
    ahead_s: float | None = None
    """Lead of its clock over this machine's, in seconds."""
    doubt_s: float = 0.0
    """Maximum error of `ahead_s`: half of the shortest round trip."""
    several: bool = False

    def get(self, *path: str) -> Any:
        """Return a fact; None if a part of its path is unknown."""
        value: Any = self.facts
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value

    def finding(
        self, id: str, severity: Severity, text: str, value: object = "", remedy: str = ""
    ) -> Finding:
        shown = "" if value is None else str(value)
        return Finding(id=id, severity=severity, where=self.name, value=shown, text=text, remedy=remedy)

    @property
    def gpus(self) -> int:
        """Number of GPUs that processes of this node can use, or that the kernel driver names if NVML did not answer."""
        nvml = self.get("nvml", "gpus")
        return len(self.get("kernel_gpus") or ()) if nvml is None else len(nvml)

    @property
    def models(self) -> str | None:
        """GPUs by model, such as "8 × H100", or "none"; None if the driver does not report them."""
        gpus = self.get("nvml", "gpus") or self.get("kernel_gpus")
        if not gpus and self.get("nvml") != {} and self.get("nvml", "gpus") is None:
            return None
        names = sorted(str(gpu.get("name") or "GPU") for gpu in gpus or ())
        return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "none"

    @property
    def ports(self) -> str | None:
        """Active InfiniBand ports by rate, or "none"; None if unknown."""
        if self.get("infiniband") is None:
            return None
        rates = sorted(port.get("gbps") or 0.0 for port in self.active_ports)
        return ", ".join(f"{rates.count(rate)} × {rate:g} Gb/s" for rate in dict.fromkeys(rates)) or "none"

    @property
    def driver(self) -> str | None:
        version = self.get("nvml", "version") or self.get("driver", "version")
        return None if version is None else str(version)

    @property
    def active_ports(self) -> list[dict[str, Any]]:
        """InfiniBand ports that carry traffic."""
        return [port for port in self.get("infiniband") or () if port.get("state") == "ACTIVE"]

    @property
    def settings(self) -> dict[str, str]:
        """NCCL's settings: variables of the environment override those in NCCL's own files."""
        merged: dict[str, str] = {}
        for settings in (self.get("nccl_conf") or {}).values():
            merged |= settings
        return merged | (self.get("env") or {})

    @property
    def interface(self) -> dict[str, Any] | None:
        """The interface with the address of this SSH connection, else the first with an address."""
        at = self.get("ssh_address")
        links = self.get("interfaces") or ()
        faces = [dict(face) for face in links if face["up"] and face["addresses"] and not face["loopback"]]
        named = [face for face in faces if at in face["addresses"]]
        return next(iter(named or faces), None)

    @property
    def address(self) -> str | None:
        """The node's address for other nodes, in the form for a launch; None if unknown."""
        address = self.get("ssh_address") or self.get("hostname")
        return None if address is None else str(address)
