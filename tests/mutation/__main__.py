"""Make the mistakes of mutants.toml in a copy of distui, one at a time, and record which of them the tests notice.

    python -m tests.mutation test             all mutants, by the tests that `make test` runs
    python -m tests.mutation real 'fold-*'    some of them, by those of `make test-real`
    python -m tests.mutation                  only print what results.toml has

The tests of a mutant's area run first, then the whole tier. A mutant is killed when a test fails that passes without it.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
RESULTS = HERE / "results.toml"
TIERS = {"test": "not real and not long", "real": "real and not long"}
"""By target of the Makefile, `make test` and `make test-real`: pytest's expression for the marks of its tests."""
NO_TESTS = 5
"""Exit code of pytest where a file has no test of the tier."""


class Mutant(NamedTuple):
    """One edit of one file. `old` is in it exactly once; `harm` is what a user would suffer."""

    name: str
    area: str
    file: str
    old: str
    new: str
    harm: str


def main(words: Sequence[str]) -> int:
    """Exit code 0 when every selected mutant has a result."""
    catalogue = tomllib.loads((HERE / "mutants.toml").read_text())
    mutants = [Mutant(**each) for each in catalogue["mutant"]]
    if words:
        tier, *patterns = words
        selected = [each for each in mutants if _fits(each, patterns or ["*"])]
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            copy = Copy(Path(folder).resolve(), TIERS[tier])
            for mutant in selected:
                began = time.monotonic()
                test = copy.killer(mutant, catalogue["areas"][mutant.area])
                print(
                    f"{time.monotonic() - began:4.0f} s  {mutant.name:<34} {test or 'SURVIVED'}", flush=True
                )
                _record(tier, mutant.name, test)
    print(_report(mutants))
    return 0


def _fits(mutant: Mutant, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(word, each) for each in patterns for word in (mutant.name, mutant.area))


class Copy:
    """A copy of the commit, in which mistakes are made and tests run."""

    def __init__(self, folder: Path, selected: str) -> None:
        """`selected`: pytest's expression for the marks of the tier."""
        self.folder, self._selected = folder, selected
        archive = subprocess.run(
            ["git", "archive", "HEAD"], cwd=REPOSITORY, stdout=subprocess.PIPE, check=True
        )
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
        self._own_environment()

    def _own_environment(self) -> None:
        """A virtual environment with the commands and packages of this one, and with distui of the copy."""
        own = self.folder / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(own)], check=True)
        packages = Path(sysconfig.get_path("purelib"))
        # A path file in a folder that another path file names is not read: this environment's distui stays outside.
        (own / packages.relative_to(sys.prefix) / "copy.pth").write_text(
            f"{self.folder / '.editable'}\n{packages}\n"
        )
        for command in Path(sys.prefix, "bin").iterdir():
            place = own / "bin" / command.name
            if not place.exists() and (data := command.read_bytes()).startswith(b"#!"):
                place.write_bytes(data.replace(f"#!{sys.prefix}/".encode(), f"#!{own}/".encode(), 1))
                shutil.copymode(command, place)

    def killer(self, mutant: Mutant, tests: Sequence[str]) -> str:
        """The test that fails with the mutant and passes without; "" where none does. Raises SystemExit."""
        path = self.folder / mutant.file
        whole = path.read_text()
        if whole.count(mutant.old) != 1:
            raise SystemExit(f"{mutant.name}: `old` is not in {mutant.file} once: correct mutants.toml")
        for stage in (tests, ["tests"]):
            self._write(path, whole.replace(mutant.old, mutant.new))
            failed = self._pytest(["-x", *stage])
            self._write(path, whole)
            if failed and not self._pytest([failed]):
                return failed
        return ""

    def _write(self, path: Path, text: str) -> None:
        """With a time of change of its own: by that and the size Python knows whether its compiled file is stale."""
        path.write_text(text)
        self._changes += 1
        os.utime(path, (self._changes, self._changes))

    _changes = int(time.time())

    def _pytest(self, chosen: Sequence[str]) -> str:
        """The first test that fails; "" where all pass."""
        env = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        pytest = [str(self.folder / ".venv/bin/python"), "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        run = subprocess.run(
            [*pytest, "-m", self._selected, *chosen],
            cwd=self.folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        summary = [line.split(" ") for line in run.stdout.splitlines()]
        failed = [words[1] for words in summary if words[0] in ("FAILED", "ERROR") and len(words) > 1]
        if not failed and run.returncode not in (0, NO_TESTS):
            raise SystemExit(
                f"pytest ended with {run.returncode}:\n{run.stdout[-4000:]}{run.stderr[-4000:]}"
            )
        return failed[0] if failed else ""


def _record(tier: str, name: str, test: str) -> None:
    results = _recorded()
    results.setdefault(tier, {})[name] = test
    lines = RESULTS.read_text().splitlines()[:2]
    for each, table in results.items():
        lines += [
            "",
            f"[{each}]",
            *(f"{key} = {json.dumps(value)}" for key, value in sorted(table.items())),
        ]
    RESULTS.write_text("\n".join(lines) + "\n")


def _recorded() -> dict[str, dict[str, str]]:
    return tomllib.loads(RESULTS.read_text())


def _report(mutants: Sequence[Mutant]) -> str:
    """How many mutants each tier kills, and those that no tier of today kills."""
    results = _recorded()
    lines = [
        f"{tier:<5} kills {sum(map(bool, table.values())):>3} of {len(table)} tried, of {len(mutants)}"
        for tier, table in results.items()
    ]
    today = [table for tier, table in results.items() if tier != "old"]
    alive = [each for each in mutants if not any(table.get(each.name) for table in today)]
    return "\n".join([*lines, *(f"alive: {each.name}: {each.harm}" for each in alive)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
