"""A thin layer on nvidia-ml-py with queries that return None instead of raising. The only module that imports it.

nvidia-ml-py loads `libnvidia-ml.so.1` by that name through the system's loader. With the environment variable
DISTUI_NVML_LIBRARY=/path/to/library that file is loaded first. The loader keeps one library per soname, so
nvidia-ml-py then gets it, if its soname is `libnvidia-ml.so.1` like the driver's.

One Driver lives as long as its process: without persistence mode the kernel unloads the GPU state with the last user.
NVML state must not be used after a fork.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import pynvml

from ..run import clock

LIBRARY_VARIABLE = "DISTUI_NVML_LIBRARY"
_NEVER = frozenset(
    {
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        25,  # NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        26,  # NVML_ERROR_DEPRECATED
    }
)
"""Permanent errors: another call gives the same result."""


class NoDriver(Exception):
    """No driver library, or no GPU; the text is a sentence for the user."""


class DriverFailed(Exception):
    """The driver library does not work; the text is a sentence with the reason."""


class GpuLost(Exception):
    """The driver no longer reaches this GPU."""


class Driver:
    """The initialized driver of this node. Raises NoDriver, DriverFailed."""

    def __init__(self) -> None:
        self._preload()
        try:
            pynvml.nvmlInit()
            self.count: int = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            raise _refused(error) from None
        if not self.count:
            raise NoDriver("no GPU: the NVIDIA driver of this node sees none")
        self.version: str | None = self._version()
        self.absent: set[Hashable] = set()
        """Calls that this driver or this nvidia-ml-py lacks."""

    def _preload(self) -> None:
        path = os.environ.get(LIBRARY_VARIABLE)
        if not path:
            return
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise NoDriver(f"no GPU: {LIBRARY_VARIABLE}={path} cannot be loaded ({error})") from None

    def _version(self) -> str | None:
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError:
            return None

    def device(self, index: int) -> NvmlDevice:
        """GPU `index` in NVML's order, which is the PCI bus order. Raises GpuLost."""
        try:
            return NvmlDevice(self, pynvml.nvmlDeviceGetHandleByIndex(index))
        except pynvml.NVMLError as error:
            raise GpuLost(str(error)) from None

    def close(self) -> None:
        """Shut NVML down."""
        pynvml.nvmlShutdown()


