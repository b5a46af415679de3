"""The start of distui's own processes on a node, from a bundle: unpacks it once, and executes a verb.

Standard library only, as it runs before anything is unpacked; and `fits` is answered by whatever Python there is.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING or __package__:
    from ..inrank import own_folders
else:
    import own_folders  # this is a script, and that lies beside it

VERBS = ("job", "start", "probe", "distui")
USAGE = "usage: node.sh job RUN | start RUN NODE | attach RUN8 NODE | probe | distui …\n"


def supported() -> bool:
    """Whether this interpreter can run distui's own processes."""
    plain = not sys.abiflags and sys.implementation.name == "cpython"  # "t": wheels of another ABI
    return (3, 11) <= sys.version_info < (4,) and plain


def tags() -> tuple[str, str]:
    """The machine and the ABI tag that a compiled wheel must have: ("x86_64", "cp311")."""
    return os.uname().machine, f"cp{sys.version_info[0]}{sys.version_info[1]}"


def fits(wheel: str) -> bool:
    """Whether a wheel can be imported here (names of wheels: PEP 427; tags: PEP 425)."""
    if not wheel.endswith(".whl") or wheel.count("-") < 4:
        return False
    machine, mine = tags()
    pythons, abi, platform = wheel[: -len(".whl")].split("-")[-3:]
    if platform != "any" and not platform.endswith("_" + machine):
        return False
    if abi == "none":
        return "py3" in pythons.split(".")
    if abi == "abi3":
        return int(pythons[3:] or 0) <= sys.version_info[1]
    return pythons == abi == mine


def homes() -> list[str]:
    """Where a bundle may be unpacked, the best first: what PYTHONPATH can name. A relative XDG_CACHE_HOME is ignored."""
    cache = os.path.expanduser(os.environ.get("XDG_CACHE_HOME", ""))
    if not os.path.isabs(cache):
        cache = os.path.join(os.path.expanduser("~"), ".cache")
    return [home for home in (f"{cache}/distui", f"/tmp/distui-{os.getuid()}") if os.pathsep not in home]


def library(here: str, section: str = "wheels") -> str:
    """Folder with what fits of a section of the bundle `here`, unpacked when it is not there yet. Raises OSError.

    Beside the "wheels" is distui itself; the "screens" are what only somebody who sits here needs.
    """
    kind = "lib" if section == "wheels" else section
    name = "-".join((kind, os.path.basename(here).rpartition("-")[2], tags()[1], tags()[0]))
    problem = OSError(2, "no place to unpack", here)
    for home in homes():
        lib = os.path.join(home, name)
        try:
            os.makedirs(home, mode=0o700, exist_ok=True)
            if why := own_folders.doubt(home):
                raise OSError(13, why, home)
            if not os.path.isdir(lib):
                unpack(here, section, lib)
            return lib
        except OSError as error:
            problem = error
    raise problem


def unpack(here: str, section: str, lib: str) -> None:
    """Whole or not at all; several nodes may do it at once where they share a home. Raises OSError."""
    import shutil
    import tempfile
    import zipfile
    import zlib

    fresh = tempfile.mkdtemp(prefix=".lib-", dir=os.path.dirname(lib))
    wheels = os.path.join(here, section)
    archives = [os.path.join(wheels, name) for name in sorted(os.listdir(wheels)) if fits(name)]
    if section == "wheels":
        archives.append(os.path.join(here, "distui.zip"))
    try:
        for archive in archives:
            with zipfile.ZipFile(archive) as file:
                file.extractall(fresh)
                for entry in file.infolist():
                    if entry.external_attr >> 16 & 0o100:  # which extractall forgets
                        os.chmod(os.path.join(fresh, entry.filename), 0o700)
        os.rename(fresh, lib)
    except OSError:
        if not os.path.isdir(lib):  # else another one was quicker
            raise
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        why = str(error) or "it ends too early"
        raise OSError(22, f"{why}: remove {here}, and launch again", archive) from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def lacking(here: str) -> list[str]:
    """What the bundle does not have for this interpreter, of what needs compiling."""
    names = [name for name in os.listdir(os.path.join(here, "wheels")) if fits(name)]
    return [
        needed
        for needed in ("msgspec", "psutil")
        if not any(name.startswith(needed + "-") for name in names)
    ]


def lacks(here: str) -> int:
    """Print which wheels are missing for this interpreter; 1 where that is not what stands in its way."""
    missing = lacking(here) if supported() else []
    if not missing:
        return 1
    machine, python = tags()
    wheels = " and ".join(f"{name}-*-{python}-*_{machine}.whl" for name in missing)
    sys.stdout.write(
        f"distui: {os.uname().nodename} has {sys.executable}, and the bundle has no {wheels} for it: launch again where "
        "`pip download` reaches a package index, or set DISTUI_PYTHON to another Python\n"
    )
    return 0


def main(argv: list[str]) -> int:
    """`fits`: print this interpreter's path, if it will do; else execute the verb."""
    here = os.path.dirname(os.path.abspath(__file__))
    if argv[:1] == ["fits"]:
        if not supported() or lacking(here):
            return 1
        print(sys.executable)
        return 0
    if argv[:1] == ["lacks"]:
        return lacks(here)
    if not argv or argv[0] not in VERBS:
        sys.stderr.write(USAGE)
        return 2
    users = os.umask(0o077)  # distui's own files are this user's alone
    try:
        libraries = [library(here)]
        leave(here)
        if argv[0] == "distui":
            libraries.append(library(here, "screens"))
            os.umask(users)
            execute(libraries, ["distui.tui", *argv[1:]])
        os.environ.setdefault("DISTUI_UMASK", f"{users:03o}")  # of the ranks: see runners/file_io.py
        execute(libraries, ["distui.runners.node", *argv])
    except OSError as error:
        sys.stderr.write(f"distui: {error.filename or here} on {os.uname().nodename}: {error.strerror}\n")
    return 2


def leave(here: str) -> None:
    """Leave the command `~/.distui/distui` for users who log in here, and this interpreter's path for a bridge, which
    has no time to search for one."""
    quoted = "'" + here.replace("'", "'\\''") + "'"
    put(here, "distui", f'#!/bin/sh\nexec sh {quoted}/node.sh distui "$@"\n', 0o700)
    put(here, "python-" + os.uname().nodename, sys.executable + "\n", 0o600)


def put(here: str, name: str, text: str, mode: int) -> None:
    """Replace a file beside the bundle whole, where that can be: other nodes may do so at the same time."""
    path = os.path.join(os.path.dirname(here), name)
    fresh = f"{path}.{os.uname().nodename}.{os.getpid()}"
    try:
        with open(fresh, "w") as file:
            file.write(text)
        os.chmod(fresh, mode)
        os.replace(fresh, path)
    except OSError:
        pass  # the run needs neither


def execute(libraries: list[str], words: list[str]) -> None:
    """Become distui's own process, which finds its library by PYTHONPATH, and so do its children. Raises OSError."""
    env = dict(os.environ)
    env["DISTUI_USER_PYTHONPATH"] = env.get("PYTHONPATH", "")
    env["PYTHONPATH"] = os.pathsep.join(libraries)
    env.pop("PYTHONHOME", None)
    os.execve(sys.executable, [sys.executable, "-P", "-m", *words], env)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
