"""What NVML says of the GPUs, without anything installed: executed in a process of its own, which may hang."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

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


def ask() -> dict[str, Any]:
    """Driver and GPUs; {"problem": …} where the library is there and does not work, {} without it."""
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
        index for index, handle in enumerate(handles)
        if nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
    ]  # fmt: skip
    version = ctypes.create_string_buffer(TEXT_BYTES)
    readable = not nvml.nvmlSystemGetDriverVersion(version, ctypes.c_uint(TEXT_BYTES))
    return {
        "version": version.value.decode() if readable else None,
        "gpus": [_gpu(nvml, handle) for index, handle in enumerate(handles) if index not in lost],
        "lost": lost,
        "no_p2p": _no_p2p(nvml, [handle for index, handle in enumerate(handles) if index not in lost]),
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
    """Pairs of GPUs that cannot read each other's memory; None where the driver does not say."""
    function = getattr(nvml, "nvmlDeviceGetP2PStatus", None)
    if function is None:
        return None
    pairs = []
    for first in range(len(handles)):
        for second in range(first + 1, len(handles)):
            status = ctypes.c_int()
            if function(handles[first], handles[second], P2P_READ, ctypes.byref(status)):
                return None
            if status.value:
                pairs.append([first, second])
    return pairs


def main() -> None:
    """Say it."""
    sys.stdin.buffer.readline()
    sys.stdout.write("DISTUI-DOCTOR " + json.dumps(ask()) + "\n")
