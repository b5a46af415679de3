"""What the texts of exceptions mean: a table, most telling first. The texts are those that real ranks wrote."""

from __future__ import annotations

import re
from typing import NamedTuple


class Cause(NamedTuple):
    """One class of failures, and the texts that belong to it."""

    kind: str
    pattern: re.Pattern[str]
    """Searched in "Type: text"; its first group that took part is what {0} stands for."""
    says: str
    """After "rank 3 ". {0} see `pattern`, {path} the file that an OSError names, {python} the interpreter."""
    remedy: str
    retry: str
    symptom: bool = False
    """It only says that another rank is gone or late."""
    anywhere: bool = False
    """Also believed where it stands in the last lines of a rank that left no exception."""


def _cause(kind: str, pattern: str, says: str, remedy: str, retry: str, **more: bool) -> Cause:
    return Cause(kind, re.compile(pattern, re.DOTALL), says, remedy, retry, **more)


_MEMORY = "take a smaller micro batch, or a preset that shards more: `distui advise` says what would fit"
_SPACE = (
    "free space or raise the quota there, then relaunch; `df -h` and `df -i` on that node show what is full"
)
_WORKER = r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: "

CAUSES: tuple[Cause, ...] = (
    _cause(
        "import-missing",
        r"^(?:ModuleNotFoundError|ImportError|RuntimeError|ValueError)\b.*?No module named '?([\w.]+)",
        "finds no module named {0} in {python}",
        "install it there (`{python} -m pip install …`), choose another interpreter with --python, "
        "or put its directory on PYTHONPATH",
        "no",
    ),
    _cause(
        "ecc",
        r"uncorrectable ECC error",
        "hit an uncorrectable ECC error of its GPU",
        "leave that GPU or node out until it was reset; have it exchanged if this comes back",
        "yes",
        anywhere=True,
    ),
    _cause(
        "cuda-oom",
        r"^(?:torch\.)?(?:cuda\.)?OutOfMemoryError\b|(?:CUDA|HIP)(?: error:)? out of memory"
        r"|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
        "ran out of GPU memory",
        _MEMORY,
        "maybe",
        anywhere=True,
    ),
    _cause(
        "cuda-error",
        r"(no kernel image is available for execution|Torch not compiled with CUDA enabled"
        r"|Found no NVIDIA driver|CUDA driver version is insufficient|no CUDA-capable device|invalid device ordinal)",
        "cannot use a GPU: {0}",
        "install a torch that fits the GPU and the driver there (`distui doctor` shows both), "
        "or ask for as many ranks as there are GPUs",
        "no",
        anywhere=True,
    ),
    _cause(
        "cuda-error",
        r"(device-side assert)",
        "failed on its GPU: {0} triggered",
        "most often an index out of range (labels, embeddings): CUDA_LAUNCH_BLOCKING=1 names the line",
        "maybe",
        anywhere=True,
    ),
    _cause(
        "cuda-error",
        r"CUDA error: ([^\n(]+)|(illegal memory access|unspecified launch failure|misaligned address"
        r"|CU(?:BLAS|DNN)_STATUS_\w+)",
        "failed on its GPU: {0}",
        "look for an Xid in that node's kernel log; CUDA_LAUNCH_BLOCKING=1 names the line that failed",
        "maybe",
        anywhere=True,
    ),
    _cause(
        "segfault",
        _WORKER + r"(Bus error)",
        "lost a worker of its data loader to a bus error",
        "the shared memory is too small: enlarge /dev/shm (docker --shm-size), or take fewer workers",
        "maybe",
    ),
    _cause(
        "killed",
        _WORKER + r"(Killed)",
        "lost a worker of its data loader to SIGKILL",
        "most often the kernel does that for want of memory: fewer workers, or a higher limit; see its log there",
        "maybe",
    ),
    _cause(
        "host-oom",
        r"^MemoryError\b|DefaultCPUAllocator: (?:can't allocate|not enough) memory|\[Errno 12\]|std::bad_alloc"
        r"|Cannot allocate memory",
        "ran out of host memory",
        "fewer ranks or data-loader workers on that node, less kept in host memory, or a higher limit",
        "maybe",
        anywhere=True,
    ),
    _cause(
        "disk-full",
        r"\[Errno (?:28|122)\]|No space left on device|Disk quota exceeded",
        "finds the disk full{at_path}",
        _SPACE,
        "maybe",
    ),
    _cause(
        "disk-full",
        r"PytorchStreamWriter failed writing|inline_container\.cc:\d+\] \. unexpected pos"
        r"|basic_ios::clear: iostream error",
        "could not write all of a file with torch.save: the disk is full, or its quota",
        _SPACE,
        "maybe",
    ),
    _cause(
        "permission",
        r"^PermissionError: \[Errno 13\]|open file failed with strerror: Permission denied"
        r"|^\w*Error: \[Errno 13\]",
        "has no permission{for_path}",
        "make it writable for the user of the ranks on that node, or choose another directory",
        "no",
    ),
    _cause(
        "permission",
        r"\[Errno 30\]|Read-only file system",
        "may not write to a read-only file system{at_path}",
        "choose a directory that can be written to, or have it mounted for writing",
        "no",
    ),
    _cause(
        "port-in-use",
        r"port: (\d+)[^\n]*EADDRINUSE|\[Errno 98\] Address already in use[^\n]*?, (\d+)\)"
        r"|EADDRINUSE|Address already in use|address already in use",
        "finds its port {0} in use",
        "choose another port, or end the process that holds it (`ss -ltnp` on that node names it)",
        "maybe",
    ),
    _cause(
        "address",
        r"Unable to find address for: (\S+)",
        "finds no network interface or address {0}",
        "set GLOO_SOCKET_IFNAME to an interface that `ip -brief addr` shows on that node, or unset it",
        "no",
    ),
    _cause(
        "address",
        r"no socket interface found|No interface found in the same subnet as ([\d.:a-f]+)",
        "finds no network interface that NCCL may use",
        "set NCCL_SOCKET_IFNAME to an interface that `ip -brief addr` shows on that node, or unset it",
        "no",
        anywhere=True,
    ),
    _cause(
        "address",
        r"(Name or service not known|Temporary failure in name resolution|gai error: -?\d+)",
        "cannot resolve the address of another node: {0}",
        "check MASTER_ADDR or the rendezvous endpoint: every node must be able to resolve it",
        "maybe",
    ),
    _cause(
        "mismatch",
        r"op\.preamble\.length <= op\.nbytes",
        "received data of another size than it asked for: another rank calls a collective of another size",
        "compare what the ranks pass to their collectives; `distui dump` of a run in this state names the call of each",
        "maybe",
        anywhere=True,
    ),
    _cause(
        "mismatch",
        r"Detected mismatch between collectives on ranks\.? ?([^\n]*)",
        "calls another collective than the others: {0}",
        "compare what the ranks do up to this collective",
        "maybe",
        anywhere=True,
    ),
    _cause(
        "connect-timeout",
        r"client socket has timed out.*?connect to \(([^)]+)\)|client socket has failed to connect to[^\n(]*\(([^)]+)\)"
        r"|^ConnectionRefusedError: ([^\n]+)|^TimeoutError: (\[Errno 110\][^\n]*)",
        "could not connect to {0}",
        "check that something listens there and that no firewall is between; see MASTER_ADDR and MASTER_PORT",
        "maybe",
        symptom=True,
    ),
    _cause(
        "timeout",
        r"(\d+/\d+) clients joined",
        "waited for the other ranks to join until the time limit ({0} did)",
        "look for the ranks that did not start, or were given another address or world size",
        "maybe",
        symptom=True,
    ),
    _cause(
        "timeout",
        r"Timed out waiting \d+ms|collective operation timeout|Socket Timeout|Timeout waiting for|wait timeout after",
        "waited for a collective until the time limit",
        "another rank did not come: see where it was (`distui dump`), or raise the timeout of the process group",
        "maybe",
        symptom=True,
        anywhere=True,
    ),
    _cause(
        "connect-timeout",
        r"connectFullMesh failed.*?(?:timed out connecting|refused|No route|unreachable).*?remote=\[([^\]\n]+)\]",
        "could not connect to another rank at {0}",
        "see whether that rank had ended; each rank tells the others the address of its interface, and from another "
        "node a loopback (127.0.0.1) leads nowhere: set GLOO_SOCKET_IFNAME to one that leads to the other nodes",
        "maybe",
        symptom=True,
    ),
    _cause(
        "peer-gone",
        r"(?i:^RuntimeError|^\w*Dist\w+Error|gloo|nccl|c10d|TCPStore).*?"
        r"(?:Connection (?:closed|reset) by|Connection refused|connectFullMesh|Broken pipe"
        r"|remote process exited|ncclRemoteError|communicator was aborted|Read error)"
        r"|DistNetworkError",
        "lost its connection to another rank",
        "look for the rank that ended first, and why",
        "maybe",
        symptom=True,
        anywhere=True,
    ),
    _cause(
        "connection",
        r"Connection (?:closed|reset) by peer|Connection refused|Broken pipe",
        "raised {line}",
        "see who was to answer at the other end",
        "maybe",
        symptom=True,
    ),
    _cause(
        "file-missing",
        r"(?:FileNotFoundError|NotADirectoryError): [^\n]*?'([^'\n]+)'|Parent directory (\S+) does not exist"
        r"|FileNotFoundError: ([^\n]+)",
        "finds no file or directory {0}",
        "check the path on that node: relative ones start at the directory of the launch",
        "maybe",
    ),
    _cause(
        "nan",
        r"^FloatingPointError\b|\b(?i:loss|grad\w*|norm|tensor)\b[^\n]*\b(?i:nan|inf|non-?finite|not finite)\b",
        "stopped at numbers that are not finite: {line}",
        "resume from an earlier checkpoint with a lower learning rate, or look for the batch that does it",
        "maybe",
    ),
)

THROUGH = ("ecc", "cuda-oom", "host-oom", "disk-full")
"""Also believed of the exceptions that led to the last one."""
