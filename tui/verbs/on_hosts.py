"""launch on hosts that the user names."""

from __future__ import annotations

import argparse
from pathlib import Path

from ...runners.errors import RunError
from ...runners.hosts import names
from ...runners.hosts.names import Named
from ..cloud_arguments import asked as cloud_words
from ..hosting import Ordered, Wish, prepare
from .launch import preset_of, request_of, script_of


def prepare_launch(options: argparse.Namespace) -> Ordered:
    """The run that the options mean. Raises RunError and PresetError."""
    if options.on != "local":
        raise RunError(f"--on {options.on} and named hosts exclude each other: leave one out")
    foreign = [word for word in cloud_words(options) if word != "--workdir"]
    if foreign:
        raise RunError(f"{foreign[0]} is for nodes through SkyPilot, not for hosts of your own")
    wish = Wish(
        hosts=hosts_of(options),
        options=ssh_options(options),
        head=options.head_addr or "",
        workdir=_directory(options.workdir) if options.workdir else "",
    )
    request = request_of(options, script_of(options))
    return prepare(preset_of(options), options.set, request, wish, options.port)


def hosts_of(options: argparse.Namespace) -> list[Named]:
    """The hosts that are named. Raises RunError."""
    if options.hosts is not None and options.hostfile is not None:
        raise RunError("--hosts and --hostfile exclude each other: leave one out")
    if options.hosts is not None:
        return names.from_words(options.hosts)
    return names.from_file(Path(options.hostfile).expanduser())


def ssh_options(options: argparse.Namespace) -> tuple[str, ...]:
    """What ssh is told beside what distui always tells it. Raises RunError."""
    if options.ssh_config is None:
        return ()
    path = Path(options.ssh_config).expanduser().absolute()
    if not path.is_file():
        raise RunError(f"--ssh-config {path}: there is no such file")
    return ("-F", str(path))


def _directory(text: str) -> str:
    path = Path(text).expanduser().resolve()
    if not path.is_dir():
        raise RunError(f"--workdir {text}: there is no such directory here")
    if path in (Path("/"), Path.home()):
        raise RunError(f"--workdir {text}: all of {path} would be copied; name the directory of your code")
    return str(path)
