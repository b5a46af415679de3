"""Make mistakes in a copy of distui, one at a time, and record which of them the tests notice.

    python -m tests.mutation --tier old              all mutants of mutants.toml, as far as no result is there yet
    python -m tests.mutation --tier test --again     the same anew
    python -m tests.mutation --tier test --select 'fold-*' --tests tests/runners/test_state.py
    python -m tests.mutation --tier test --report    only print the table

A tier is a way to run the tests: mutants.toml says which commit, which arguments of pytest, and which tests. For each
mutant the tests of its area run first, cheap ones before dear ones, then all tests of the tier. The first failure ends
it: the mutant is killed. A failure counts only if the same test fails again by itself, and if the unchanged copy passed
the same tests before.

The copy is made by `git archive`. It has a virtual environment of its own, so that also what tests start is the copy:
the packages are those of the environment that runs this module, distui is that of the copy.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
MUTANTS, RESULTS = HERE / "mutants.toml", HERE / "results.toml"
MARKER = "MUTATION_COPY"
"""Variable in the environment of all that is started in the copy; its value is the copy's folder."""
NO_TESTS = 5
"""Exit code of pytest where the arguments select none of the tests."""
FLAKY = 3
"""Tests of one mutant that may fail once and pass the second time before the mutant is given up."""
LONGEST_CHECK_S = 7200.0
"""Seconds after which a run of the unchanged copy is given up."""
LEAST_LIMIT_S, LIMIT_FACTOR = 300.0, 4.0
"""A run is killed after this many times the time that the unchanged copy took, but never before this many seconds."""


@dataclass(frozen=True)
class Mutant:
    """One edit of one file."""

    name: str
    area: str
    file: str
    old: str
    new: str
    harm: str


@dataclass(frozen=True)
class Tier:
    """One way to run the tests."""

    name: str
    commit: str
    """What is copied."""
    args: tuple[str, ...]
    """Arguments of pytest before the tests."""
    everything: tuple[str, ...]
    """Tests that run for a mutant that its area's tests do not kill."""
    everything_args: tuple[str, ...] = ()
    """Further arguments of pytest for these."""
    note: str = ""


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    outcome: str
    """"killed", "timeout" (counts as killed) or "survived"."""
    test: str = ""
    """Which test failed."""
    seconds: float = 0.0
    flaky: tuple[str, ...] = ()
    """Tests that failed once and passed the second time."""

    @property
    def is_killed(self) -> bool:
        return self.outcome != "survived"


@dataclass(frozen=True)
class Run:
    """One run of pytest."""

    passed: bool
    failures: tuple[str, ...]
    seconds: float
    timed_out: bool = False
    output: str = field(default="", repr=False)


@dataclass(frozen=True)
class Stage:
    """Tests that run at once."""

    tests: tuple[str, ...]
    args: tuple[str, ...]
    """Arguments of pytest."""


@dataclass(frozen=True)
class Catalogue:
    """What mutants.toml holds, for one tier."""

    mutants: tuple[Mutant, ...]
    tier: Tier
    areas: Mapping[str, tuple[tuple[str, ...], ...]]
    """By area: lists of tests, run one after the other until one of them fails."""

    def stages(self, mutant: Mutant) -> list[Stage]:
        """The tests of a mutant's area, then all of the tier."""
        tier = self.tier
        stages = [Stage(tests, (*tier.args, "-n", "0")) for tests in self.areas.get(mutant.area, ())]
        if tier.everything:
            stages.append(Stage(tier.everything, (*tier.args, *tier.everything_args)))
        return stages


def load(tier: str, commit: str | None) -> Catalogue:
    """Read mutants.toml. Raises SystemExit for an unknown tier."""
    document = tomllib.loads(MUTANTS.read_text())
    if tier not in document["tiers"]:
        raise SystemExit(f"unknown tier {tier!r}: mutants.toml has {', '.join(document['tiers'])}")
    table = document["tiers"][tier]
    return Catalogue(
        mutants=tuple(Mutant(**each) for each in document["mutant"]),
        tier=Tier(
            name=tier,
            commit=commit or table.get("commit", "HEAD"),
            args=tuple(table["args"]),
            everything=tuple(table["everything"]),
            everything_args=tuple(table.get("everything_args", ())),
            note=table.get("note", ""),
        ),
        areas={area: tuple(map(tuple, each["tests"])) for area, each in document["areas"].items()},
    )


