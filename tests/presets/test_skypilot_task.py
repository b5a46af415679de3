"""SkyPilot tasks as text: what distui writes, and what it leaves as the user wrote it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from each import for_each
from hypothesis import given
from hypothesis import strategies as st
from patience import HANG_S

from distui.presets import skypilot
from distui.presets.finding import PlanError
from distui.presets.known_names import known_names
from distui.presets.lint import skypilot_file
from distui.presets.request import Request
from distui.presets.skypilot import Cargo
from distui.presets.text_formats import write_yaml

CARGO = Cargo(
    run="20260101-000000-train-0123abcd",
    bundle="bundle-77",
    source="/r/cargo",
    secrets={"HF_TOKEN": "hf_x", "WANDB_API_KEY": "00ff"},
)

STATIC = """\
# SkyPilot's documentation, "Distributed jobs": static rendezvous
num_nodes: 2
resources:
  accelerators: A100:8
run: |
  MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE \\
    --master_addr=$MASTER_ADDR --master_port=8008 --node_rank=${SKYPILOT_NODE_RANK} train.py
"""
C10D = """\
# the same page: c10d rendezvous
num_nodes: 2
resources:
  accelerators: {H100: 8}
run: |
  MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE \\
    --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:29500 --rdzv_id=$SKYPILOT_TASK_ID train.py
"""


def sky_python() -> str:
    """An interpreter with SkyPilot: the one named, or the test cluster's."""
    cache = os.environ.get("DISTUI_RIG_CACHE") or Path.home() / ".cache/distui-rig"
    found = os.environ.get("DISTUI_SKY_PYTHON") or str(Path(cache, "venv/bin/python"))
    if not Path(found).exists():
        pytest.skip("no SkyPilot here: DISTUI_SKY_PYTHON names a Python that has it")
    return found


def read_back(text: str) -> Any:
    """What PyYAML, which SkyPilot reads with, makes of a text."""
    return yaml.safe_load(text)


def test_a_whole_task() -> None:
    wish = Request(
        on="aws/us-east-1",
        gpus="H100:8",
        cpus="96+",
        memory="500+",
        spot=True,
        image="docker:nvcr.io/nvidia/pytorch:25.01-py3",
        network_tier="best",
        workdir="/code",
        setup="pip install -r requirements.txt",
        mounts={"/data": "s3://bucket"},
        autostop_min=30,
    )
    made = skypilot.wrap({"name": "train-0123abcd"}, wish, 4, CARGO, {"LR": "1e-3", "API_KEY": "k"})
    assert made == {
        "name": "train-0123abcd",
        "num_nodes": 4,
        "resources": {
            "infra": "aws/us-east-1",
            "accelerators": "H100:8",
            "cpus": "96+",
            "memory": "500+",
            "use_spot": True,
            "image_id": "docker:nvcr.io/nvidia/pytorch:25.01-py3",
            "network_tier": "best",
            "autostop": {"idle_minutes": 30, "down": True},
        },
        "workdir": "/code",
        "file_mounts": {
            "/data": "s3://bucket",
            "~/.distui": "/r/cargo",
        },
        "envs": {"LR": "1e-3"},
        "secrets": {"HF_TOKEN": "hf_x", "WANDB_API_KEY": "00ff"},
        "setup": "pip install -r requirements.txt",
        "run": "exec sh ~/.distui/bundle-77/node.sh job 20260101-000000-train-0123abcd\n",
    }


def test_what_nobody_asked_for_is_left_to_skypilot() -> None:
    made = skypilot.wrap({"name": "t"}, Request(), 1, Cargo(run="r", bundle="b", source="/c"), {})
    assert set(made) == {"name", "num_nodes", "file_mounts", "run"}


def test_a_region_without_a_cloud_and_alternatives() -> None:
    wish = Request(
        region="eu-west", any_of=({"infra": "aws", "gpus": "A100:8"}, {"infra": "gcp", "spot": "true"})
    )
    assert skypilot.resources(wish) == {
        "infra": "*/eu-west",
        "any_of": [{"infra": "aws", "accelerators": "A100:8"}, {"infra": "gcp", "use_spot": True}],
    }


def test_the_users_own_choice_is_the_first_alternative() -> None:
    """SkyPilot 0.14 takes what stands beside `any_of` as defaults, not as a choice."""
    other = {"infra": "gcp", "gpus": "A100:8"}
    made = skypilot.resources(Request(on="aws", gpus="H100:8", any_of=(other,)))
    assert made["any_of"] == [
        {"infra": "aws", "accelerators": "H100:8"},
        {"infra": "gcp", "accelerators": "A100:8"},
    ]
    places = ({"infra": "aws"}, {"infra": "gcp"})
    assert skypilot.resources(Request(gpus="H100:8", any_of=places))["any_of"] == list(places)


def test_a_variable_without_a_value_is_named_with_the_option() -> None:
    task = {"envs": {"DATASET": None}, "run": "true"}
    with pytest.raises(PlanError, match=r"envs\.DATASET has no value: add --env DATASET=VALUE"):
        skypilot.wrap(task, Request(), None, CARGO, {})
    assert skypilot.wrap(task, Request(), None, CARGO, {"DATASET": "x"})["envs"] == {"DATASET": "x"}


