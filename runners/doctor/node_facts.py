"""Read facts of a node on the node: kernel, memory, limits, disks, PCI, network and NVIDIA's driver.

Needs only the standard library and Python 3.8: session.py sends the text of this module, and installs nothing there.
Unreadable facts are None.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import itertools
import json
import os
import platform
import re
import resource
import shutil
import socket
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAGIC = "DISTUI-DOCTOR "
"""Prefix of each answer line, since libraries and login shells also write lines."""
UNLIMITED = 1 << 60
"""cgroups v1 writes a number near 2^63 for "no limit"."""
KINDS = {
    "memlock": resource.RLIMIT_MEMLOCK,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
}


def read(path: str) -> str:
    """Return the text of a small file; "" if it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def kernel() -> dict[str, Any]:
    """Return the machine's identity, kernel and size."""
    return {
        "hostname": platform.node(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "boot": read("/proc/sys/kernel/random/boot_id") or None,
        "user": os.geteuid(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": memory(read("/proc/meminfo")),
    }


def memory(text: str) -> int | None:
    """Return MemTotal in bytes."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "MemTotal:":
            return int(words[1]) * 1024
    return None


def shm() -> dict[str, int] | None:
    """Return the size of /dev/shm in bytes; None without it."""
    return _space("/dev/shm") if os.path.isdir("/dev/shm") else None


def _space(path: str) -> dict[str, int] | None:
    try:
        stats = os.statvfs(path)
    except OSError:
        return None
    return {"total": stats.f_blocks * stats.f_frsize, "free": stats.f_bavail * stats.f_frsize}


def limits() -> dict[str, list[int | None] | None]:
    """Return soft and hard limit of each kind, in bytes or as a count; None means unlimited."""
    bounds: dict[str, list[int | None] | None] = {}
    for name, kind in KINDS.items():
        pair = resource.getrlimit(kind)
        bounds[name] = [None if value == resource.RLIM_INFINITY else value for value in pair]
    return bounds


def disks(cwd: str) -> list[dict[str, Any]]:
    """Return the free bytes in a run's directories. `there` is False for a missing directory."""
    state = os.environ.get("XDG_STATE_HOME", "")
    state = state if state.startswith(("/", "~")) else "~/.local/state"
    places = (
        ("runs", os.path.expanduser(state) + "/distui/runs"),
        ("tmp", os.environ.get("TMPDIR") or "/tmp"),
    )
    entries = [_disk(name, path, True) for name, path in places]
    return [*entries, _disk("cwd", os.path.expanduser(cwd), False)]


def _disk(name: str, path: str, made: bool) -> dict[str, Any]:
    """`made`: a run creates the directory, so its nearest existing parent counts."""
    there = path
    while made and not os.path.isdir(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    space = _space(there) or {}
    device = None
    try:
        device = os.stat(there).st_dev
    except OSError:
        pass
    return {
        "name": name,
        "path": path,
        "there": os.path.isdir(there),
        "device": device,
        "writable": os.access(there, os.W_OK),
        **space,
    }


def cgroup(root: str = "/") -> dict[str, float | None]:
    """Return bytes and cores of the tightest control group above this process; None without a limit."""
    own = {}
    for line in read(root + "proc/self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            own.update(dict.fromkeys(parts[1].split(","), parts[2]))
    base = root + "sys/fs/cgroup"
    return {
        "memory": min(_memory_limits(base, own), default=None),
        "cores": min(_core_limits(base, own), default=None),
    }


def _memory_limits(base: str, own: dict[str, str]) -> list[int]:
    if "memory" in own:  # cgroup v1
        texts = _chain(base + "/memory", own["memory"], "memory.limit_in_bytes")
    else:
        texts = _chain(base, own.get("", "/"), "memory.max")
    return [int(text) for text in texts if text.isdigit() and int(text) < UNLIMITED]


def _core_limits(base: str, own: dict[str, str]) -> list[float]:
    if "cpu" in own:  # cgroup v1
        quotas = _chain(base + "/cpu", own["cpu"], "cpu.cfs_quota_us")
        periods = _chain(base + "/cpu", own["cpu"], "cpu.cfs_period_us")
        pairs = [[quotas[at], periods[at]] for at in range(min(len(quotas), len(periods)))]
    else:
        texts = _chain(base, own.get("", "/"), "cpu.max")
        pairs = [text.split() for text in texts if len(text.split()) == 2]
    return [int(quota) / int(period) for quota, period in pairs if quota.isdigit() and int(period) > 0]


def _chain(mount: str, path: str, name: str) -> list[str]:
    """Return a control file's texts from the process's group upwards."""
    at = os.path.normpath(mount + "/" + path)
    if not os.path.isdir(at):  # in a container whose mount shows only its own groups
        at = mount
    texts = []
    while at.startswith(mount):
        texts.append(read(at + "/" + name))
        at = os.path.dirname(at)
    return [text for text in texts if text]


VARIABLES = """
    CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER LD_LIBRARY_PATH LD_PRELOAD MASTER_ADDR MASTER_PORT
    PYTHONPATH PYTHONHOME PYTHONNOUSERSITE PYTHONSAFEPATH OMP_NUM_THREADS TORCH_DISTRIBUTED_DEBUG
"""


def variables(environ: dict[str, str]) -> dict[str, str]:
    """Return the variables that affect a run's communication or distui's hook."""
    heads = ("NCCL_", "TORCH_NCCL_", "TORCH_FR_", "GLOO_", "DISTUI_", "FI_", "UCX_")
    secret = ("TOKEN", "KEY", "SECRET", "PASSWORD")
    return {
        name: value
        for name, value in sorted(environ.items())
        if (name.startswith(heads) or name in VARIABLES.split())
        and not any(word in name for word in secret)
    }


def conf_files(home: str) -> dict[str, dict[str, str]]:
    """Return the settings in NCCL's own files, by file. Missing files are omitted."""
    files = {}
    for path in ("/etc/nccl.conf", os.path.join(home, ".nccl.conf"), os.environ.get("NCCL_CONF_FILE", "")):
        text = read(path) if path else ""
        if text:
            files[path] = settings(text.splitlines())
    return files


def settings(lines: Sequence[str]) -> dict[str, str]:
    """Parse `NAME=VALUE` lines. `#` begins a comment."""
    pairs = (line.partition("#")[0].partition("=") for line in lines)
    return {name.strip(): value.strip() for name, is_, value in pairs if is_ and name.strip()}


def which(name: str) -> str | None:
    return shutil.which(os.path.expanduser(name))


# --- NVIDIA's driver as the kernel shows it, InfiniBand, GPUDirect ---

IOMMU_WORDS = ("iommu=", "intel_iommu=", "amd_iommu=", "iommu.passthrough=", "pci=", "pcie_acs_override=")


def driver(root: str = "/") -> dict[str, Any] | None:
    """Return the loaded kernel driver; None without one. `open`: NVIDIA's open kernel modules."""
    text = read(root + "proc/driver/nvidia/version")
    number = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    if not text:
        return None
    return {"version": number[1] if number else None, "open": "Open Kernel Module" in text}


def kernel_gpus(root: str = "/") -> list[dict[str, str | None]]:
    """Return the kernel driver's GPUs; [] in a container without GPUs, which still sees the driver's files."""
    gpus: list[dict[str, str | None]] = []
    if not glob.glob(root + "dev/nvidia[0-9]*"):
        return gpus
    for path in sorted(glob.glob(root + "proc/driver/nvidia/gpus/*/information")):
        lines = (line.partition(":") for line in read(path).splitlines())
        fields = {name.strip(): value.strip() for name, _, value in lines}
        gpus.append(
            {"name": fields.get("Model"), "uuid": fields.get("GPU UUID"), "bus": fields.get("Bus Location")}
        )
    return gpus


def infiniband(root: str = "/") -> list[dict[str, Any]]:
    """Return the ports of InfiniBand, RoCE and EFA devices."""
    ports = []
    for path in sorted(glob.glob(root + "sys/class/infiniband/*/ports/*")):
        device, port = path.split("/")[-3], path.split("/")[-1]
        state = read(path + "/state").partition(":")[2].strip() or None
        physical = read(path + "/phys_state").partition(":")[2].strip() or None
        rate = re.match(r"(\d+(?:\.\d+)?) Gb/sec", read(path + "/rate"))
        ports.append(
            {
                "device": device,
                "port": port,
                "state": state,
                "physical": physical,
                "link_layer": read(path + "/link_layer") or None,
                "gbps": float(rate[1]) if rate else None,
            }
        )
    return ports


def gpudirect(root: str = "/") -> dict[str, Any]:
    """Return whether nvidia_peermem is loaded, and whether the kernel exports dma-buf; None if unreadable."""
    modules = read(root + "proc/modules")
    names = {line.partition(" ")[0] for line in modules.splitlines()}
    return {
        "peermem": bool(names & {"nvidia_peermem", "nv_peer_mem"}) if modules else None,
        "dma_buf": _symbol(root + "proc/kallsyms", b" dma_buf_export"),
    }


def _symbol(path: str, name: bytes) -> bool | None:
    try:
        with open(path, "rb") as file:
            return any(name in line for line in file)
    except OSError:
        return None


def iommu(root: str = "/") -> dict[str, Any]:
    """Return the kernel's IOMMU options, and whether an IOMMU is active."""
    words = read(root + "proc/cmdline").split()
    try:
        active: bool | None = bool(os.listdir(root + "sys/class/iommu"))
    except OSError:
        active = None
    return {"cmdline": [word for word in words if word.startswith(IOMMU_WORDS)], "active": active}


# --- PCI bridges that redirect traffic between GPUs through the root complex: Access Control Services ---

ACS_ID = 0x000D
ACS_CONTROL = 6
FIRST = 0x100
"""Offset of the first extended capability."""
MOST = 64
BRIDGE_CLASS = "0x0604"
DEVICES = "sys/bus/pci/devices"


def acs_control(config: bytes) -> int | None:
    """Return the ACS control register in a device's configuration space; None without that capability."""
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
    """Return the bridges with ACS and their control bits, and the number of all bridges; None if unreadable."""
    base = os.path.join(root, DEVICES)
    try:
        names = sorted(os.listdir(base))
    except OSError:
        return None
    acs: list[dict[str, Any]] = []
    count = hidden = 0
    for name in names:
        path = os.path.join(base, name)
        if not read(path + "/class").startswith(BRIDGE_CLASS):
            continue
        count += 1
        try:
            with open(path + "/config", "rb") as file:
                config = file.read()
        except OSError:
            config = b""
        if len(config) <= FIRST:
            # Non-root users read 64 bytes. A device without extended space has 256.
            hidden += len(config) <= 64
            continue
        control = acs_control(config)
        if control is not None:
            acs.append({"device": name, "control": control})
    if count and hidden == count:
        return None
    return {"bridges": count, "acs": acs}


# --- network: addresses of the node, and its connections to others ---

SIOCGIFADDR = 0x8915
DNS_SECONDS = 10.0
LISTENING = "0A"


def interfaces(root: str = "/") -> list[dict[str, Any]]:
    """Return the network interfaces. `mbps` is None if the kernel does not know the speed (virtual interfaces)."""
    base = root + "sys/class/net"
    try:
        names = sorted(name for name in os.listdir(base) if os.path.isdir(base + "/" + name))
    except OSError:
        return []
    six = _ipv6(read(root + "proc/net/if_inet6"))
    faces = []
    for name in names:
        path = base + "/" + name
        flags = int(read(path + "/flags") or "0", 16)
        four = ipv4(name)
        faces.append(
            {
                "name": name,
                "up": bool(flags & 1) and read(path + "/operstate") in ("up", "unknown"),
                "loopback": bool(flags & 8),
                "device": os.path.exists(path + "/device"),
                "mtu": _whole(read(path + "/mtu")),
                "mbps": _whole(read(path + "/speed")) or None,
                "addresses": ([four] if four else []) + six.get(name, []),
            }
        )
    return faces


def _whole(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def ipv4(name: str) -> str | None:
    """Return the first address of an interface; None without one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            reply = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(reply[20:24])


def _ipv6(text: str) -> dict[str, list[str]]:
    """Return addresses by interface, except link-local ones."""
    addresses: dict[str, list[str]] = {}
    for words in (line.split() for line in text.splitlines()):
        if len(words) == 6 and words[3] != "20":
            address = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0]))
            addresses.setdefault(words[5], []).append(address)
    return addresses


def limited(do: Callable[[], Any], seconds: float = DNS_SECONDS) -> Any:
    """Return the result of a call that may hang, or "no answer within …", or the text of its OSError."""
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
    """Return the addresses of a name, the seconds that the lookup took, and the reason if there are none."""
    began = time.monotonic()
    outcome = limited(lambda: sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None)}))
    answer = {"name": name, "addresses": [], "problem": "", "seconds": round(time.monotonic() - began, 3)}
    answer["problem" if isinstance(outcome, str) else "addresses"] = outcome
    return answer


def ssh_address() -> str | None:
    """Return the node's address in this SSH connection; None on the same machine, or if sshd does not set it."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2] if len(words) == 4 else None


def listener(port: int) -> socket.socket:
    """Return a socket that listens on every address, as torch's store does. Raises OSError."""
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
    """Return whether a port is free, and pid and command of its owner if this user may read them."""
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
    """Return whether a connection succeeds, and the reason if not."""
    began = time.monotonic()
    try:
        socket.create_connection((host, port), seconds).close()
    except OSError as error:
        late = isinstance(error, socket.timeout)
        return {"ok": False, "problem": "timed out" if late else error.strerror or str(error)}
    return {"ok": True, "problem": "", "seconds": round(time.monotonic() - began, 4)}


def masked(text: str) -> str:
    """Return the text without passwords in URLs."""
    return re.sub(r"//[^/@\s]+@", "//***@", text)


# --- NVML by ctypes, without a Python package on the node ---

LIBRARY = os.environ.get("DISTUI_NVML_LIBRARY") or "libnvidia-ml.so.1"
TEXT_BYTES = 96
P2P_READ = 0
SENTENCES = {
    9: "the NVIDIA kernel driver is not loaded",
    18: "the NVIDIA library and its kernel driver differ in version",
}


class Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def nvml_facts() -> dict[str, Any]:
    """Return driver and GPUs; {"problem": …} if the library exists but does not work, {} without the library."""
    try:
        nvml = ctypes.CDLL(LIBRARY)
    except OSError:
        return {}
    code = nvml.nvmlInit_v2()
    if code:
        return {"problem": SENTENCES.get(code, f"the NVIDIA driver does not start (NVML error {code})")}
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    handles = [ctypes.c_void_p() for _ in range(count.value)]
    lost = [
        index
        for index, handle in enumerate(handles)
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
    ]
    working = [handle for index, handle in enumerate(handles) if index not in lost]
    version = ctypes.create_string_buffer(TEXT_BYTES)
    readable = not nvml.nvmlSystemGetDriverVersion(version, ctypes.c_uint(TEXT_BYTES))
    return {
        "version": version.value.decode() if readable else None,
        "gpus": [_gpu(nvml, handle) for handle in working],
        "lost": lost,
        "no_p2p": _no_p2p(nvml, working),
    }


def _gpu(nvml: Any, handle: Any) -> dict[str, Any]:
    memory = Memory()
    readable = not nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    return {
        "name": _text(nvml.nvmlDeviceGetName, handle),
        "uuid": _text(nvml.nvmlDeviceGetUUID, handle),
        "memory": memory.total if readable else None,
        "used": memory.used if readable else None,
    }


def _text(function: Any, handle: Any) -> Any:
    buffer = ctypes.create_string_buffer(TEXT_BYTES)
    return None if function(handle, buffer, ctypes.c_uint(TEXT_BYTES)) else buffer.value.decode()


def _no_p2p(nvml: Any, handles: list[Any]) -> Any:
    """Return pairs of GPUs that cannot read each other's memory; None if the driver does not report it."""
    function = getattr(nvml, "nvmlDeviceGetP2PStatus", None)
    if function is None:
        return None
    pairs = []
    for first, second in itertools.combinations(range(len(handles)), 2):
        status = ctypes.c_int()
        if function(handles[first], handles[second], P2P_READ, ctypes.byref(status)):
            return None
        if status.value:
            pairs.append([first, second])
    return pairs


def report_nvml() -> None:
    """Write `nvml_facts` as a line of JSON. Runs in a separate process, because the driver may hang."""
    sys.stdin.buffer.readline()
    sys.stdout.write(MAGIC + json.dumps(nvml_facts()) + "\n")
