"""The file of results, and the table of them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .catalogue import Catalogue, Mutant, Tier

RESULTS = Path(__file__).with_name("results.toml")


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
    everything: bool = False
    """Whether all tests of the tier ran, and not only those of its area."""

    @property
    def is_killed(self) -> bool:
        return self.outcome != "survived"


def recorded(tier: Tier, commit: str | None = None) -> dict[str, Result]:
    """The results of a tier so far; `commit`: none if they are those of another one."""
    results: dict[str, Result] = {}
    table = _read().get(tier.name, {"commit": "", "mutants": {}})
    if commit not in (None, table["commit"]):
        return results
    for name, row in table["mutants"].items():
        results[name] = Result(**{**row, "flaky": tuple(row.get("flaky", ()))})
    return results


def record(catalogue: Catalogue, commit: str, name: str, result: Result) -> None:
    """Add one result, in the order of the mutants. Those of another commit are forgotten."""
    results = _read()
    table = results.setdefault(catalogue.tier.name, {"commit": commit, "mutants": {}})
    if table["commit"] != commit:
        table["mutants"] = {}
    table |= {"commit": commit, "note": catalogue.tier.note}
    row: dict[str, object] = {"outcome": result.outcome, "seconds": round(result.seconds)}
    row |= {"test": result.test} if result.test else {}
    row |= {"flaky": list(result.flaky)} if result.flaky else {}
    row |= {"everything": True} if result.everything else {}
    table["mutants"][name] = row
    order = [mutant.name for mutant in catalogue.mutants]
    table["mutants"] = {known: table["mutants"][known] for known in order if known in table["mutants"]}
    _write(results)


def _read() -> dict[str, Any]:
    """By tier: commit, note and mutants."""
    return tomllib.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def _write(results: Mapping[str, Any]) -> None:
    lines = [
        "# Written by `python -m tests.mutation`: which mutants the tests of each tier kill, and by which test.",
        "# everything: all tests of the tier ran. flaky: tests that failed once, and passed when repeated.",
    ]
    for tier, table in results.items():
        lines += ["", f"[{tier}]", f"commit = {json.dumps(table['commit'])}"]
        lines += [f"note = {json.dumps(table['note'])}"] if table.get("note") else []
        lines += ["", f"[{tier}.mutants]"]
        for name, row in table["mutants"].items():
            cells = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in row.items()]
            lines.append(f"{name} = {{{', '.join(cells)}}}")
    RESULTS.write_text("\n".join(lines) + "\n")


def report(mutants: Sequence[Mutant], results: Mapping[str, Result]) -> str:
    """The table of areas and the survivors."""
    judged = [mutant for mutant in mutants if mutant.name in results]
    survivors = [mutant for mutant in judged if not results[mutant.name].is_killed]
    lines = [f"{'area':<12} {'mutants':>7} {'killed':>7}"]
    for area in dict.fromkeys(mutant.area for mutant in mutants):
        count = sum(mutant.area == area for mutant in judged)
        lived = sum(mutant.area == area for mutant in survivors)
        lines.append(f"{area:<12} {count:>7} {count - lived:>7}")
    killed = len(judged) - len(survivors)
    share = f" ({100 * killed / len(judged):.0f} %)" if judged else ""
    lines.append(f"{'all':<12} {len(judged):>7} {killed:>7}{share}")
    if survivors:
        lines += ["", "survivors:", *(f"  {each.name}: {each.harm}" for each in survivors)]
    left = len(mutants) - len(judged)
    if left:
        lines.append(f"{left} without a result")
    return "\n".join(lines)
