"""Make mistakes in a copy of distui, one at a time, and record which of them the tests notice.

    python -m tests.mutation --tier test             all mutants, as far as this commit has no result yet
    python -m tests.mutation --tier test --again     the same anew
    python -m tests.mutation --tier test --select 'fold-*' --tests tests/runners/test_state.py
    python -m tests.mutation --tier test --report    only print the table

A tier is a way to run the tests: mutants.toml says which commit and which arguments of pytest. For each mutant the tests
of its area run first, cheap ones before dear ones; the first failure ends it: the mutant is killed. Mutants that survive
these are then put into the copy together, and all tests of the tier run once; each mutant alone then has to fail one of
the tests that failed. A failure counts only if the same test fails again by itself, and passes in the unchanged copy.

The copy is made by `git archive`. It has a virtual environment of its own, so that also what tests start is the copy:
the packages are those of the environment that runs this module, distui is that of the copy.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from .catalogue import Catalogue, Mutant, Stage, changed, load
from .copies import LONGEST_S, REPOSITORY, Copy, deselected, output_of
from .results import Result, record, recorded, report

FLAKY = 3
"""Tests of one mutant that may fail once and pass when they are repeated."""
LEAST_LIMIT_S, LIMIT_FACTOR = 300.0, 4.0
"""A run is killed after this many times the time that the unchanged copy took, but never before this many seconds."""


def judge(copy: Copy, mutant: Mutant, stages: Sequence[Stage], excluded: Sequence[str]) -> Result:
    """Run the stages until one kills the mutant."""
    flaky: list[str] = []
    began = time.monotonic()
    for stage in stages:
        limit_s = max(LEAST_LIMIT_S, LIMIT_FACTOR * copy.check(stage, excluded))
        while len(flaky) <= FLAKY:
            with copy.mutated([mutant]):
                run = copy.pytest(stage, limit_s, "-x", *deselected([*excluded, *flaky]))
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


def suspects(
    copy: Copy, catalogue: Catalogue, mutants: Sequence[Mutant], excluded: Sequence[str]
) -> list[str]:
    """Tests of the whole tier that fail with all these mutants at once, and not in the unchanged copy."""
    tier = catalogue.tier
    with copy.mutated(mutants):
        run = copy.pytest(
            tier.everything, LONGEST_S, "--continue-on-collection-errors", *deselected(excluded)
        )
    if run.timed_out or (not run.passed and not run.failures):
        raise SystemExit(f"all tests together came to no end:\n{run.output[-4000:]}")
    print(
        f"{len(mutants)} mutants at once: {len(run.failures)} tests fail in {run.seconds:.0f} s", flush=True
    )
    if not run.failures:
        return []
    anyway = copy.pytest(catalogue.some(run.failures), LONGEST_S).failures
    return [test for test in run.failures if test not in anyway]


def apart(copy: Copy, mutants: Sequence[Mutant]) -> tuple[list[Mutant], list[Mutant]]:
    """Those that can be made at once, and those whose text another one changes."""
    texts: dict[str, str] = {}
    fitting: list[Mutant] = []
    others: list[Mutant] = []
    for mutant in mutants:
        text = texts.get(mutant.file) or (copy.folder / mutant.file).read_text()
        if text.count(mutant.old) == 1:
            texts[mutant.file] = changed(mutant, text)
            fitting.append(mutant)
        else:
            others.append(mutant)
    return fitting, others


def try_everything(
    copy: Copy, catalogue: Catalogue, mutants: Sequence[Mutant], excluded: Sequence[str]
) -> None:
    """Run all tests of the tier for mutants that the tests of their areas do not kill."""
    left = list(mutants)
    while left:
        at_once, left = apart(copy, left)
        failing = suspects(copy, catalogue, at_once, excluded)
        stages = [catalogue.some(failing)] if failing else []
        for mutant in at_once:
            result = replace(judge(copy, mutant, stages, excluded), everything=True)
            keep(copy, catalogue, mutant, result)


def keep(copy: Copy, catalogue: Catalogue, mutant: Mutant, result: Result) -> None:
    """Record a result, and print it."""
    record(catalogue, copy.commit, mutant.name, result)
    print(f"{result.outcome:<8} {mutant.name:<34} {result.seconds:>5.0f} s  {result.test}", flush=True)


def work(copy: Copy, catalogue: Catalogue, asked: argparse.Namespace) -> None:
    """Judge the selected mutants, each recorded as soon as it is known."""
    known = {} if asked.again else recorded(catalogue.tier, copy.commit)
    survivors: list[Mutant] = []
    for mutant in catalogue.selected(asked.select):
        result = known.get(mutant.name)
        if result is None or (asked.tests and not result.is_killed):
            stages = (
                [catalogue.some(asked.tests)] if asked.tests else catalogue.stages(mutant)[: asked.depth]
            )
            stages = [stage for stage in map(copy.present, stages) if stage.tests]
            result = judge(copy, mutant, stages, asked.deselect)
            keep(copy, catalogue, mutant, result)
        if not result.is_killed and not result.everything:
            survivors.append(mutant)
    if not asked.tests and asked.depth is None:
        try_everything(copy, catalogue, survivors, asked.deselect)


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
        "--tests",
        nargs="+",
        metavar="PATH",
        help="run only these tests, also for mutants that survived others",
    )
    parser.add_argument(
        "--depth", type=int, metavar="N", help="only the first N lists of an area, not everything"
    )
    parser.add_argument("--commit", help="what to copy (default: that of the tier, else HEAD)")
    parser.add_argument("--copy", type=Path, metavar="FOLDER", help="keep the copy there for the next time")
    parser.add_argument("--again", action="store_true", help="also mutants that have a result")
    parser.add_argument(
        "--deselect", nargs="+", default=[], metavar="TEST", help="tests that fail in the unchanged copy"
    )
    parser.add_argument("--report", action="store_true", help="only print the table of what is recorded")
    parser.add_argument("--fits", action="store_true", help="only check that each mutant fits the commit")
    return parser.parse_args()


def main() -> int:
    """Exit code 0 when every selected mutant has a result."""
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(143)
    )  # takes the mistake out of the copy again
    asked = arguments()
    catalogue = load(asked.tier, asked.commit)
    tier = catalogue.tier
    if asked.fits:
        for mutant in catalogue.mutants:
            changed(mutant, output_of("git", "-C", str(REPOSITORY), "show", f"{tier.commit}:{mutant.file}"))
        print(f"all {len(catalogue.mutants)} mutants fit {tier.commit}")
        return 0
    if not asked.report:
        with contextlib.ExitStack() as stack:
            folder = asked.copy
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutation-")))
            work(Copy(folder.resolve(), tier.commit), catalogue, asked)
    print(report(catalogue.mutants, recorded(tier)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