def test_a_stated_place_replaces_cloud_region_and_zone() -> None:
    """SkyPilot refuses `infra` next to them."""
    task = {
        "resources": {"cloud": "aws", "region": "us-east-1", "zone": "us-east-1a", "cpus": 8},
        "run": "true",
    }
    made = skypilot.wrap(task, Request(on="gcp"), None, CARGO, {})
    assert made["resources"] == {"infra": "gcp", "cpus": 8}


def test_options_hold_for_each_alternative_of_a_users_own_task() -> None:
    listed = [{"accelerators": "A100:8", "infra": "aws"}, {"accelerators": "H100:8"}]
    for key in ("any_of", "ordered"):
        task = {"resources": {key: listed}, "run": "true"}
        made = skypilot.wrap(task, Request(gpus="L4:8", any_of=({"infra": "gcp"},)), None, CARGO, {})
        assert made["resources"] == {
            "accelerators": "L4:8", key: [{"infra": "aws"}, {}, {"infra": "gcp"}],
        }, key  # fmt: skip


@for_each(
    ("wish", "sentence"),
    [
        (Request(gpus="H100:8:2"), "--gpus H100:8:2: write NAME:COUNT"),
        (Request(gpus="8"), "--gpus 8: write NAME:COUNT"),
        (Request(gpus="H100:0"), "--gpus H100:0"),
        (Request(cpus="many"), "--cpus many: write a number, or 4+"),
        (Request(memory="-1"), "--memory -1"),
        (Request(on="aws us-east-1"), "--on aws us-east-1: write CLOUD"),
        (Request(on="moon/base"), "--on moon/base: unknown place: write local, sky, or one of aws"),
        (Request(on="aws/us-east-1", region="us-west-2"), "already names a region"),
        (Request(network_tier="fast"), "write best or standard"),
        (Request(autostop_min=0), "--autostop 0"),
        (Request(any_of=({"gpu": "H100"},)), "an alternative has infra, gpus, cpus, memory, spot"),
        (Request(mounts={"data": "s3://b"}), "has to begin with / or ~/"),
    ],
)
def test_a_bad_wish_gets_one_sentence(wish: Request, sentence: str) -> None:
    with pytest.raises(PlanError) as caught:
        skypilot.check(wish)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@for_each("text", [STATIC, C10D])
def test_a_users_own_task_keeps_every_key(text: str) -> None:
    before = skypilot.own_task([read_back(text)], "train.yaml")
    made = skypilot.wrap(before, Request(), None, CARGO, {})
    assert made["run"] == CARGO.command
    assert made["num_nodes"] == 2
    assert made["resources"] == before["resources"]
    assert {key: value for key, value in made.items() if key in before and key != "run"} == {
        key: value for key, value in before.items() if key != "run"
    }
    assert "$SKYPILOT_NODE_IPS" in before["run"], "the text that becomes TASK_SCRIPT is not touched"


def test_options_win_over_a_users_own_task() -> None:
    before: dict[str, Any] = {
        "name": "mine",
        "num_nodes": 2,
        "resources": {"accelerators": "A100:8", "disk_size": 512},
        "file_mounts": {"/data": "s3://b"},
        "envs": {"A": "1", "B": "2"},
        "run": "true",
        "config": {"x": 1},
    }
    made = skypilot.wrap(before, Request(gpus="H100:8", cpus="16+"), 4, CARGO, {"B": "3", "MY_TOKEN": "t"})
    assert made["num_nodes"] == 4
    assert made["resources"] == {"accelerators": "H100:8", "disk_size": 512, "cpus": "16+"}
    assert made["file_mounts"]["/data"] == "s3://b"
    assert made["envs"] == {"A": "1", "B": "3"}
    assert made["config"] == {"x": 1}
    assert before["num_nodes"] == 2, "the user's own value is another one"


