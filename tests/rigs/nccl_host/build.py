"""Builds NCCL's host code from its source, and the stand-ins below it; each once, into the cache.

NCCL's source (Apache-2.0) is no part of this project, and no package registry has it: DISTUI_NCCL_SOURCES names a folder
with nccl-VERSION.tar.xz, .tar.gz or an unpacked nccl-VERSION; without it, it is the folder `nccl-sources` of ~/.cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

VERSIONS = ("2.28.9", "2.29.7", "2.30.7")
HERE = Path(__file__).parent
HEADERS = ("nvidia-cuda-runtime==13.0.96", "nvidia-cuda-crt==13.0.88", "nvidia-cuda-cccl==13.0.85")
"""Wheels with the header files of CUDA 13.0."""
TOOLS = ("gcc", "g++", "make", "nm", "as")
BUILD_S = 5400
"""On a machine that has other things to do, which come first."""


class MissingError(Exception):
    """What the rig needs is not here; a sentence that says what, and how to give it."""


@dataclass(frozen=True, slots=True)
class Built:
    """Files of one version."""

    version: str
    library: Path
    """libnccl.so.2."""
    runtime: Path
    """The folder of the stand-ins for CUDA's runtime and NVML."""
    verbs: Path
    """The folder of the stand-in for libibverbs."""
    machine: Path
    """What is loaded before the C library: machine.so."""
    packages: Path
    """A folder for PYTHONPATH, in which torch looks for these libraries before it does in NVIDIA's wheels."""


def cache() -> Path:
    """Where everything is built."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "distui-nccl"


def source_of(version: str) -> Path:
    """The source of a version: a tarball or a folder. Raises MissingError."""
    named = os.environ.get("DISTUI_NCCL_SOURCES")
    folder = Path(named) if named else cache().with_name("nccl-sources")
    for name in (f"nccl-{version}.tar.xz", f"nccl-{version}.tar.gz", f"nccl-{version}"):
        if (folder / name).exists():
            return folder / name
    raise MissingError(
        f"NCCL {version} is not built here: set DISTUI_NCCL_SOURCES to a folder with nccl-{version}.tar.xz, "
        "its source as NVIDIA publishes it"
    )


def built(version: str) -> Built:
    """The files of a version, built where they are not there yet: minutes. Raises MissingError."""
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise MissingError(f"NCCL cannot be built here: {', '.join(missing)} not found")
    folder = cache() / version
    library = folder / f"nccl-{_digest(HERE / 'toolchain')}" / f"libnccl.so.{version}"
    source = None if library.exists() else source_of(version)
    with _alone("headers"):
        include = _headers()
    with _alone(version):
        if source is not None and not library.exists():
            _build_nccl(source, version, include, library)
        below = folder / f"below-{_digest(HERE / 'standins')}"
        if not below.exists():
            _once(below, lambda made: _build_standins(made, include, library))
    first = library.with_name("libnccl.so.2")
    return Built(version, first, below, below / "verbs", below / "machine.so", below / "packages")


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Two tests do not build the same at once."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _digest(folder: Path) -> str:
    """Of what is built from: another text is another folder of the cache."""
    text = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    return hashlib.sha256(text).hexdigest()[:12]


def _once(target: Path, make: Callable[[Path], None]) -> None:
    """Make a folder, which is there as a whole or not at all."""
    making = target.with_name(f"{target.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    make(making)
    making.rename(target)


def _headers() -> Path:
    """CUDA's header files, out of their wheels."""
    target = cache() / f"headers-{hashlib.sha256(repr(HEADERS).encode()).hexdigest()[:12]}"
    if not target.exists():
        _once(target, _fetch_headers)
    return target / "nvidia" / "cu13" / "include"


