"""The table of known causes of failures, most specific first: the texts of ranks, a sentence and a remedy for each."""

from __future__ import annotations

import re
from typing import NamedTuple


class Cause(NamedTuple):
    """One class of failures and the pattern of its texts."""

    kind: str
    pattern: re.Pattern[str]
    """Searched in "Type: text". Its first non-empty group is {0} in `says`."""
    says: str
    """Text after "rank 3 ". Fields: {0}, {path} (the file of an OSError), {python} (the interpreter), {line}, …"""
    remedy: str
    retry: str
    symptom: bool = False
    """True if the failure only shows that another rank has exited or is late."""
    anywhere: bool = False
    """True if the pattern is also searched in the last lines of a rank without an exception."""
    deterministic: bool = False
    """True if a failure before the first step happens again in each attempt, so that no restart can help."""


def _cause(kind: str, pattern: str, says: str, remedy: str, retry: str, **more: bool) -> Cause:
    return Cause(kind, re.compile(pattern, re.DOTALL), says, remedy, retry, **more)


_MEMORY = "take a smaller micro batch, or a preset that shards more: `distui advise` says what would fit"
LESS = "fewer ranks or data-loader workers on that node, less kept in host memory, or a higher limit"
_SPACE = (
    "free space or raise the quota there, then relaunch; `df -h` and `df -i` on that node show what is full"
)
FILE_LIMIT = "`ulimit -f unlimited` where the run is launched, then relaunch; a scheduler or container may set it, too"
_WORKER = r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) is killed by signal: "

LOST_WORKER = "lost a worker process of its data loader, which ended before it had given its batch"
WORKER_REMEDY = (
    "look for it in that node's kernel log, if it was killed because memory ran out: fewer workers then; "
    "num_workers=0 has an exception or a crash of the data set in the rank"
)

NAN_REMEDY = (
    "resume from an earlier checkpoint with a lower learning rate, or look for the batch that does it"
)

_SIZES = (
    r"^(?:RuntimeError|ValueError|IndexError|AssertionError)\b[^\n]*?"
    r"(?:shape '[^'\n]*' is invalid for input of size|mat1 and mat2 shapes|size mismatch"
    r"|must match the (?:existing )?size|expected size \d+==\d+"
    r"|not divisible by|must be divisible by)"
)
"""torch's errors about sizes that do not match; the data is seldom the reason."""

