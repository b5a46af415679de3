"""The files of a rig, and what each host is shown. Keys are made anew with every rig."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from pathlib import Path

from . import texts
from .host import Plan
from .prepare import recorded, run
from .settings import CHECKOUT, FREEZER, PROBED, Places, Shape, Trouble, passwd_home

Kept = list[tuple[str, bool]]


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """A file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def keys(places: Places) -> None:
    """Munge's key, the client's ssh key, the hosts' ssh key, the certificate of the probe."""
    etc = places.etc
    etc.mkdir(parents=True, exist_ok=True)
    munge = etc / "munge.key"
    munge.write_bytes(secrets.token_bytes(1024))
    munge.chmod(0o400)
    for name in ("key", "host_key"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rig", "-f", etc / name)
    certificate = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    names = "subjectAltName=" + ",".join(f"IP:{one}" for one in PROBED)
    run(
        *certificate,
        *("-nodes", "-days", "3650", "-subj", "/CN=rig", "-addext", names),
        *("-addext", "basicConstraints=critical,CA:TRUE"),
        *("-keyout", etc / "probe.key", "-out", etc / "probe.crt"),
    )


def files(places: Places, shape: Shape, job: str) -> None:
    """Everything that is read inside the rig."""
    keys(places)
    places.unpacked.mkdir(parents=True, exist_ok=True)
    etc = places.etc
    write(etc / "sshd_config", texts.SSHD)
    write(etc / "hosts", texts.hosts(shape))
    write(etc / "slurm/slurm.conf", texts.slurm(shape))
    write(etc / "slurm/gres.conf", texts.gres(shape))
    write(etc / "slurm/cgroup.conf", texts.CGROUP)
    for name in (".bashrc", ".profile"):
        write(places.shared_home / name, texts.NODE_PROFILE + f"export JOB_PYTHON={job}\n")
    home, key = places.client_home, f"{passwd_home()}/.ssh/id_ed25519"
    write(home / ".ssh/id_ed25519", (etc / "key").read_text(), 0o600)
    write(home / ".ssh/config", texts.ssh(shape, key), 0o600)
    write(home / ".slurm/config", texts.slurm_ssh(key))
    write(home / ".sky/config.yaml", texts.sky(shape))
    write(home / ".sky/catalogs/v8/common/accelerators.csv", texts.CATALOG)
    for folder in (home, home / ".ssh", places.shared_home):
        folder.chmod(0o700)
    (places.folder / "scratch").mkdir(exist_ok=True)


def prefixes(python: str) -> list[str]:
    """The folders that an interpreter lives in. Raises Trouble when it does not run."""
    code = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix]))"
    done = subprocess.run(
        [python, "-I", "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode:
        raise Trouble(f"{python} does not run; prepare the rig again")
    found: list[str] = json.loads(done.stdout)
    return found


def outermost(kept: Kept) -> Kept:
    """In the order of mounting, an outer folder before an inner one, each once."""
    return sorted({path: writable for path, writable in kept if path not in ("/", "/usr")}.items())


def plan(places: Places, shape: Shape, host: str) -> Plan:
    """What a host is told."""
    made = recorded(places)
    role = host if host in ("login", "client") else "compute"
    # The first two: a host's process 1 goes on importing after its mounts.
    needed = [sys.prefix, sys.base_prefix]
    needed += [prefix for key in ("job", "runtime") for prefix in prefixes(made[key])]
    kept: Kept = [(path, False) for path in needed]
    hidden = [str(CHECKOUT)]
    if role == "client":
        client = [str(places.cache), *prefixes(f"{places.venv}/bin/python")]
        kept += [(path, False) for path in client]
        kept += [(str(CHECKOUT), True), (f"{places.folder}/scratch", True)]
        hidden = []
    return Plan(
        name=host,
        role=role,
        home=str(places.client_home if role == "client" else places.shared_home),
        over=str(passwd_home()),
        private=str(places.host(host)),
        etc=str(places.etc),
        supplies=str(places.supplies),
        hidden=hidden,
        kept=outermost(kept),
        shared=[] if role == "client" else [(str(places.unpacked), texts.UV_CACHE)],
        groups=(str(FREEZER), places.groups(host)) if shape.proctrack == "cgroup" else None,
        gpus=shape.gpus,
    )