class Copy:
    """A copy of the tree with an environment of its own, whose files can be changed and tested."""

    def __init__(self, folder: Path, commit: str) -> None:
        """Make the copy, or take the one that is in `folder`."""
        self.folder = folder
        self.python = folder / ".venv" / "bin" / "python"
        self._stamp = int(time.time())
        self._checked = folder / ".mutation-checked.json"
        resolved = _output("git", "-C", str(REPOSITORY), "rev-parse", "--short=8", commit).strip()
        self.commit = resolved
        made = folder / ".mutation-commit"
        if made.exists():
            if made.read_text() != resolved:
                raise SystemExit(f"{folder} is a copy of {made.read_text()}, not of {resolved}: remove it")
        else:
            self._extract(resolved)
            self._make_environment()
            made.write_text(resolved)
        self._verify()

    def _extract(self, commit: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        archive = subprocess.Popen(
            ["git", "-C", str(REPOSITORY), "archive", commit], stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "-x", "-C", str(self.folder)], stdin=archive.stdout, check=True)
        if archive.wait():
            raise SystemExit(f"git archive {commit} failed")

    def _make_environment(self) -> None:
        """A virtual environment with distui of the copy, then all packages of this one, and its commands."""
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(self.folder / ".venv")], check=True
        )
        packages = Path(sysconfig.get_path("purelib"))
        own = self.folder / ".venv" / packages.relative_to(Path(sys.prefix).resolve())
        # A path file lists folders; it does not execute the path files in them, one of which names another distui.
        (own / "copy.pth").write_text(f"{self.folder / '.editable'}\n{packages}\n")
        shebang = f"#!{sys.prefix}/bin/python".encode()
        for command in sorted(Path(sys.prefix, "bin").iterdir()):
            place = self.python.with_name(command.name)
            if place.exists() or command.is_dir():
                continue
            data = command.read_bytes()
            if data.startswith(shebang):
                place.write_bytes(data.replace(sys.prefix.encode(), str(self.folder / ".venv").encode(), 1))
                place.chmod(0o755)
            else:
                place.symlink_to(command)

    def _verify(self) -> None:
        """Raises SystemExit unless module and command of the copy are used."""
        code = "import distui.presets, distui.runners, distui.tui; print(distui.runners.__file__)"
        seen = _output(str(self.python), "-c", code, env=self._environment()).strip()
        if Path(seen) != self.folder / ".editable/distui/runners/__init__.py":
            raise SystemExit(f"the copy imports {seen}, not its own distui")
        first = self.python.with_name("distui").read_text().partition("\n")[0]
        if first != f"#!{self.python}":
            raise SystemExit(f"the copy's command begins with {first}")
        print(f"copy of {self.commit} in {self.folder}: distui.runners is {seen}", flush=True)

    def _environment(self) -> dict[str, str]:
        env = {
            name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        return {**env, MARKER: str(self.folder)}

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """The copy with one mistake in it."""
        path = self.folder / mutant.file
        text = path.read_text()
        try:
            self._write(path, changed(mutant, text))
            yield
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        """With a new time of change each: by that and the size Python knows whether its compiled file is stale."""
        path.write_text(text)
        self._stamp += 1
        os.utime(path, (self._stamp, self._stamp))

    def pytest(self, stage: Stage, limit_s: float, *options: str) -> Run:
        """Run tests; a run that takes longer than `limit_s` is killed. No tests at all count as passed."""
        words = [
            str(self.python),
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            *stage.args,
            *options,
            *stage.tests,
        ]
        began = time.monotonic()
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            process = subprocess.Popen(
                words, cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            timed_out = False
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self._end_what_is_left()
            output.seek(0)
            text = output.read()
        code, seconds = process.returncode, time.monotonic() - began
        if not timed_out and code not in (0, 1, 2, NO_TESTS):
            raise SystemExit(f"pytest ended with {code}:\n{text[-4000:]}")
        return Run(code in (0, NO_TESTS), failures_in(text), seconds, timed_out, text)

    def _end_what_is_left(self) -> None:
        """End processes that tests of this copy started and left behind."""
        wanted = f"{MARKER}={self.folder}".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)

    def check(self, stage: Stage, excluded: Sequence[str]) -> float:
        """Seconds that the unchanged copy takes for tests, all of which it passes. Raises SystemExit."""
        missing = [path for path in stage.tests if not (self.folder / path.partition("::")[0]).exists()]
        if missing:
            raise SystemExit(f"not in the copy: {', '.join(missing)}: correct mutants.toml")
        known: dict[str, float] = json.loads(self._checked.read_text()) if self._checked.exists() else {}
        key = " ".join((*stage.args, *stage.tests, *_deselected(excluded)))
        if key not in known:
            run = self.pytest(stage, LONGEST_CHECK_S, *_deselected(excluded))
            failures = run.failures
            if not run.passed and not failures:
                raise SystemExit(f"the unchanged copy cannot be tested:\n{run.output[-4000:]}")
            if failures:  # a busy machine is no defect
                failures = self.pytest(replace(stage, tests=failures), LONGEST_CHECK_S).failures
            if failures:
                raise SystemExit(
                    f"the unchanged copy fails {', '.join(failures)}: exclude them by --deselect"
                )
            known[key] = run.seconds
            self._checked.write_text(json.dumps(known, indent=1))
            print(f"unchanged: {' '.join(stage.tests[:2])} … pass in {run.seconds:.0f} s", flush=True)
        return known[key]


def _output(*words: str, env: Mapping[str, str] | None = None) -> str:
    return subprocess.run(words, env=env, check=True, capture_output=True, text=True).stdout


def _deselected(tests: Sequence[str]) -> list[str]:
    return [word for test in tests for word in ("--deselect", test)]


def failures_in(output: str) -> tuple[str, ...]:
    """Tests that failed, by the summary of pytest."""
    failures = []
    for line in output.splitlines():
        kind, _, rest = line.partition(" ")
        if kind in ("FAILED", "ERROR") and rest.startswith("tests/"):
            failures.append(rest.partition(" - ")[0].strip())
    return tuple(dict.fromkeys(failures))


def changed(mutant: Mutant, text: str) -> str:
    """A file's text with the mistake. Raises SystemExit where the mutant does not fit."""
    count = text.count(mutant.old)
    if count != 1:
        raise SystemExit(f"{mutant.name}: its text is in {mutant.file} {count} times: correct mutants.toml")
    mutated = text.replace(mutant.old, mutant.new)
    try:
        compile(mutated, mutant.file, "exec")
    except SyntaxError as error:
        raise SystemExit(f"{mutant.name} does not compile: {error}") from None
    return mutated


def judge(copy: Copy, mutant: Mutant, stages: Sequence[Stage], excluded: Sequence[str]) -> Result:
    """Run the stages until one kills the mutant."""
    flaky: list[str] = []
    began = time.monotonic()
    for stage in stages:
        limit_s = max(LEAST_LIMIT_S, LIMIT_FACTOR * copy.check(stage, excluded))
        while len(flaky) <= FLAKY:
            with copy.mutated(mutant):
                run = copy.pytest(stage, limit_s, "-x", *_deselected([*excluded, *flaky]))
                seconds = time.monotonic() - began
                if run.passed:
                    break
                if run.timed_out:
                    return Result("timeout", "", seconds, tuple(flaky))
                if not run.failures:
                    raise SystemExit(f"{mutant.name}: pytest failed without a test:\n{run.output[-4000:]}")
                again = copy.pytest(replace(stage, tests=run.failures[:1]), limit_s)
            if not again.passed:
                return Result("killed", run.failures[0], seconds, tuple(flaky))
            flaky.append(run.failures[0])
    return Result("survived", "", time.monotonic() - began, tuple(flaky))


# --- the file of results --------------------------------------------------------------------------------------------


def read_results() -> dict[str, Any]:
    """By tier: commit, note and mutants."""
    return tomllib.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def write_results(results: Mapping[str, Any]) -> None:
    """Replace the file."""
    lines = [
        "# Written by `python -m tests.mutation`: which mutants the tests of each tier kill, and by which test."
    ]
    for tier, table in results.items():
        lines += ["", f"[{tier}]", f"commit = {json.dumps(table['commit'])}"]
        lines += [f"note = {json.dumps(table['note'])}"] if table.get("note") else []
        lines += ["", f"[{tier}.mutants]"]
        for name, row in table["mutants"].items():
            cells = ", ".join(
                f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in row.items()
            )
            lines.append(f"{name} = {{{cells}}}")
    RESULTS.write_text("\n".join(lines) + "\n")


def recorded(tier: Tier) -> dict[str, Result]:
    """The results of a tier so far."""
    rows = read_results().get(tier.name, {}).get("mutants", {})
    return {
        name: Result(row["outcome"], row.get("test", ""), row["seconds"], tuple(row.get("flaky", ())))
        for name, row in rows.items()
    }


def record(tier: Tier, commit: str, mutants: Sequence[Mutant], name: str, result: Result) -> None:
    """Add one result, in the order of the mutants."""
    results = read_results()
    table = results.setdefault(tier.name, {"mutants": {}})
    table |= {"commit": commit, "note": tier.note}
    row: dict[str, object] = {"outcome": result.outcome, "seconds": round(result.seconds)}
    row |= {"test": result.test} if result.test else {}
    row |= {"flaky": list(result.flaky)} if result.flaky else {}
    table["mutants"][name] = row
    order = [mutant.name for mutant in mutants]
    table["mutants"] = {known: table["mutants"][known] for known in order if known in table["mutants"]}
    write_results(results)


def report(mutants: Sequence[Mutant], results: Mapping[str, Result]) -> str:
    """The table of areas and the survivors."""
    lines = [f"{'area':<12} {'mutants':>7} {'killed':>7}"]
    judged = [mutant for mutant in mutants if mutant.name in results]
    for area in dict.fromkeys(mutant.area for mutant in mutants):
        its = [results[mutant.name] for mutant in judged if mutant.area == area]
        lines.append(f"{area:<12} {len(its):>7} {sum(each.is_killed for each in its):>7}")
    killed = sum(results[mutant.name].is_killed for mutant in judged)
    share = f" ({100 * killed / len(judged):.0f} %)" if judged else ""
    lines.append(f"{'all':<12} {len(judged):>7} {killed:>7}{share}")
    survivors = [mutant for mutant in judged if not results[mutant.name].is_killed]
    lines += ["", "survivors:", *(f"  {each.name}: {each.harm}" for each in survivors)] if survivors else []
    left = len(mutants) - len(judged)
    return "\n".join([*lines, f"{left} without a result"] if left else lines)


def selected(mutants: Sequence[Mutant], patterns: Sequence[str]) -> list[Mutant]:
    """The mutants whose name, or area, fits a pattern."""
    if not patterns:
        return list(mutants)
    found = [
        mutant
        for mutant in mutants
        if any(fnmatch.fnmatchcase(word, each) for each in patterns for word in (mutant.name, mutant.area))
    ]
    if not found:
        raise SystemExit(f"no mutant fits {' '.join(patterns)}")
    return found


def arguments() -> argparse.Namespace:
    """The words of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutation", description="Which mistakes do the tests notice?"
    )
    parser.add_argument("--tier", required=True, help="a tier of mutants.toml")
    parser.add_argument(
        "--select", nargs="+", default=[], metavar="PATTERN", help="names of mutants, or areas"
    )
    parser.add_argument(
        "--tests", nargs="+", metavar="PATH", help="run these tests only, in place of the tier's"
    )
    parser.add_argument(
        "--depth", type=int, metavar="N", help="only the first N lists of tests: a quick overview"
    )
    parser.add_argument(
        "--skip", type=int, metavar="N", help="not the first N lists of tests, which survivors passed"
    )
    parser.add_argument("--commit", help="what to copy (default: that of the tier, else HEAD)")
    parser.add_argument(
        "--copy", type=Path, metavar="FOLDER", help="make the copy there and keep it for the next time"
    )
    parser.add_argument("--again", action="store_true", help="also mutants that have a result")
    parser.add_argument(
        "--survivors", action="store_true", help="of those that have a result the survivors, again"
    )
    parser.add_argument(
        "--deselect", nargs="+", default=[], metavar="TEST", help="tests that the copy fails unchanged"
    )
    parser.add_argument("--report", action="store_true", help="print the table of what is recorded")
    parser.add_argument(
        "--fits", action="store_true", help="only check that every mutant fits the commit and compiles"
    )
    return parser.parse_args()


def main() -> int:
    """0 when every selected mutant has a result."""
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(143)
    )  # takes the mistake out of the copy again
    asked = arguments()
    catalogue = load(asked.tier, asked.commit)
    mutants, tier = catalogue.mutants, catalogue.tier
    if asked.fits:
        for mutant in mutants:
            changed(mutant, _output("git", "-C", str(REPOSITORY), "show", f"{tier.commit}:{mutant.file}"))
        print(f"all {len(mutants)} mutants fit {tier.commit}")
        return 0
    if not asked.report:
        with contextlib.ExitStack() as stack:
            folder = asked.copy or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="mutation-"))
            )
            work(Copy(folder.resolve(), tier.commit), catalogue, asked)
    print(report(mutants, recorded(tier)))
    return 0


def work(copy: Copy, catalogue: Catalogue, asked: argparse.Namespace) -> None:
    """Judge the selected mutants, each recorded as soon as it is known."""
    tier = catalogue.tier
    before = recorded(tier)
    for mutant in selected(catalogue.mutants, asked.select):
        known = before.get(mutant.name)
        if known is not None and not asked.again and (known.is_killed or not asked.survivors):
            continue
        if known is None and asked.survivors:
            continue
        stages = catalogue.stages(mutant)[asked.skip : asked.depth]
        if asked.tests:
            stages = [Stage(tuple(asked.tests), (*tier.args, "-n", "0"))]
        result = judge(copy, mutant, stages, asked.deselect)
        record(tier, copy.commit, catalogue.mutants, mutant.name, result)
        print(f"{result.outcome:<8} {mutant.name:<34} {result.seconds:>5.0f} s  {result.test}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
