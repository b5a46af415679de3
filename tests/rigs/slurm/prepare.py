"""Fetch once what a rig needs: Debian packages, the client's environment, wheels for nodes without internet.

Only this needs the network, through apt's and pip's own configuration. Every step that was done before is skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

from . import texts
from .settings import CHECKOUT, Places, Trouble, job_python, passwd_home

SKY = "skypilot[slurm]==0.14.*"
PACKAGES = {
    "slurmctld": "slurm-wlm",
    "munged": "munge",
    "sshd": "openssh-server",
    "rsync": "rsync",
    "ip": "iproute2",
    "openssl": "openssl",
    "nsenter": "util-linux",
}
"""What a rig executes, and the Debian package that has it."""
BUILD = ("setuptools<70", "setuptools", "wheel", "pip", "hatchling>=1.27")
"""What SkyPilot's wheel and distui's are built with, without a network."""
RUNTIMES = ("3.10", "3.11")
"""Pythons that SkyPilot's runtime on a node can have. It asks for the first; see `uv`."""
NO_SERVICE = "#!/bin/sh\n# distui's rig installs packages and starts no service of theirs.\nexit 101\n"
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


def tell(line: str) -> None:
    """Progress, to stderr."""
    print(line, file=sys.stderr, flush=True)


def run(*words: str | Path, env: dict[str, str] | None = None, timeout: float = 900) -> str:
    """Stdout of a command. Raises Trouble with its last words."""
    try:
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise Trouble(f"{words[0]} did not run: {problem}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise Trouble(f"{' '.join(map(str, words[:4]))} failed: {' / '.join(said)}")
    return done.stdout


def executable(name: str) -> str | None:
    """Path of a command, also where only root looks."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SBIN}")


def missing() -> list[str]:
    """Debian packages without which no rig starts."""
    return sorted({package for command, package in PACKAGES.items() if not executable(command)})


def install_packages() -> None:
    """apt-get install, without starting the services that come with the packages."""
    wanted = missing()
    if not wanted:
        return
    if os.getuid() or not executable("apt-get"):
        raise Trouble(
            f"the rig needs {' '.join(wanted)}: as root on Debian or Ubuntu, apt-get install them"
        )
    tell(f"packages: {' '.join(wanted)}")
    policy = Path("/usr/sbin/policy-rc.d")
    ours = not policy.exists() or policy.read_text() == NO_SERVICE  # of one that was interrupted
    if ours:
        policy.write_text(NO_SERVICE)
        policy.chmod(0o755)
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ("apt-get", "-qq", "install", "--yes", "--no-install-recommends", *wanted)
    try:
        try:
            run(*command, env=env)
        except Trouble:
            run("apt-get", "-qq", "update", env=env)
            run(*command, env=env)
    finally:
        if ours:
            policy.unlink()


def python_of(command: str | Path, wanted: str) -> Path | None:
    """The real interpreter behind a name, when it is of that version and can make environments."""
    numbers = tuple(map(int, wanted.split(".")))
    wrong = f"sys.version_info[:2] != {numbers}"
    code = f"import sys, venv, ensurepip; print(sys.executable); sys.exit({wrong})"
    try:
        done = subprocess.run(
            [command, "-c", code], capture_output=True, text=True, timeout=20, check=False
        )
    except OSError:
        return None
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def find_runtime() -> tuple[str, Path]:
    """Version and path of the Python that SkyPilot's runtime gets on the nodes."""
    named = os.environ.get("DISTUI_RIG_PYTHON310")
    roots = [Path(os.environ.get("PYENV_ROOT") or passwd_home() / ".pyenv") / "versions"]
    roots.append(passwd_home() / ".local/share/uv/python")
    for version in RUNTIMES:
        found = [path for root in roots for path in sorted(root.glob(f"*{version}.*/bin/python{version}"))]
        for one in ([named] if named else []) + found + [f"python{version}", "python3", sys.executable]:
            if path := python_of(one, version):
                return version, path
    raise Trouble(
        "SkyPilot's runtime on the nodes wants Python 3.10 (or 3.11) with venv, and there is none: install one "
        "(pyenv install 3.10, uv python install 3.10) or name it in DISTUI_RIG_PYTHON310"
    )


def requirements() -> list[str]:
    """What distui itself needs, from its own pyproject.toml."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    return list(project["dependencies"])


def client_environment(places: Places) -> None:
    """The environment of the API server, of `sky` and of distui's viewer."""
    tell("client: SkyPilot and distui in an environment of their own")
    if not (places.venv / "bin/pip").exists():
        run(sys.executable, "-m", "venv", places.venv)
    pip = places.venv / "bin/pip"
    run(pip, "install", "-q", SKY, *BUILD[1:], *requirements())
    run(pip, "install", "-q", "--no-deps", "--no-build-isolation", "-e", CHECKOUT)


def sky_version(places: Places) -> str:
    """The version of SkyPilot that the client has."""
    code = "import importlib.metadata as m; print(m.version('skypilot'))"
    return run(places.venv / "bin/python", "-I", "-c", code).strip()


def wheelhouse(places: Places, python: Path) -> None:
    """Wheels of SkyPilot's runtime for its Python, and of distui's needs for the client's."""
    tell("wheelhouse: what nodes install without internet")
    wheels = places.supplies / "wheelhouse"
    wheels.mkdir(parents=True, exist_ok=True)
    builder = places.cache / "builder"
    shutil.rmtree(builder, ignore_errors=True)
    run(python, "-m", "venv", builder)
    pip = builder / "bin/pip"
    run(pip, "install", "-q", "--upgrade", *BUILD[1:4])
    run(pip, "wheel", "-q", "-w", wheels, f"skypilot[slurm,remote]=={sky_version(places)}", BUILD[0])
    run(pip, "wheel", "-q", "-w", wheels, *BUILD[1:4])
    shutil.rmtree(builder)
    run(places.venv / "bin/pip", "wheel", "-q", "-w", wheels, BUILD[-1], *requirements())


def uv(places: Places, version: str, python: Path) -> None:
    """uv out of its wheel, Python by its name, and the stand-in for curl, in the nodes' PATH."""
    tell(f"uv and Python {version} for the nodes")
    tools = places.supplies / "bin"
    tools.mkdir(parents=True, exist_ok=True)
    fetched = places.cache / "downloads"
    shutil.rmtree(fetched, ignore_errors=True)
    run(places.venv / "bin/pip", "download", "-q", "--no-deps", "uv", "-d", fetched)
    (wheel,) = fetched.glob("uv-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        (name,) = [name for name in packed.namelist() if name.endswith("scripts/uv")]
        (tools / "uv-itself").write_bytes(packed.read(name))
    shutil.rmtree(fetched)
    # SkyPilot asks uv for Python 3.10 by number; where there is none, another one that it can work with will do.
    (tools / "uv").write_text(
        f'#!/bin/bash\nexec /mnt/nfs/bin/uv-itself "${{@/#{RUNTIMES[0]}/{version}}}"\n'
    )
    (tools / "curl").write_text(texts.CURL)
    for tool in tools.iterdir():
        if not tool.is_symlink():
            tool.chmod(0o755)
    named = tools / f"python{version}"
    named.unlink(missing_ok=True)
    named.symlink_to(python)


def job_environment(places: Places) -> Path:
    """The Python with torch that jobs use; made in the cache where the one named has no torch."""
    named = job_python()
    made = places.cache / "job"
    for python in (named, made / "bin/python"):
        done = (
            subprocess.run([python, "-c", "import torch"], capture_output=True, check=False)
            if python.exists()
            else None
        )
        if done and done.returncode == 0:
            return python
    tell("jobs: an environment with torch (DISTUI_RIG_JOB_PYTHON names another)")
    wanted = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"][
        "torch"
    ]
    run(sys.executable, "-m", "venv", made)
    run(made / "bin/pip", "install", "-q", *wanted)
    return made / "bin/python"


def recorded(places: Places) -> dict[str, str]:
    """What the last `prepare` made; empty when there was none."""
    try:
        found = json.loads(places.prepared.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def prepare(places: Places) -> dict[str, str]:
    """Do what is not done; what was made. Raises Trouble."""
    install_packages()
    places.cache.mkdir(parents=True, exist_ok=True)
    version, python = find_runtime()
    before = recorded(places)
    now = {
        "checkout": f"{CHECKOUT}",
        "needs": f"{SKY} {BUILD} {requirements()} {sys.version}",
        "runtime": f"{python}",
    }
    steps: dict[str, Callable[[], None]] = {
        "checkout": lambda: client_environment(places),
        "needs": lambda: wheelhouse(places, python),
        "runtime": lambda: uv(places, version, python),
    }
    changed = {key for key in now if before.get(key) != now[key]}
    if "needs" in changed:
        changed |= set(now)
    if changed:
        places.prepared.unlink(missing_ok=True)
    for key, step in steps.items():
        if key in changed:
            step()
    now["job"] = str(job_environment(places))
    places.prepared.write_text(json.dumps(now, indent=1))
    tell(f"prepared: {places.cache}")
    return now