_HUB = (
    "nodes without internet access need the files in the cache of every node beforehand (HF_HOME on a shared "
    "disk, HF_HUB_OFFLINE=1), a proxy (HTTPS_PROXY) or a mirror (HF_ENDPOINT)"
)
_UNFIT = (
    "make the model as it was when the checkpoint was saved (sizes, layers, vocabulary, tensor-parallel size), or "
    "leave those keys out when loading"
)

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
        "ray-actor",
        r"(?:ActorDiedError|RayActorError|ActorUnavailableError|WorkerCrashedError)\b.*?\bip: ([\w.:-]+)",
        "lost an actor of Ray at {0}: {line}",
        "read that worker's output, and find out why its node or process ended",
        "maybe",
        symptom=True,
    ),
    _cause(
        "ray-actor",
        r"ActorDiedError|RayActorError|ActorUnavailableError|WorkerCrashedError",
        "lost an actor of Ray: {line}",
        "read that worker's output, and find out why its node or process ended",
        "maybe",
        symptom=True,
    ),
    _cause(
        "ray-trials",
        r"Trials did not complete",
        "saw trials of Ray Tune fail: {line}",
        "read the error file in the folder of each trial, and find out what ended their processes",
        "maybe",
        symptom=True,
    ),
    _cause(
        "build-failed",
        r"Error building extension '.*?\n([^\n]*?\b(?:[Ee]rror|fatal)\b ?:? [^\n]*)|Error building extension '([^'\n]+)'"
        r"|^RuntimeError: Error compiling objects for (extension)",
        "could not build an extension in C++ or CUDA: {0}",
        "read the compiler's first error: nvcc and the host's compiler must fit torch's CUDA (`nvcc --version`); "
        "after the repair delete the half-built folder in ~/.cache/torch_extensions",
        "maybe",
    ),
    _cause(
        "build-failed",
        r"(ninja: build stopped\b[^\n]*)|^(FAILED: \[?[^\n]*\.o\b)",
        "could not build an extension in C++ or CUDA: {0}",
        "look for the compiler's first error, above: nvcc and the host's compiler must fit torch's CUDA",
        "maybe",
        symptom=True,
        anywhere=True,
    ),
    _cause(
        "library-unfit",
        r"((?:(?<![^\s:])[^\s:]+: )?(?:undefined symbol: \S+|version `[^'\n]+' not found[^\n]*"
        r"|cannot open shared object file[^\n]*))",
        "cannot load a library: {0}",
        "it was built for another torch, CUDA or system than is there: install the build that fits "
        "(see torch.__version__ and torch.version.cuda), or put its folder on LD_LIBRARY_PATH",
        "no",
    ),
    _cause(
        "library-unfit",
        r"(?<![^\s:])([^\s:]+: undefined symbol: \S+)",
        "cannot load a library: {0}",
        "it was built for another torch, CUDA or NCCL than is there: install the build that fits",
        "no",
        anywhere=True,
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
        r"|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation|(?:ZE|UR)_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
        "ran out of GPU memory",
        _MEMORY,
        "maybe",
        anywhere=True,
    ),
    _cause(
        "cuda-error",
        r"(no kernel image is available for execution|Torch not compiled with CUDA enabled"
        r"|module 'torch\._C' has no attribute '_cuda_\w+'|No CUDA GPUs are available"
        r"|Found no NVIDIA driver|CUDA driver version is insufficient|no CUDA-capable device|invalid device ordinal"
        r"|hipErrorNoBinaryForGpu[^\n\"]*)",
        "cannot use a GPU: {0}",
        "install a torch that fits the GPU and the driver there (`distui doctor` shows both), "
        "or ask for as many ranks as there are GPUs",
        "no",
        anywhere=True,
    ),
    _cause(
        "cuda-fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        "uses CUDA in a process that was forked from one that used it",
        "start such processes by spawn (mp.set_start_method('spawn'), multiprocessing_context='spawn' of a DataLoader), "
        "or do not use CUDA before the fork",
        "no",
        anywhere=True,
        deterministic=True,
    ),
    _cause(
        "kernel-unfit",
        r"(type fp8\w+ not supported in this architecture|PTXAS error[^\n]*|ptxas fatal[^\n]*|Ptx assembly aborted[^\n]*"
        r"|Value '\w+' is not defined for option 'gpu-name'|out of resource: shared memory[^\n]*)",
        "cannot compile or start a kernel for its GPU: {0}",
        "the GPU cannot do what it asks: take another number type, a smaller block, or a Triton that knows the GPU",
        "maybe",
        anywhere=True,
    ),
    _cause(
        "cuda-error",
        r"thread: \[\d+,\d+,\d+\] Assertion [`'\"](.+?)[`'\"] failed",
        "failed on its GPU: a device-side assertion, {0}",
        "most often an index out of range (labels, embeddings): the assertion names the value and its range; "
        "CUDA_LAUNCH_BLOCKING=1 names the line",
        "maybe",
        anywhere=True,
    ),
    _cause(
        "cuda-error",
        r"(device-side assert)\b",
        "failed on its GPU: {0} triggered",
        "most often an index out of range (labels, embeddings): CUDA_LAUNCH_BLOCKING=1 names the line",
        "maybe",
        anywhere=True,
    ),
    _cause(
        "cuda-error",
        r"((?:CUDA|HIP) error: [^\n(]+)|(illegal memory access|unspecified launch failure|misaligned address"
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
        "most often the kernel does that when memory runs out: fewer workers, or a higher limit; see its log there",
        "maybe",
    ),
    _cause(
        "signal",
        _WORKER + r"([A-Z][^\n.]*)",
        "lost a worker of its data loader to a signal: {0}",
        "native code of the data set crashed there: num_workers=0 has it crash in the rank, with a Python stack",
        "maybe",
    ),
    _cause(
        "signal",
        r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) exited unexpectedly",
        LOST_WORKER,
        WORKER_REMEDY,
        "maybe",
    ),
    _cause(
        "host-oom",
        r"^MemoryError\b|DefaultCPUAllocator: (?:can't allocate|not enough) memory|\[Errno 12\]|std::bad_alloc"
        r"|Cannot allocate memory",
        "ran out of host memory",
        LESS,
        "maybe",
        anywhere=True,
    ),
    _cause(
        "open-files",
        r"\[Errno 24\]|Too many open files|received \d+ items of ancdata",
        "has no file descriptor left: {line}",
        "raise `ulimit -n` where the ranks start, take fewer data-loader workers, or call "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
        "maybe",
    ),
    _cause(
        "shm-full",
        r"unable to (?:write to file|open shared memory object|mmap \d+ bytes from file) </torch_[^>\n]*>"
        r"|No space left on device[^\n]*/dev/shm",
        "finds the shared memory (/dev/shm) full",
        "enlarge /dev/shm (docker --shm-size, emptyDir with medium Memory), or take fewer data-loader workers",
        "maybe",
    ),
    _cause(
        "disk-full",
        r"\[Errno 122\]|Disk quota exceeded",
        "has reached its disk quota{at_path}",
        "free space there, or have the quota raised, then relaunch (`quota -s`, or the file system's own command)",
        "maybe",
    ),
    _cause(
        "disk-full",
        r"\[Errno 28\]|No space left on device",
        "finds the disk full{at_path}: no space left on device",
        _SPACE,
        "maybe",
        anywhere=True,
    ),
    _cause(
        "file-limit",
        r"\[Errno 27\]|: File too large\b",
        "has reached the limit on the size of a file{at_path}",
        FILE_LIMIT,
        "maybe",
        anywhere=True,
    ),
    _cause(
        "disk-full",
        r"PytorchStreamWriter failed writing|inline_container\.cc:\d+\] \. unexpected pos"
        r"|basic_ios::clear: iostream error",
        "could not write all of a file with torch.save: the disk is full, or its quota, or the limit of `ulimit -f`",
        _SPACE,
        "maybe",
    ),
    _cause(
        "quota",
        r"(account-level service limit[^\n]*|Quota failure for [^\n\"]*"
        r"|(?<![^\n\":])[^\n\":]*\bquota metrics exceed[^\n\"]*|\(?QuotaExceeded\)?[^\n]*"
        r"|(?<![^\n\":.])[^\n\":.]*\b[Qq]uota\b[^\n\":.]{0,60}exceeded[^\n\"]*"
        r"|exceeding approved [^\n]*\b[Qq]uota[^\n]*)",
        "was refused machines or GPUs, since a quota of the cloud is used up: {0}",
        "have that quota raised for the region, or take another kind of machine or region",
        "no",
        anywhere=True,
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
        r"port: (\d+)[^\n]*EADDRINUSE|failed to bind to \S*?:(\d+) \(errno: 98\b"
        r"|\[Errno 98\] Address already in use[^\n]*?, (\d+)\)"
        r"|on port `(\d+)`, but another process is utilizing"
        r"|EADDRINUSE|Address already in use|address already in use",
        "finds its port {0} in use",
        "choose another port, or end the process that holds it (`ss -ltnp` on that node names it)",
        "maybe",
        anywhere=True,
    ),
    _cause(
        "hub-limited",
        r"429 Client Error|Too Many Requests for url",
        "was refused by the hub, which got too many requests: {line}",
        "download once before the launch into a cache that all ranks share (HF_HOME), and start with HF_HUB_OFFLINE=1; "
        "or give the ranks a token (HF_TOKEN), which allows more requests",
        "maybe",
        anywhere=True,
    ),
    _cause(
        "hub-refused",
        r"access(?:ing)? (?:a )?gated repo|is a gated repo|GatedRepoError|RepositoryNotFoundError"
        r"|(?:401|403) Client Error[^\n]*(?:huggingface|hf\.co|Request ID)|Invalid (?:user token|username or password)",
        "may not download from the hub: {line}",
        "ask for access on the model's page, and give the ranks of every node a token that has it (HF_TOKEN, or "
        "`hf auth login`); check the name of the repository",
        "no",
        anywhere=True,
    ),
    _cause(
        "hub-unreached",
        r"HTTPS?ConnectionPool\(host='((?:[\w-]+\.)*(?:huggingface|hf|modelscope|s3|amazonaws|googleapis|wandb|github)"
        r"[\w.-]*)'|couldn't connect to '(https?://[^'\s]+)'",
        "cannot connect to {0}, which has the models and data",
        _HUB,
        "maybe",
    ),
    _cause(
        "hub-unreached",
        r"LocalEntryNotFoundError|OfflineModeIsEnabled",
        "cannot connect to the hub, and has no copy of the file in its cache: {line}",
        _HUB,
        "maybe",
    ),
    _cause(
        "tracker",
        r"(?:^UsageError|^\w*Comm\w*Error|^AuthenticationError|wandb)[^\n]*"
        r"(?:api_key not configured|permission denied|returned error \d+|Error communicating|not logged in)[^\n]*",
        "cannot log in to its experiment tracker: {line}",
        "give the ranks its key (WANDB_API_KEY), or go on without it (WANDB_MODE=offline)",
        "no",
    ),
    _cause(
        "launch-unset",
        r"environment variable (\w+) expected, but not set",
        "was started without the environment variable {0}",
        "start it with a launcher that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (torchrun, srun with them "
        "exported), or set them",
        "no",
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
        "received data of another size than it requested: another rank calls a collective of another size",
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
        "check that a process listens there and that no firewall is in between; see MASTER_ADDR and MASTER_PORT",
        "maybe",
        symptom=True,
    ),
    _cause(
        "timeout",
        r"(?<!\d)(\d+/\d+) clients joined",
        "waited for the other ranks until the time limit (only {0} joined)",
        "look for the ranks that did not start, or were given another address or world size",
        "maybe",
        symptom=True,
    ),
    _cause(
        "timeout",
        r"^DistStoreError\b.*?wait timeout after",
        "waited until the time limit for a value of another rank in the store: {line}",
        "look for the rank that did not get there, or raise the timeout of the process group",
        "maybe",
        symptom=True,
    ),
    _cause(
        "timeout",
        r"Received a dump signal due to a collective timeout from\s+rank \d+",
        "was ended by torch: a rank waited for a collective until the time limit",
        "see where each rank was (`distui dump`), or raise the timeout of the process group",
        "maybe",
        symptom=True,
        anywhere=True,
    ),
    _cause(
        "timeout",
        r"Timed out waiting \d+ms|(?:collective|detected) operation timeout|Socket Timeout|Timeout waiting for"
        r"|wait timeout after|TimeoutError.{0,80}?\bp?nccl[A-Z]\w+",
        "waited for a collective until the time limit",
        "another rank did not join: see where it was (`distui dump`), or raise the timeout of the process group",
        "maybe",
        symptom=True,
        anywhere=True,
    ),
    _cause(
        "connect-timeout",
        r"gloo/transport\S* connect (\[[^\]\n]+\]:\d+): "
        r"|connectFullMesh failed.*?(?:timed out connecting|refused|No route|unreachable).*?remote=\[([^\]\n]+)\]",
        "could not connect to another rank at {0}",
        "check if that rank had ended; each rank tells the others the address of its interface, and from another "
        "node a loopback (127.0.0.1) leads nowhere: set GLOO_SOCKET_IFNAME to one that leads to the other nodes",
        "maybe",
        symptom=True,
    ),
    _cause(
        "peer-gone",
        r"gloo.*?Connection (?:closed|reset) by peer \[([^\]\n]+)\]|(?:recvValue|sendBytes) failed on "
        r"SocketImpl\([^)\n]*remote=\[?([^\])\n]+)|Exception raised from (?:recvBytes|sendBytes) at",
        "lost its connection to another rank, at {0}: {line}",
        "look for the rank that ended first, and why",
        "maybe",
        symptom=True,
        anywhere=True,
    ),
    _cause(
        "peer-gone",
        r"(?i:^RuntimeError|^\w{0,20}Dist\w{1,20}Error|gloo|nccl|c10d|TCPStore).*?"
        r"(?:Connection (?:closed|reset) by|Connection refused|connectFullMesh|Broken pipe"
        r"|remote process exited|ncclRemoteError|communicator was aborted|Read error)"
        r"|DistNetworkError|Rendezvous(?:Connection|Closed)Error|connection to the C10d store has failed",
        "lost its connection to another rank: {line}",
        "look for the rank that ended first, and why",
        "maybe",
        symptom=True,
        anywhere=True,
    ),
    _cause(
        "connection",
        r"Connection (?:closed|reset) by peer|Connection refused|Broken pipe",
        "raised {line}",
        "check the process at the other end",
        "maybe",
        symptom=True,
    ),
    _cause(
        "file-missing",
        r"(?:FileNotFoundError|NotADirectoryError): [^\n]*?'([^'\n]+)'|Parent directory (\S+) does not exist"
        r"|FileNotFoundError: ([^\n]+)",
        "finds no such file or directory: {0}",
        "check the path on that node: relative ones start at the directory of the launch",
        "maybe",
    ),
    _cause(
        "settings",
        r"^(?:\w+\.)*(?:Parallelize|Adoption)Error: ([^\n]+)",
        "cannot do what the preset asks: {0}",
        "correct the preset, or the sizes of the model: the same would happen again",
        "no",
    ),
    _cause(
        "checkpoint-unfit",
        r"Error\(s\) in loading state_dict[^\n]*(?:\n\s*([^\n]+))?|(Missing key in checkpoint state_dict[^\n]*)",
        "loads a checkpoint that does not fit the model: {line}: {0}",
        _UNFIT,
        "maybe",
        deterministic=True,
    ),
    _cause(
        "checkpoint-unfit",
        r"^\s*size mismatch for \S+: copying a param with shape",
        "loads a checkpoint that does not fit the model: {line}",
        _UNFIT,
        "maybe",
        anywhere=True,
    ),
    _cause(
        "checkpoint-unreadable",
        r"PytorchStreamReader failed|Error while deserializing header|invalid header or archive is corrupted"
        r"|UnpicklingError|^EOFError: Ran out of input|unexpected EOF, expected \d+ more bytes"
        r"|not a valid (?:zip|tar) file",
        "cannot read a saved file: {line}",
        "it was cut off while it was saved, copied or downloaded: take an earlier checkpoint, or fetch it again",
        "maybe",
    ),
    _cause(
        "types",
        r"mat1 and mat2 (?:must|to) have the same dtype|expected (?:m1 and m2|mat1 and mat2) to have the same dtype"
        r"|expected scalar type \w+ but found|Input type \([^)\n]*\) and (?:bias|weight) type|must have the same dtype"
        r"|[Mm]ust flatten tensors with uniform dtype"
        r"|Attempted? to flatten tensors? with (?:different|non-uniform) dtype|must flatten tensors with the same dtype",
        "has tensors whose types do not fit: {line}",
        "bring both to one type: the precision of the preset or trainer, autocast around that call, or .to(dtype)",
        "maybe",
        deterministic=True,
    ),
    _cause(
        "sizes",
        r"Sizes of tensors must match|stack expects each tensor to be equal size|Expected input batch_size",
        "has tensors whose sizes do not fit: {line}",
        "look at the batch that does it: samples of different sizes, padding, a last batch that is not full",
        "maybe",
    ),
    _cause(
        "unused-parameters",
        r"Expected to have finished reduction in the prior iteration",
        "has parameters that took no part in the loss: {line}",
        "pass find_unused_parameters=True to DistributedDataParallel, or use all outputs of forward in the loss; "
        "TORCH_DISTRIBUTED_DEBUG=DETAIL names the parameters",
        "maybe",
    ),
    _cause(
        "ready-twice",
        r"Expected to mark a variable ready only once",
        "has a parameter whose gradient DDP got twice in one step: {line}",
        "a parameter is shared, or re-used by gradient checkpointing: use_reentrant=False, or _set_static_graph()",
        "maybe",
    ),
    _cause(
        "batch-sizes",
        r"(train_batch_size is not equal to[^\n]*|global[ _]batch[ _]size[^\n]*(?:not|must be) divisible[^\n]*)",
        "was given batch sizes that do not fit each other: {0}",
        "the global batch is the micro batch times the accumulation steps times the data-parallel ranks",
        "no",
    ),
    _cause(
        "sizes",
        _SIZES,
        "has tensors whose sizes do not fit: {line}",
        "correct the sizes at that line: of the model, of its input, or of what the preset divides (mesh.tp, mesh.cp)",
        "maybe",
        deterministic=True,
    ),
    _cause(
        "npu",
        r"\bE[A-Z]\d{4}: (?:\[PID: \d+\] )?\d{4}-\d\d-\d\d-[\d:.]+ +([^\n]+)",
        "reports an error of its NPU: {0}",
        "look the code up in CANN's list of errors; HCCL_CONNECT_TIMEOUT and HCCL_EXEC_TIMEOUT set how long it waits",
        "maybe",
        anywhere=True,
    ),
    _cause(
        "nan",
        r"([Gg]rad(?:ient)? scale is (?:too )?small: [^\n]*)",
        "stopped at a scale of its gradients that became too small: {0}",
        NAN_REMEDY,
        "maybe",
        anywhere=True,
    ),
    _cause(
        "nan",
        r"^FloatingPointError\b|\b(?i:loss\w*|grad\w*|norm|tensor|outputs?|logits)\b[^\n]{0,500}"
        r"\b(?i:nan|inf|non-?finite|not finite)\b|(?i:minimum loss scale|loss scale already at minimum)",
        "stopped at numbers that are not finite: {line}",
        NAN_REMEDY,
        "maybe",
    ),
)

THROUGH = ("ecc", "cuda-oom", "host-oom", "disk-full", "file-limit", "shm-full")
"""Kinds of causes that are also searched in the exceptions that led to the last one."""
WORKER = re.compile(_WORKER)
"""torch's text for a DataLoader worker that a signal ended."""