class NvmlDevice:
    """Queries of one GPU."""

    def __init__(self, driver: Driver, handle: Any) -> None:
        self._driver = driver
        self.handle = handle
        self._unsupported: set[Hashable] = set()
        self.error: str | None = None
        """The newest call's error, if it may be temporary."""

    def ask(self, name: str, *args: Hashable) -> Any:
        """Return the result of nvidia-ml-py's function `name` for this GPU; None if not available.

        Calls with permanent errors are made only once. Raises GpuLost.
        """
        call = (name, args)
        if call in self._unsupported or call in self._driver.absent:
            return None
        function = getattr(pynvml, name, None)
        if function is None:
            self._driver.absent.add(call)
            return None
        try:
            return function(self.handle, *args)
        except pynvml.NVMLError as error:
            self._refused(call, error)
            return None

    def _refused(self, call: tuple[str, Hashable], error: Any) -> None:
        if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
            raise GpuLost(str(error)) from None
        if error.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            self._driver.absent.add(call)
        elif error.value in _NEVER:
            self._unsupported.add(call)
        else:
            self.error = f"{call[0].removeprefix('nvmlDeviceGet')}: {error}"

    def first(self, *calls: tuple[Hashable, ...]) -> Any:
        """Return the first result of alternative calls (name, argument…), newest first."""
        for name, *args in calls:
            if (answer := self.ask(str(name), *args)) is not None:
                return answer
        return None

    def fields(self, ids: Sequence[int | tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """Field id → (value, width in bits), for the available fields among `ids` ((id, scope) or id)."""
        wanted = tuple(field for field in ids if field not in self._unsupported)
        values = self.ask("nvmlDeviceGetFieldValues", wanted) if wanted else None
        served: dict[int, tuple[int, int]] = {}
        for field, value in zip(wanted, values or (), strict=False):
            if value.nvmlReturn == pynvml.NVML_SUCCESS:
                served[value.fieldId] = _plain(value)
            elif value.nvmlReturn in _NEVER:
                self._unsupported.add(field)
        return served


GPM_LEAST_S = 0.12
"""Minimum seconds between two samples; NVML requires 100 ms."""
GPM_FAILURES = 3
"""Consecutive failed reads before reading stops."""


class GpmMetrics:
    """Activity of one GPU from NVML's GPM (Hopper and newer): means between two reads."""

    def __init__(self, device: NvmlDevice) -> None:
        self._device = device
        self._samples: list[Any] = []
        """The previous read's sample, and the free one."""
        self._taken = self._off = False
        self._failures = 0
        self._at = -math.inf
        self._values: dict[int, float] = {}

    def read(self, ids: Sequence[int]) -> dict[int, float]:
        """Metric id → value since the previous read, at least GPM_LEAST_S ago; empty if not available.

        Raises GpuLost.
        """
        if self._off or not (self._samples or self._begin()):
            return {}
        if clock.monotonic() - self._at < GPM_LEAST_S:
            return self._values
        self._at = clock.monotonic()
        self._values = self._newest(ids)
        return self._values

    def _newest(self, ids: Sequence[int]) -> dict[int, float]:
        before, newest = self._samples
        if not self._done(pynvml.nvmlGpmSampleGet, self._device.handle, newest):
            return {}
        self._samples = [newest, before]
        has_before, self._taken = self._taken, True
        return self._between(before, newest, ids) if has_before else {}

    def close(self) -> None:
        """Free the samples."""
        samples, self._samples, self._off = self._samples, [], True
        for sample in samples:
            with contextlib.suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)

    def _begin(self) -> bool:
        support = self._device.ask("nvmlGpmQueryDeviceSupport")
        if support is None or not support.isSupportedDevice:
            self._off = True
            return False
        try:
            for _ in range(2):
                self._samples.append(pynvml.nvmlGpmSampleAlloc())
        except pynvml.NVMLError:
            self.close()
            return False
        return True

    def _between(self, before: Any, newest: Any, ids: Sequence[int]) -> dict[int, float]:
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(ids)
        request.sample1, request.sample2 = before, newest
        for place, metric in enumerate(ids):
            request.metrics[place].metricId = metric
        if not self._done(pynvml.nvmlGpmMetricsGet, request):
            return {}
        self._failures = 0
        values = [request.metrics[place] for place in range(len(ids))]
        return {
            int(each.metricId): float(each.value)
            for each in values
            if each.nvmlReturn == pynvml.NVML_SUCCESS and math.isfinite(each.value)
        }

    def _done(self, call: Callable[..., Any], *args: Any) -> bool:
        """Make a call. Another reader may hold the counters temporarily; a missing permission is permanent."""
        try:
            call(*args)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                raise GpuLost(str(error)) from None
            self._failures += 1
            self._taken = False
            if self._failures >= GPM_FAILURES or error.value in _NEVER:
                self.close()
            return False
        return True


class Xids:
    """Xid errors of all GPUs, as the driver reports them; older drivers lack some (79, 119, 120)."""

    def __init__(self, driver: Driver, devices: dict[int, NvmlDevice]) -> None:
        self._indices: dict[int | None, int] = {}
        self._set: Any = None
        try:
            self._set = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            return
        for index, device in devices.items():
            try:
                pynvml.nvmlDeviceRegisterEvents(
                    device.handle, pynvml.nvmlEventTypeXidCriticalError, self._set
                )
            except pynvml.NVMLError:
                continue
            self._indices[_address(device.handle)] = index

    def wait(self, timeout_ms: int = 1000) -> Iterator[tuple[int | None, int]]:
        """Yield (NVML index, Xid) forever and block the thread. Ends if the driver reports no events."""
        while self._indices:
            try:
                event = pynvml.nvmlEventSetWait_v2(self._set, timeout_ms)
            except pynvml.NVMLError as error:
                if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
                    time.sleep(timeout_ms / 1000)  # a lost GPU may end every wait immediately
                elif error.value != pynvml.NVML_ERROR_TIMEOUT:
                    return
                continue
            # Some drivers report clock events as "Xid 0".
            if event.eventType & pynvml.nvmlEventTypeXidCriticalError and event.eventData:
                yield self._indices.get(_address(event.device)), int(event.eventData)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _plain(value: Any) -> tuple[int, int]:
    """Return a field's number and its width in bits by its valueType (nvmlValueType_t)."""
    name, bits = {
        pynvml.NVML_VALUE_TYPE_DOUBLE: ("dVal", 64),
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: ("uiVal", 32),
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: ("ulVal", 64),
        pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: ("sllVal", 64),
        5: ("siVal", 32),
        6: ("usVal", 16),
    }.get(value.valueType, ("ullVal", 64))
    return int(getattr(value.value, name)), bits


def _refused(error: Any) -> NoDriver | DriverFailed:
    """Exception with the reason of the failed start."""
    if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
        return NoDriver("no GPU: no NVIDIA driver library on this node")
    if error.value == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        return DriverFailed("the NVIDIA library is here, but its kernel driver is not loaded")
    if error.value == 18:  # NVML_ERROR_LIB_RM_VERSION_MISMATCH
        return DriverFailed("the NVIDIA library and its kernel driver differ in version: reboot the node")
    return DriverFailed(f"the NVIDIA driver does not start: {error}")
