"""Start of distui's own processes on a node from a bundle: unpack it once, and execute a verb.

It uses only the standard library, because nothing is unpacked yet. Any Python on the node must be able to answer `fits`.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING or __package__:
    from ..inrank import own_folders
else:
    import own_folders  # a module next to this script

VERBS = ("job", "start", "probe", "distui")
USAGE = "usage: node.sh job RUN | start RUN NODE | attach RUN8 NODE | probe | distui …\n"


def supported() -> bool:
    """Whether this interpreter can run distui's own processes."""
    plain = not sys.abiflags and sys.implementation.name == "cpython"  # "t": wheels of another ABI
    return (3, 11) <= sys.version_info < (4,) and plain


def tags() -> tuple[str, str]:
    """Machine and ABI tag of suitable compiled wheels: ("x86_64", "cp311")."""
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
    """Folders for unpacking, best first, without ":" because of PYTHONPATH. A relative XDG_CACHE_HOME is ignored."""
    cache = os.path.expanduser(os.environ.get("XDG_CACHE_HOME", ""))
    if not os.path.isabs(cache):
        cache = os.path.join(os.path.expanduser("~"), ".cache")
    return [home for home in (f"{cache}/distui", f"/tmp/distui-{os.getuid()}") if os.pathsep not in home]


def library(here: str, section: str = "wheels") -> str:
    """Folder with the suitable wheels of a section of the bundle `here`, unpacked if missing. Raises OSError.

    The folder of "wheels" includes distui itself; "screens" has packages that only local users of the cockpit need.
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
    """Unpack a section atomically; several nodes with one home may do so at the same time. Raises OSError."""
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
                    if entry.external_attr >> 16 & 0o100:  # extractall does not restore modes
                        os.chmod(os.path.join(fresh, entry.filename), 0o700)
        os.rename(fresh, lib)
    except OSError:
        if not os.path.isdir(lib):  # otherwise another process was faster
            raise
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        why = str(error) or "it ends too early"
        raise OSError(22, f"{why}: remove {here}, and launch again", archive) from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def lacking(here: str) -> list[str]:
    """Compiled packages that the bundle lacks for this interpreter."""
    names = [name for name in os.listdir(os.path.join(here, "wheels")) if fits(name)]
    return [
        needed
        for needed in ("msgspec", "psutil")
        if not any(name.startswith(needed + "-") for name in names)
    ]


def lacks(here: str) -> int:
    """Print the missing wheels for this interpreter; return 1 if no missing wheel is the problem."""
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
    """`fits`: print this interpreter's path if it is suitable; `lacks`: see `lacks`; else execute the verb."""
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
    users = os.umask(0o077)  # distui's own files are only for this user
    try:
        libraries = [library(here)]
        leave(here)
        if argv[0] == "distui":
            libraries.append(library(here, "screens"))
            os.umask(users)
            execute(libraries, ["distui.tui", *argv[1:]])
        os.environ.setdefault(
            "DISTUI_UMASK", f"{users:03o}"
        )  # umask of the ranks: see runners/run/file_io.py
        execute(libraries, ["distui.runners.node", *argv])
    except OSError as error:
        sys.stderr.write(f"distui: {error.filename or here} on {os.uname().nodename}: {error.strerror}\n")
    return 2


def leave(here: str) -> None:
    """Write the command `~/.distui/distui` for users who log in here, and this interpreter's path for a bridge.

    A bridge has no time to search for an interpreter.
    """
    quoted = "'" + here.replace("'", "'\\''") + "'"
    put(here, "distui", f'#!/bin/sh\nexec sh {quoted}/node.sh distui "$@"\n', 0o700)
    put(here, "python-" + os.uname().nodename, sys.executable + "\n", 0o600)


def put(here: str, name: str, text: str, mode: int) -> None:
    """Replace a file next to the bundle atomically, if possible: other nodes may do so at the same time."""
    path = os.path.join(os.path.dirname(here), name)
    fresh = f"{path}.{os.uname().nodename}.{os.getpid()}"
    try:
        with open(fresh, "w") as file:
            file.write(text)
        os.chmod(fresh, mode)
        os.replace(fresh, path)
    except OSError:
        pass  # optional for the run


def execute(libraries: list[str], words: list[str]) -> None:
    """Replace this process by distui's own, with its library in PYTHONPATH, also for its children. Raises OSError."""
    env = dict(os.environ)
    env["DISTUI_USER_PYTHONPATH"] = env.get("PYTHONPATH", "")
    env["PYTHONPATH"] = os.pathsep.join(libraries)
    env.pop("PYTHONHOME", None)
    os.execve(sys.executable, [sys.executable, "-P", "-m", *words], env)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