@for_each(
    ("documents", "sentence"),
    [
        ([], "holds no task"),
        ([{"run": "a"}, {"run": "b"}], "holds several documents"),
        (["text"], "holds no mapping"),
        ([{"name": "x"}], "has no run"),
        ([{"run": "a", "service": {}}], "has service"),
        ([{"run": "a", "envs": ["A=1"]}], "envs has to be a mapping"),
        ([{"run": "a", "name": ["x"]}], "name is a list, and has to be a text"),
        ([{"run": "a", "num_nodes": "two"}], 'num_nodes is "two", and has to be a number'),
    ],
)
def test_a_file_that_is_no_task(documents: list[Any], sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        skypilot.own_task(documents, "train.yaml")


def test_secrets_are_hidden_and_come_back() -> None:
    made = skypilot.wrap({"name": "t"}, Request(), 1, CARGO, {})
    made["envs"] = {"GITHUB_TOKEN": "g", "LR": "1"}
    made["secrets"]["kept-by-skypilot"] = None
    shown = skypilot.masked(made)
    assert "hf_x" not in json.dumps(shown)
    assert "00ff" not in json.dumps(shown)
    assert shown["envs"] == {"GITHUB_TOKEN": "***", "LR": "1"}
    back, missing = skypilot.revealed(shown, skypilot.hidden(made))
    assert (back, missing) == (made, [])
    assert sorted(skypilot.revealed(shown, {})[1]) == ["GITHUB_TOKEN", "HF_TOKEN", "WANDB_API_KEY"]


@for_each(
    ("name", "made"),
    [
        ("train", "train-0123abcd"),
        ("GPT_2.big", "gpt-2-big-0123abcd"),
        ("7b", "run-7b-0123abcd"),
        ("___", "run-0123abcd"),
        ("a-very-long-name-of-a-training-run", "a-very-long-name-of-0123abcd"),
    ],
)
def test_names_of_clusters(name: str, made: str) -> None:
    assert skypilot.cluster_name(name, "0123abcd") == made
    assert skypilot.check_cluster(made) == made


VALUES: list[Any] = [
    {"run": "a\nb\n", "setup": "one line", "x": "a\n\nb", "y": "trailing\n\n", "z": "  indented\n  block"},
    {
        "yes": "no",
        "n": "null",
        "t": "true",
        "1": "1",
        "f": "1e3",
        "d": "12:30",
        "e": "",
        "v": "1.0",
        "s": "~",
    },
    {
        "tab": "a\tb",
        "quote": 'a"b',
        "hash": "a # b",
        "colon": "a: b",
        "end": "a:",
        "dash": "- a",
        "bang": "!x",
    },
    {
        "none": None,
        "yes": True,
        "count": 3,
        "rate": 0.5,
        "empty": {},
        "list": [],
        "nul": "\x01",
        "ü": "größe ✓",
    },
    {"list": ["a", {"b": 1, "c": ["d", "e"]}, ["f", ["g"]], "h\ni\n", {"only": {"deep": "x\ny"}}]},
    {
        "~/.distui/x": "/a/b",
        "s3": "s3://bucket/a",
        "at": "user@host",
        "percent": "%x",
        "brace": "{head}",
        "star": "*",
    },
    {
        "infra": "*/eu",
        "cpus": "4+",
        "date": "2026-01-01",
        "octal": "0755",
        "under": "1_000",
        "inf": ".inf",
        "=": "=",
    },
]


@for_each("value", VALUES)
def test_yaml_is_read_back_as_it_was(value: Any) -> None:
    text = write_yaml(value)
    assert text.endswith("\n")
    assert read_back(text) == value


PARTS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text(max_size=30)
)


@given(
    st.recursive(
        PARTS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    )
)
def test_whatever_is_written_pyyaml_reads_back(value: Any) -> None:
    assert yaml.safe_load(write_yaml(value)) == value


SCHEMA = """
import json, sys, yaml
from sky.utils import common_utils, resources_utils, schemas
for config in yaml.safe_load_all(sys.stdin.read()):
    common_utils.validate_schema(config, schemas.get_task_schema(), "task: ")
    common_utils.validate_schema(config["resources"], schemas.get_resources_schema(), "resources: ")
print(json.dumps({
    "keys": list(schemas.get_task_schema()["properties"]),
    "resources": list(schemas.get_resources_schema()["properties"]),
    "tiers": [one.value for one in resources_utils.NetworkTier],
}))
"""


@pytest.mark.long
def test_skypilots_own_schema_takes_tasks_and_lint_knows_its_keys(tmp_path: Path) -> None:
    """One task of a launch, and one of an imported preset."""
    wish = Request(
        on="slurm/lab/gpu", gpus="H100:8", cpus="4+", memory="16+", network_tier="best", autostop_min=5,
        any_of=({"gpus": "A100:8"}, {"gpus": "H100:8", "infra": "slurm/lab"}),
        workdir=str(tmp_path), setup="true",
    )  # fmt: skip
    cargo = Cargo(run="r", bundle="bundle-1", source=str(tmp_path), secrets={"A_KEY": "x"})
    task = skypilot.wrap({"name": "t-0123abcd"}, wish, 2, cargo, {"A": "1"})
    imported = {
        "resources": {"accelerators": {"H100": 8}, "cpus": "32+", "disk_size": 512, "use_spot": True,
                      "any_of": [{"infra": "aws"}, {"infra": "gcp"}], "network_tier": "best"},
        "file_mounts": {"/data": "s3://bucket"},
        "setup": "pip install torch",
    }  # fmt: skip
    wish = skypilot.check(skypilot.filled(Request(), imported))
    made = skypilot.wrap({**imported, "name": "t-0123abcd"}, wish, 2, CARGO, {})
    assert made["resources"]["use_spot"] is True
    env = {**os.environ, "HOME": str(tmp_path), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    done = subprocess.run(
        [sky_python(), "-c", SCHEMA], input=f"{write_yaml(task)}\n---\n{write_yaml(made)}", env=env,
        capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    assert set(theirs["keys"]) <= set(known_names("skypilot")["keys"])
    properties = {name for name in theirs["resources"] if not name.startswith("_")}
    assert properties <= set(known_names("skypilot")["resources"])
    assert set(theirs["tiers"]) == set(skypilot_file.TIERS)
