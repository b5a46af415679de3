"""PCI bridges that send what GPUs tell each other through the root complex: Access Control Services.

The extended capability has id 0x000D; its control register stands 6 bytes in (PCI Express Base Specification,
"ACS Extended Capability"). Only root sees a device's configuration space beyond byte 64.
"""

from __future__ import annotations

import os
import struct
from typing import Any

ACS_ID = 0x000D
ACS_CONTROL = 6
FIRST = 0x100
"""Where extended capabilities begin."""
MOST = 64
BRIDGE_CLASS = "0x0604"
DEVICES = "sys/bus/pci/devices"


def acs_control(config: bytes) -> int | None:
    """The ACS control register in a device's configuration space; None without that capability."""
    at, seen = FIRST, 0
    while FIRST <= at <= len(config) - 4 and seen < MOST:
        (head,) = struct.unpack_from("<I", config, at)
        if head in (0, 0xFFFFFFFF):
            return None
        if head & 0xFFFF == ACS_ID:
            if at + ACS_CONTROL + 2 > len(config):
                return None
            return int(struct.unpack_from("<H", config, at + ACS_CONTROL)[0])
        at, seen = head >> 20 & 0xFFC, seen + 1
    return None


def bridges(root: str = "/") -> dict[str, Any] | None:
    """Bridges with ACS and their control bits, and how many there are; None where they cannot be read."""
    base = os.path.join(root, DEVICES)
    try:
        names = sorted(os.listdir(base))
    except OSError:
        return None
    acs: list[dict[str, Any]] = []
    count = hidden = 0
    for name in names:
        path = os.path.join(base, name)
        if not _text(path + "/class").startswith(BRIDGE_CLASS):
            continue
        count += 1
        try:
            with open(path + "/config", "rb") as file:
                config = file.read()
        except OSError:
            config = b""
        if len(config) <= FIRST:
            # 64 bytes for who is not root, 256 for a device that has no extended space.
            hidden += len(config) <= 64
            continue
        control = acs_control(config)
        if control is not None:
            acs.append({"device": name, "control": control})
    if count and hidden == count:
        return None
    return {"bridges": count, "acs": acs}


def _text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
