"""`python -m tests.rigs.nccl_host build VERSION | run SCENARIO VERSION FOLDER | capture [SCENARIO…] | table | list`."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from .build import VERSIONS, Built, built
from .scenarios import OTHER, SCENARIOS, Scenario
from .table import CORPUS, write
from .trimming import keep


def libraries(scenario: Scenario, version: str) -> dict[str, Built]:
    """What a scenario needs."""
    return {one: built(one) for one in ((version, OTHER[version]) if scenario.mixed else (version,))}


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.rigs.nccl_host", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="the scenarios")
    verbs.add_parser("build", help="build a version, which takes minutes").add_argument("version")
    run = verbs.add_parser("run", help="run a scenario and leave the logs in a folder")
    run.add_argument("scenario")
    run.add_argument("version")
    run.add_argument("folder", type=Path)
    verbs.add_parser("table", help="write the table of verification.md anew, from the corpus")
    capture = verbs.add_parser(
        "capture", help="run scenarios on all versions and write tests/corpus/nccl_host anew"
    )
    capture.add_argument("scenario", nargs="*")
    capture.add_argument("--version", choices=VERSIONS, action="append")
    chosen = parser.parse_args()
    by_name = {scenario.name: scenario for scenario in SCENARIOS}
    if chosen.verb == "list":
        print(*(f"{scenario.name:20} {scenario.what}" for scenario in SCENARIOS), sep="\n")
    elif chosen.verb == "table":
        write()
    elif chosen.verb == "build":
        print(built(chosen.version).library)
    elif chosen.verb == "run":
        chosen.folder.mkdir(parents=True)
        scenario = by_name[chosen.scenario]
        scenario.run(libraries(scenario, chosen.version), chosen.version, chosen.folder)
    else:
        for version in chosen.version or VERSIONS:
            for name in chosen.scenario or by_name:
                with tempfile.TemporaryDirectory(prefix="nccl-host-") as folder:
                    by_name[name].run(libraries(by_name[name], version), version, Path(folder))
                    keep(Path(folder), CORPUS / version / name)
                print(version, name, flush=True)


if __name__ == "__main__":
    main()
