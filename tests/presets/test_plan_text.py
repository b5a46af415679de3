"""A plan as text and JSON; secrets; and torch itself on the launcher's arguments."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from each import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import HANG_S
from ports import free_port

from distui.presets.finding import PlanError
from distui.presets.launchers import torchrun
from distui.presets.model import Loaded, Preset, RestartPolicy
from distui.presets.plan import Place, Plan, command_plan, make_plan
from distui.presets.plan_json import plan_from_json, plan_to_json
from distui.presets.render import command_line, ports, render
from distui.presets.request import Request
from distui.presets.secrets import is_secret, mask

PLACE = Place(
    run="r-1",
    run_dir="/state/r-1",
    port=29511,
    ras_port=28111,
    gpus=0,
    cores=2,
    cwd="/work dir",
    python=sys.executable,
)
DDP = Loaded(preset=Preset(name="ddp"))


SECRET_NAMES = """
HF_TOKEN WANDB_API_KEY aws_secret_access_key DB_PASSWORD MYPASSWD DATABASE_URL PGPASSWORD PGPASS
MYSQL_PWD GH_PAT NEPTUNE_AUTH HTTP_AUTHORIZATION SENTRY_DSN SLACK_WEBHOOK SLACK_WEBHOOK_URL
PASSPHRASE DB_PASSWD JWT CREDENTIAL CREDENTIALS PRIVATE_KEY SECRET ACCESS_KEY DB_PASS GIT_AUTH A_KEY
KEY API_KEY_2 AWS_ACCESS_KEY_ID HUGGING_FACE_HUB_TOKEN HF_TOKEN_READ TOKEN hfToken apiKey APIKEY
HFTOKEN SSHPASS REDIS_URL AZURE_STORAGE_CONNECTION_STRING SECRET_KEY_BASE CLIENT_SECRET
DISTUI_RELAY_KEY AWS_SESSION_TOKEN COOKIE KAGGLE_KEY GOOGLE_APPLICATION_CREDENTIALS X-Api-Key
hf-token api_key password PASSWORD MY_PASSWORD COMET_API_KEY GITHUB_TOKEN_PROD PROD_ENV_API_KEY
"""
INNOCENT_NAMES = """
KEYBOARD MONKEY_PATCH TOKENIZER_PATH TOKENIZERS_PARALLELISM PATH AUTHOR COMPATIBLE KEY_FRAMES
tokenizer max-tokens num-key-value-heads MAX_TOKENS NCCL_IB_PKEY PWD OLDPWD SSH_AUTH_SOCK
pad-token-id EOS_TOKEN calculate-per-token-loss moe-token-drop-policy TOKEN_FILE keys COMPASS BYPASS
SECRETARY XAUTHORITY GIT_ASKPASS TURKEY HOTKEY patience patch pattern PATTERN monitor-key tokens
num_tokens token_budget passes n_passes NUM_PASSES sort_key label-key author authors COMET_URL
WANDB_BASE_URL WANDB_PROJECT HF_HOME HF_HUB_OFFLINE HF_ENDPOINT LD_LIBRARY_PATH PYTHONPATH
MASTER_ADDR MASTER_PORT OMP_NUM_THREADS TORCH_NCCL_TRACE_BUFFER_SIZE DBUS_SESSION_BUS_ADDRESS
key-dim KEYMAP user_tokens GIT_CONFIG_KEY_0 GIT_CONFIG_VALUE_12
"""


def planned(**request: Any) -> Plan:
    return make_plan(DDP, Request(script="train.py", **request), PLACE)


def test_the_text_holds_the_whole_plan() -> None:
    made = replace(
        planned(args=("--note", "two words"), env={"HF_TOKEN": "hunter2", "A": "b c"}),
        files={"x.json": '{"a": 1}'},
    )
    text = render(made)
    lines = text.splitlines()
    assert f"  {command_line(made)}" in lines
    assert "  A='b c'  # command line" in lines
    assert "  HF_TOKEN='***'  # command line" in lines
    assert "hunter2" not in text
    assert "ranks        2 = nnodes 1 × nproc_per_node 2" in lines
    assert lines[lines.index("file x.json") + 1] == '  {"a": 1}'
    assert "stop         SIGTERM, after 30 s SIGKILL" in lines
    assert any(line.startswith("on failure   restart, at most 3 times") for line in lines)
    for note in made.notes:
        assert f"  - {note}" in lines
    env = [line.split("=")[0] for line in lines if line.startswith("  ") and "=" in line.split(" ")[2]]
    assert env == sorted(env)


def test_the_plan_says_what_listens() -> None:
    """docs/security.md has the same table; tests/e2e/test_ports.py sees that it is so."""
    hooked, bare = ports(planned()), ports(planned(hook=False))
    assert "loopback" in hooked
    assert "listens on every interface" in bare
    assert "loopback" not in bare
    assert f"ports        {bare}" in render(planned(hook=False)).splitlines()
    many = ports(replace(planned(), nnodes=2, argv=("--rdzv-endpoint", "n1:29400")))
    assert "n1:29400 on the first node" in many
    assert "unauthenticated, on every node" in many
    assert "is its own" in ports(command_plan(("sleep", "1"), Request(), PLACE))


def test_the_line_is_one_that_a_shell_runs() -> None:
    made = planned(args=("--note", "it's $HOME"))
    assert shlex.split(command_line(made)) == [sys.executable, "-m", "torch.distributed.run", *made.argv]
    command = command_plan(("bash", "-c", "echo 'a b'"), Request(), PLACE)
    assert shlex.split(command_line(command)) == ["bash", "-c", "echo 'a b'"]
    assert "preset" not in render(command)
    assert "on failure   no restart" in render(command)


def test_json_of_a_plan_is_exact_and_masked_only_for_showing() -> None:
    made = replace(
        planned(env={"HF_TOKEN": "hunter2"}, args=("--api-key", "hunter2")),
        files={"x.json": '{"token": "hunter2"}'},
    )
    assert plan_from_json(json.loads(json.dumps(plan_to_json(made)))) == made
    shown = json.dumps(plan_to_json(made, masked=True))
    assert "hunter2" not in shown
    assert plan_to_json(made, masked=True).keys() == plan_to_json(made).keys()


WORD = st.text(max_size=8)
PLANS = st.builds(
    Plan,
    run=WORD,
    name=WORD,
    run_dir=WORD,
    preset=WORD,
    strategy=WORD,
    launcher=WORD,
    python=WORD,
    cwd=WORD,
    argv=st.lists(WORD, max_size=4).map(tuple),
    command=st.lists(WORD, max_size=4).map(tuple),
    env=st.dictionaries(WORD, WORD, max_size=3),
    files=st.dictionaries(WORD, WORD, max_size=3),
    nnodes=st.integers(1, 9),
    nproc_per_node=st.none() | st.integers(1, 9),
    backend=st.none() | WORD,
    obeys=st.none() | WORD,
    restart=st.builds(RestartPolicy, limit=st.integers(0, 9), backoff_s=st.floats(0, 9)),
    grace_s=st.floats(0, 90),
    hook=st.booleans(),
    notes=st.lists(WORD, max_size=3).map(tuple),
)


@settings(max_examples=100, deadline=None)
@given(PLANS)
def test_every_plan_survives_json(made: Plan) -> None:
    assert plan_from_json(json.loads(json.dumps(plan_to_json(made)))) == made


def test_json_of_another_version_is_read() -> None:
    document = {**plan_to_json(planned()), "later": 1, "restart": {"limit": 2, "later": 1}}
    assert plan_from_json(document).restart == RestartPolicy(limit=2)


@for_each("document", [{}, {"run": "x"}, {"argv": 3}, {"restart": 5}])
def test_json_of_something_else_is_a_sentence(document: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match="not a plan that distui wrote"):
        plan_from_json(document)


@for_each(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("WANDB_API_KEY", True),
        ("aws_secret_access_key", True),
        ("DB_PASSWORD", True),
        ("MYPASSWD", True),
        ("PATH", False),
        ("TOKENIZERS_PARALLELISM", False),
        ("NCCL_IB_PKEY", False),
        *((name, True) for name in SECRET_NAMES.split()),
        *((name, False) for name in INNOCENT_NAMES.split()),
    ],
)
def test_secrets_are_known_by_name(name: str, secret: bool) -> None:
    assert is_secret(name) is secret
    assert mask(name, "value") == ("***" if secret else "value")
    assert mask(name, "") == ""


def launch(**changes: Any) -> torchrun.Launch:
    values: dict[str, Any] = {
        "nnodes": 1,
        "nproc_per_node": 2,
        "run": "r-1",
        "host": "127.0.0.1",
        "port": 29511,
        "monitor_interval_s": 0.1,
        "command": ("train.py", "--lr", "1"),
    }
    return torchrun.Launch(**{**values, **changes})


def test_an_ipv6_address_stands_in_brackets() -> None:
    argv = torchrun.placed(torchrun.argv(launch(nnodes=2)), "fe80::1", "fe80::2", 1)
    assert argv[argv.index("--rdzv-endpoint") + 1] == "[fe80::1]:29511"
    assert argv[argv.index("--local-addr") + 1] == "fe80::2"
    assert "is_host=0" in argv[argv.index("--rdzv-conf") + 1]


RANK = """
import json, os, pathlib, sys
rank = os.environ["RANK"]
pathlib.Path(sys.argv[1], rank).write_text(json.dumps(dict(os.environ)))
"""


@pytest.mark.real
@pytest.mark.torch
def test_a_plan_starts_its_ranks(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    place = replace(PLACE, port=free_port(), cwd=str(tmp_path), script_source=RANK)
    made = make_plan(DDP, Request(script="rank.py", args=(str(tmp_path),), nproc_per_node=2), place)
    ran = subprocess.run(
        shlex.split(command_line(made)),
        cwd=made.cwd,
        env={**os.environ, **made.env},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    for rank in ("0", "1"):
        env = json.loads((tmp_path / rank).read_text())
        assert made.env.items() <= env.items()
        assert (env["WORLD_SIZE"], env["TORCHELASTIC_MAX_RESTARTS"]) == ("2", "100")
    assert "OMP_NUM_THREADS" not in ran.stderr
