"""diff: compares two runs, attempts or bundles: plan, code, environment, versions and numbers."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys

import msgspec

from ...presets.sanitize import escaped_json
from ...runners.comparison.account import Account
from ...runners.comparison.differences import Comparison, compare, compared_runs, masked, single
from ...runners.comparison.loading import load
from ..rows.comparison import comparison_rows, single_rows
from ..rows.glyphs import plain, to_ascii

WIDTH = 121
"""Columns if stdout is no terminal."""


def diff(options: argparse.Namespace) -> int:
    """Print the differences of two runs, or the record of one; return 1 with --exit-code if there are any."""
    names = [name for name in (options.a, options.b) if name is not None]
    accounts = asyncio.run(loaded(names, options.ssh_config))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    if len(accounts) == 1:
        if options.json:
            sys.stdout.write(escaped_json(msgspec.json.encode(masked(accounts[0])).decode()) + "\n")
        else:
            _print(plain(single_rows(single(accounts[0]), width)), options.ascii)
        return 0
    compared = compare(*accounts, everything=options.all)
    if options.json:
        sys.stdout.write(json.dumps(msgspec.to_builtins(compared_runs(compared))) + "\n")
    else:
        _print(plain(comparison_rows(compared, width, options.all)), options.ascii)
    return _exit_code(compared, options.exit_code)


async def loaded(names: list[str], ssh_config: str | None = None) -> list[Account]:
    """Return the accounts, loaded concurrently. Raises RunError."""
    return list(await asyncio.gather(*(load(name, ssh_config) for name in names)))


def _print(lines: list[str], ascii_only: bool) -> None:
    text = "\n".join(lines)
    sys.stdout.write((to_ascii(text) if ascii_only else text) + "\n")


def _exit_code(compared: Comparison, wanted: bool) -> int:
    return int(wanted and not compared.equal)
