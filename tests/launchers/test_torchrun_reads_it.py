"""torchrun's own parser on the argv of every rendezvous, and on every option that a user may give."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from distui.presets.finding import PlanError
from distui.presets.launchers import torchrun_names
from distui.presets.node_plans import for_node

from .plans import plan

READ = """
import json, sys
from torch.distributed.run import get_args_parser
parser = get_args_parser()
if sys.argv[1:]:
    known = {}
    for words in json.loads(sys.argv[1]):
        args = vars(parser.parse_args(words))
        known[json.dumps(words)] = args
    print("FOUND", json.dumps(known))
else:
    print("FOUND", json.dumps([[action.option_strings, action.nargs == 0 or action.const is not None,
                                list(action.choices or ())] for action in parser._actions]))
"""
VALUES = {
    "numa_binding": "node",
    "start_method": "spawn",
    "signals_to_handle": "SIGTERM",
    "shutdown_timeout": "5",
}


def asked(*words: str) -> object:
    """torchrun's parser, in an interpreter of its own: the viewer's must not import torch."""
    done = subprocess.run(
        [sys.executable, "-c", READ, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.partition("FOUND ")[2])


@pytest.fixture(scope="module")
def options() -> list[list[object]]:
    """Every option of the torchrun that is here: its spellings, whether it takes no value, its choices."""
    found = asked()
    assert isinstance(found, list)
    return [one for one in found if any(str(text).startswith("--") for text in one[0])]


def read(*argvs: tuple[str, ...]) -> list[dict[str, object]]:
    found = asked(json.dumps(argvs))
    assert isinstance(found, dict)
    return list(found.values())


@pytest.mark.long
def test_every_option_in_every_spelling_is_passed_on_or_refused(options: list[list[object]]) -> None:
    passed = []
    for spellings, flag, choices in options:
        assert isinstance(spellings, list)
        assert isinstance(choices, list)
        for text in spellings:
            name = text.lstrip("-").replace("_", "-")
            if name in ("h", "help"):
                continue
            value = VALUES.get(name.replace("-", "_"), choices[0] if choices else "0")
            words = [text] if flag else [text, str(value)]
            if name in torchrun_names.known_options().own or name in torchrun_names.OWN_LETTERS:
                with pytest.raises(PlanError, match="which distui sets itself"):
                    plan("ddp", f"launcher.args={json.dumps(words)}")
                if not flag and text.startswith("--"):
                    with pytest.raises(PlanError, match="which distui sets itself"):
                        plan("ddp", f"launcher.args={json.dumps([f'{text}={value}'])}")
            else:
                assert name in torchrun_names.known_options().passed, (
                    f"{text}: an option that distui does not know yet"
                )
                made = plan("ddp", f"launcher.args={json.dumps(words)}")
                assert any("does nothing here" in note for note in made.notes) is (
                    name in torchrun_names.known_options().idle
                )
                passed.append((name, str(value), made.argv))
    assert {name for name, _, _ in passed} == torchrun_names.known_options().passed
    for (name, value, _), args in zip(passed, read(*(argv for _, _, argv in passed)), strict=True):
        found = args[name.replace("-", "_")]
        assert found is True or value in str(found), name
        assert (args["training_script"], args["training_script_args"]) == ("train.py", ["--lr", "1"])


@pytest.mark.real
def test_the_rendezvous_is_read_as_meant() -> None:
    several = for_node(plan("ddp", nnodes=2), 1, ["10.0.0.1", "10.0.0.2"], "/r", "/w", "p")
    alone, args = read(plan("ddp").argv, several.argv)
    assert alone["standalone"] is True
    assert (args["rdzv_backend"], args["rdzv_endpoint"]) == ("c10d", "10.0.0.1:29511")
    assert str(args["rdzv_conf"]).startswith("is_host=0,")
    assert (args["nnodes"], args["local_addr"]) == ("2", "10.0.0.2")
