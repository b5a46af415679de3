"""What a rank can change or tell about NCCL and c10d while it runs."""

import ctypes
import json
import os
import sys


def nccl_path():
    """Path of the libnccl that this process has mapped; None when it has none."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            name = path.rpartition("/")[2]
            if name.startswith("libnccl.so"):
                return "/" + path
    return None


def nccl_state():
    """{"loaded", "live", "version", "debug"}; live: whether ncclResetDebugInit is exported."""
    path = nccl_path()
    state = {"loaded": path is not None, "live": None, "version": None, "debug": os.environ.get("NCCL_DEBUG")}
    state["backend"] = backend()
    if path is not None:
        library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        state["live"] = hasattr(library, "ncclResetDebugInit")
        state["version"] = version(library)
    return state


def version(library):
    """NCCL's version as text, from ncclGetVersion (X*10000 + Y*100 + Z since 2.9)."""
    if not hasattr(library, "ncclGetVersion"):
        return None
    number = ctypes.c_int()
    if library.ncclGetVersion(ctypes.byref(number)) != 0:
        return None
    value = number.value
    if value < 10000:
        return "%d.%d.%d" % (value // 1000, value // 100 % 10, value % 100)
    return "%d.%d.%d" % (value // 10000, value // 100 % 100, value % 100)


def backend():
    """Backend of the default process group once there is one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not getattr(distributed, "is_initialized", bool)():
        return None
    return distributed.get_backend()


def set_nccl(env):
    """Set NCCL_DEBUG variables and have NCCL read them again, where it can.

    NCCL 2.24 and newer export ncclResetDebugInit (deprecated since 2.28, hence looked up, never assumed). The
    file name in `env` must be new: NCCL truncates a file that it opens.
    """
    for name, value in env.items():
        if not name.startswith("NCCL_DEBUG"):
            raise ValueError("%s is no NCCL_DEBUG variable" % name)
        os.environ[name] = value
    state = nccl_state()
    state["changed"] = False
    if state["live"]:
        library = ctypes.CDLL(nccl_path(), mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        library.ncclResetDebugInit.restype = None
        library.ncclResetDebugInit()
        state["changed"] = True
    return state


def set_c10d(level):
    """Raise or lower torch's own logging of distributed: "INFO", "DETAIL" or "OFF"; what changed, in words."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None:
        return {"text": ""}
    import logging

    names = {"OFF": distributed.DebugLevel.OFF, "INFO": distributed.DebugLevel.INFO}
    distributed.set_debug_level(names.get(level, distributed.DebugLevel.DETAIL))
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = level
    python_level = logging.WARNING if level == "OFF" else logging.INFO
    logging.getLogger("torch.distributed").setLevel(python_level)
    return {"text": "TORCH_DISTRIBUTED_DEBUG=%s, c10d logging %s" % (level, logging.getLevelName(python_level))}


def flight():
    """torch's flight recorder as JSON text; works for gloo too (torch 2.13)."""
    c10d = sys.modules["torch"]._C._distributed_c10d
    raw = c10d._dump_fr_trace_json() if hasattr(c10d, "_dump_fr_trace_json") else c10d._dump_nccl_trace_json()
    return raw.decode() if isinstance(raw, bytes) else raw


def memory():
    """CUDA memory statistics of this process as JSON text, and its peak resident size in bytes."""
    import resource

    facts = {"max_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        facts["cuda"] = {
            str(device): dict(torch.cuda.memory_stats(device)) for device in range(torch.cuda.device_count())
        }
    return json.dumps(facts)
