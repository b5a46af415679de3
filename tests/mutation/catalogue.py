"""The mutants and the tiers, as mutants.toml has them."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MUTANTS = Path(__file__).with_name("mutants.toml")


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
class Stage:
    """Tests that run at once."""

    tests: tuple[str, ...]
    args: tuple[str, ...]
    """Arguments of pytest."""


@dataclass(frozen=True)
class Tier:
    """One way to run the tests."""

    name: str
    commit: str
    """What is copied."""
    args: tuple[str, ...]
    """Arguments of pytest that select the tests of the tier."""
    everything: Stage
    """All tests of the tier."""
    without: tuple[str, ...] = ()
    """Folders in the lists of areas that are not in this tier."""
    note: str = ""


@dataclass(frozen=True)
class Catalogue:
    """What mutants.toml holds, for one tier."""

    mutants: tuple[Mutant, ...]
    tier: Tier
    areas: Mapping[str, tuple[tuple[str, ...], ...]]
    """By area: lists of tests, run one after the other until one of them fails."""

    def stages(self, mutant: Mutant) -> list[Stage]:
        """The tests of a mutant's area, one at a time."""
        stages = []
        for paths in self.areas.get(mutant.area, ()):
            tests = [path for path in paths if not path.startswith(self.tier.without)]
            stages.append(self.some(tests))
        return stages

    def some(self, tests: Iterable[str]) -> Stage:
        """Tests by their paths, one at a time."""
        return Stage(tuple(tests), (*self.tier.args, "-n", "0"))

    def selected(self, patterns: Sequence[str]) -> list[Mutant]:
        """The mutants whose name, or area, fits a pattern; all without one. Raises SystemExit where none does."""
        if not patterns:
            return list(self.mutants)
        found = []
        for mutant in self.mutants:
            words = (mutant.name, mutant.area)
            if any(fnmatch.fnmatchcase(word, pattern) for pattern in patterns for word in words):
                found.append(mutant)
        if not found:
            raise SystemExit(f"no mutant fits {' '.join(patterns)}")
        return found


def load(tier: str, commit: str | None = None) -> Catalogue:
    """Read mutants.toml. Raises SystemExit for an unknown tier."""
    document = tomllib.loads(MUTANTS.read_text())
    if tier not in document["tiers"]:
        raise SystemExit(f"unknown tier {tier!r}: mutants.toml has {', '.join(document['tiers'])}")
    table = document["tiers"][tier]
    args = tuple(table["args"])
    return Catalogue(
        mutants=tuple(Mutant(**each) for each in document["mutant"]),
        tier=Tier(
            name=tier,
            commit=commit or table.get("commit", "HEAD"),
            args=args,
            everything=Stage(("tests",), (*args, *table["everything_args"])),
            without=tuple(table.get("without", ())),
            note=table.get("note", ""),
        ),
        areas={area: tuple(map(tuple, each["tests"])) for area, each in document["areas"].items()},
    )


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