def _fetch_headers(target: Path) -> None:
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(target)]
    done = subprocess.run([*words, *HEADERS], check=False, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise MissingError(f"CUDA's header files cannot be had here: {done.stderr.strip()[-200:]}")
    for wheel in target.glob("*.whl"):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(target)
        wheel.unlink()


def _build_nccl(source: Path, version: str, include: Path, library: Path) -> None:
    """`make` of NCCL's own Makefile, with our compilers for device code; library and verbs' header are kept."""
    work = library.parent.with_name("work")
    tree = work / f"nccl-{version}"
    if not (work / "unpacked").exists():  # else make goes on where it was interrupted
        shutil.rmtree(work, ignore_errors=True)
        _unpack(source, tree)
        (work / "unpacked").touch()
    _compile(work / "libcudart.so", [])  # empty: what is missing at link time is found at run time
    tools = HERE / "toolchain"
    target = work / "out" / "lib" / library.name
    words = [
        "make", "-j2", "-C", str(tree / "src"), str(target), f"CUDA_HOME={include.parent}", f"NVCC={tools / 'nvcc'}",
        f"CXX={tools / 'cxx'}", f"CUDA_LIB={work}", "CUDARTLIB=cudart", f"BUILDDIR={work / 'out'}",
    ]  # fmt: skip
    # It is long work on a machine that has other things to do.
    done = subprocess.run(
        ["nice", "-n", "10", *words], check=False, capture_output=True, text=True, timeout=BUILD_S
    )
    if not target.exists():
        raise RuntimeError(f"NCCL {version} does not build:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    library.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(tree / "src" / "include", library.with_name("include"), dirs_exist_ok=True)
    library.with_name("libnccl.so.2").unlink(missing_ok=True)
    library.with_name("libnccl.so.2").symlink_to(library.name)
    shutil.copy(target, library.with_suffix(".new"))
    library.with_suffix(".new").rename(library)
    shutil.rmtree(work)


def _unpack(source: Path, tree: Path) -> None:
    """The source as a folder, whatever its archive calls it."""
    if source.is_dir():
        shutil.copytree(source, tree)
        return
    tree.parent.mkdir(parents=True)
    safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # Python 3.11.4
    with tarfile.open(source) as packed:
        packed.extractall(tree.parent, **safely)
    (unpacked,) = tree.parent.iterdir()
    unpacked.rename(tree)


def _build_standins(target: Path, include: Path, library: Path) -> None:
    """Compile standins/, of which verbs.c reads NCCL's declarations of the ABI."""
    of_nccl = library.with_name("include")
    (target / "verbs").mkdir()
    runtime = ["runtime.c", "torch.c", "driver.c", "memory.c", "nothing.c"]
    symbols = HERE / "standins" / "runtime.map"
    _compile(
        target / "libcudart.so.13", runtime, f"-I{include}", "-fvisibility=hidden",
        f"-Wl,--version-script={symbols}",
    )  # fmt: skip
    above = Path("../../../..")
    for name, soname, file in (
        ("cu13", "libcudart.so.13", above / "libcudart.so.13"),
        ("nccl", "libnccl.so.2", library),
    ):
        folder = target / "packages" / "nvidia" / name / "lib"
        folder.mkdir(parents=True)
        (folder / soname).symlink_to(file)
    _compile(target / "libcuda.so.1", ["libcuda.c"])
    _compile(target / "libnvidia-ml.so.1", ["nvml.c"], "-fvisibility=hidden")
    _compile(target / "machine.so", ["machine.c"], "-ldl")
    symbols = HERE / "standins" / "verbs.map"
    _compile(
        target / "verbs" / "libibverbs.so.1", ["verbs.c"], f"-I{of_nccl}", f"-I{include}", "-w",
        f"-Wl,--version-script={symbols}",
    )  # fmt: skip


def _compile(target: Path, sources: list[str], *options: str) -> None:
    files = [str(HERE / "standins" / name) for name in sources]
    command = [
        "gcc",
        "-O1",
        "-fPIC",
        "-shared",
        f"-Wl,-soname,{target.name}",
        "-o",
        str(target),
        *files,
        *options,
    ]
    done = subprocess.run([*command, "-lpthread"], check=False, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise RuntimeError(f"{target.name} does not compile:\n{done.stderr}")
