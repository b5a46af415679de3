"""The informative messages of NCCL 2.3 to 2.32, as patterns at the beginning of a message."""

from __future__ import annotations

import functools
import re

COMM = re.compile(
    r"(?:\[Rank \d+\] )?(?:(?P<call>nccl\w+) )?comm (?P<pointer>0x[0-9a-f]+|\(nil\)) rank (?P<rank>\d{1,9}) "
    r"n[rR]anks (?P<nranks>\d{1,9})(?P<rest>.*)"
)
NODES = re.compile(r" nNodes (\d{1,9}) ")
COMM_ID = re.compile(r" commId (0x[0-9a-f]+)")
ENDING = re.compile(r"- (Init START|Init COMPLETE|Destroy COMPLETE|Abort COMPLETE)")
TIMINGS = re.compile(
    r"Init timings(?: - \w+)?: rank (\d{1,9}) nranks (\d{1,9}) total (\d{1,9}\.\d{1,9}) \((.*)\)"
)
PHASE = re.compile(r"(\w{1,40}) (\d{1,9}\.\d{1,9})")
LINK = re.compile(
    r"(?:Channel|Ring) (\d{1,6})(?:/\d+)? : (\d{1,9})(?:\[\w+\])? -> (\d{1,9})(?:\[\w+\])?"
    r"(?: \[(send|receive)\])? via (.+)"
)
RING = re.compile(r"Channel (\d{1,6})(?:/\d+)? :((?: +\d+)+)")
TREE = re.compile(r"(?:\[(\d{1,6})\] |Tree (\d{1,6}) : )-?\d+(?:/-?\d+)* ?->")
CHANNELS = re.compile(r"(\d{1,9}) (coll|collnet|nvls|p2p) channels( per peer)?")
HCA = re.compile(r"\[\d+\](\S+?:\d+)/(\S+)")
OOB = re.compile(r"; OOB ([^:\s]+):(\S+)")
INTERFACE = re.compile(r"(?:\[\d+\])?([^:\s\[\]]+):(\S+?)<\d+>")
BOOTSTRAP = re.compile(r"Bootstrap ?: Using (?:\[\d+\])?([^:\s]+):")
NETWORK = re.compile(r"Using (?:network|internal Network) (.+?)\s*$")
ASSIGNED = re.compile(r"Assigned NET plugin (.+) to comm")
PLUGIN = re.compile(
    r"(?:NET/Plugin ?: Loaded net plugin (?P<net>.+)|NET/OFI (?:Using|Initializing) (?P<ofi>aws-ofi-nccl \S+)"
    r"|P2P plugin (?P<p2p>\S+)|(?P<kind>TUNER|PROFILER)/Plugin: Using (?P<name>.+))"
)
VARIABLE = re.compile(r"(NCCL_[A-Z0-9_]+) set (?:by environment )?to (.+?)\.?\s*$")
COLLECTIVE = re.compile(r"(\w{1,40}): opCount [0-9a-f]+ .*?comm (0x[0-9a-f]+)")
TUNED = re.compile(r"(?:(\w+): )?\d+ Bytes -> Algo (\w+) proto (\w+)")
VERSION = re.compile(r"(?:NCCL version )?(\d+\.\d+(?:\.\d+)*)(\+cuda[\w.]+)?")

ALGORITHMS = {
    "0": "TREE",
    "1": "RING",
    "2": "COLLNET_DIRECT",
    "3": "COLLNET_CHAIN",
    "4": "NVLS",
    "5": "NVLS_TREE",
}
PROTOCOLS = {"0": "LL", "1": "LL128", "2": "SIMPLE"}
"""2.21 writes numbers, later ones names."""


@functools.lru_cache(4096)
def transport(via: str) -> str:
    """How two ranks are connected: "P2P/IPC", "SHM", "NET/IB/GDRDMA", "NET/AWS Libfabric", …"""
    via = via.partition(" comm ")[0].strip()
    if via.startswith(("direct shared", "SHM")):
        return "SHM"
    parts = via.split("/")
    if parts[0] == "NET" and len(parts) > 1:
        direct = any(part.startswith("GDRDMA") for part in parts[2:])
        return f"NET/{parts[1][:60]}" + "/GDRDMA" * direct
    if parts[0] == "P2P" and len(parts) > 1:
        return f"P2P/{parts[1].split('[')[0][:60]}"
    return parts[0][:60]
