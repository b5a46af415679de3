"""A rig's power: what is up, as its record and the kernel say, and how it comes up and goes down."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from . import furnishing, network
from .holders import Holder, kill_all, power_off, power_on, power_on_lan, reap
from .prepare import missing, recorded
from .settings import CHECKOUT, FREEZER, Places, Shape, Trouble


class Rig:
    """Hosts that are on or off. Methods raise Trouble, with a sentence."""

    def __init__(self, places: Places | None = None) -> None:
        self.places = places or Places()

    @property
    def shape(self) -> Shape | None:
        """How the rig was started; None when it is down."""
        found = self._record().get("shape")
        return Shape(**found) if found else None

    @property
    def hosts(self) -> list[str]:
        """Names of all hosts, crashed ones too."""
        shape = self.shape
        return shape.hosts if shape else []

    @property
    def nodes(self) -> list[str]:
        """Names of the compute nodes, crashed ones too."""
        shape = self.shape
        return shape.computers if shape else []

    def is_up(self, host: str = "client") -> bool:
        """Whether a host is powered on."""
        holder = self._holders().get(host)
        return holder is not None and holder.alive

    @property
    def job_python(self) -> str:
        """The interpreter with torch, the same path outside and on every node, where $JOB_PYTHON names it."""
        return recorded(self.places)["job"]

    def power(self, shape: Shape | None = None) -> Shape:
        """Power on what is off; the shape that the rig has. Without one: as it is, or two nodes."""
        self._check()
        with self._alone():
            before = self.shape
            if before and shape and before != shape:
                raise Trouble(
                    f"the rig in {self.places.folder} is up and different ({before}); `down` first"
                )
            shape = before or shape or Shape()
            if not before:
                self._begin(shape)
            self._power_on([host for host in shape.hosts if not self.is_up(host)])
            return shape

    def down(self) -> None:
        """End every process and remove the folder. Harmless when nothing is up."""
        if not (self.places.record.exists() or self.places.owner.exists()):
            return
        with self._alone():
            for holder in self._holders().values():
                power_off(holder)
            kill_all(self.places.folder)
            for top in FREEZER.glob(self.places.groups()):
                for group, _, _ in os.walk(top, topdown=False):
                    os.rmdir(group)
            self.places.record.unlink(missing_ok=True)
            self.places.owner.unlink(missing_ok=True)
        shutil.rmtree(self.places.folder, ignore_errors=True)

    def _check(self) -> None:
        if os.getuid():
            raise Trouble("the rig makes network namespaces, mounts and devices: run it as root")
        if lacking := missing():
            raise Trouble(
                f"the rig needs {' '.join(lacking)}: run `python -m tests.rigs.slurm prepare` first"
            )
        made = recorded(self.places)
        if not made:
            raise Trouble("the rig is not prepared: run `python -m tests.rigs.slurm prepare` first")
        if made["checkout"] != str(CHECKOUT):
            raise Trouble(f"the rig is prepared for {made['checkout']}: run `prepare` from {CHECKOUT}")

    def _begin(self, shape: Shape) -> None:
        folder = self.places.folder
        for path in folder.iterdir():  # of a start that was broken off
            if path.is_dir():
                shutil.rmtree(path)
            elif path not in (folder / "lock", self.places.owner):
                path.unlink()
        furnishing.files(self.places, shape, self.job_python)
        lan = power_on_lan(folder)
        network.begin(lan.init)
        self._write({"shape": asdict(shape), "holders": {"lan": lan.record()}})

    def _power_on(self, hosts: list[str]) -> None:
        record = self._record()
        shape = Shape(**record["shape"]) if record else Shape()
        lan = self._holders()["lan"].init
        booting = {
            host: power_on(furnishing.plan(self.places, shape, host), self.places.folder) for host in hosts
        }
        record["holders"] |= {host: one.holder.record() for host, one in booting.items()}
        self._write(record)
        for host, one in booting.items():
            one.hear("here")
            network.connect(lan, host, one.holder.init)
            one.plugged()
        for one in booting.values():
            one.hear("ready")
            one.close()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One change at a time, also between processes."""
        folder = self.places.folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (folder / "lock").exists() and any(folder.iterdir()):
            raise Trouble(f"{folder} holds something that is no rig: name another folder in DISTUI_RIG_DIR")
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        reap()

    def _record(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self.places.record.read_text())
        except FileNotFoundError:
            return {}
        return found

    def _write(self, record: dict[str, Any]) -> None:
        new = self.places.record.with_suffix(".new")
        new.write_text(json.dumps(record, indent=1))
        new.rename(self.places.record)

    def _holders(self) -> dict[str, Holder]:
        return {host: Holder(**held) for host, held in self._record().get("holders", {}).items()}

    def _known(self, host: str) -> str:
        if host not in self.hosts:
            raise Trouble(
                f"no host {host} here; there are {' '.join(self.hosts) or 'none, the rig is down'}"
            )
        return host

    def _holder(self, host: str) -> Holder:
        if not self.is_up(self._known(host)):
            raise Trouble(f"{host} is powered off; `boot {host}` first")
        return self._holders()[host]
