"""Whatever text comes: lint answers with findings, and never raises."""

from __future__ import annotations

import json
import string

from each import for_each
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distui.presets.finding import SEVERITIES, Finding, worst_first
from distui.presets.known_names import known_names
from distui.presets.lint import SUFFIXES, lint_file, rules
from distui.presets.lint import shell as shells
from distui.presets.lint.launches import check_text
from distui.presets.lint.surroundings import Surroundings

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PIECES = [
    *("torchrun", "accelerate launch", "deepspeed", "python -m torch.distributed.run", "exec", "srun", "export"),
    *("--nnodes", "--nproc-per-node=gpu", "--rdzv-endpoint", "-m", "-r3", "--", "-", "=", "&", "&&", "|", ";", "\n"),
    *("'", '"', "$(", ")", "(", "`", "\\", "\\\n", "#", "<<EOF", "EOF", "<<-'x'", "{", "}", "if", "fi", "do", "&>"),
    *("NCCL_TIMEOUT=1", "NCCL_DEBUG=$X", "A=(", "$A", "${A}", "9" * 5000, "²", "t.py", ">", "2>&1", " ", "\t"),
    *("NCCL_SOCKET_IFNAME=", "MASTER_PORT=29500", "HF_TOKEN=x", "--num_processes", "--num_machines", "0", "2", "8"),
]  # fmt: skip
SHELL = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=25).map(" ".join)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(
    ["auto", "cpu", "nvme", "H100:8", "best", "FSDP", "HYBRID_SHARD", 8, 2, 1, "torchrun --nnodes 2 t.py", "$X"]
)  # fmt: skip
NAMES = st.sampled_from(
    [
        *(
            name
            for program in ("accelerate", "deepspeed", "skypilot")
            for name in known_names(program)["keys"]
        ),
        *(*known_names("skypilot")["resources"], "stage", "device", "enabled", "offload_param"),
    ]
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=4), inner, max_size=5)
    ),
    max_leaves=20,
)


def sound(findings: list[Finding]) -> None:
    """What holds of every finding."""
    order = [SEVERITIES.index(one.severity) for one in findings]
    assert order == sorted(order)
    for one in findings:
        assert one.severity in rules()[one.id].severities
        assert one.text


@QUICK
@given(text=SHELL)
def test_any_shell_text(text: str) -> None:
    sound(worst_first(check_text(text, Surroundings())))
    commands = shells.read_commands(text)
    assert all(1 <= word.line <= text.count("\n") + 1 for one in commands for word in one.words)


@QUICK
@given(data=st.binary(max_size=300), suffix=st.sampled_from([*SUFFIXES, ""]))
def test_any_bytes(data: bytes, suffix: str) -> None:
    sound(lint_file(f"x{suffix}", data))


@QUICK
@given(text=st.text(max_size=200), suffix=st.sampled_from([*SUFFIXES, ""]))
def test_any_text(text: str, suffix: str) -> None:
    sound(lint_file(f"x{suffix}", text.encode("utf-8", "replace")))


@QUICK
@given(value=st.dictionaries(NAMES, VALUES, max_size=6))
def test_any_document(value: dict[str, object]) -> None:
    """JSON is YAML, too: both readers find the same values."""
    text = json.dumps(value, indent=1)
    sound(lint_file("x.json", text.encode()))
    sound(lint_file("x.yaml", text.encode()))


@QUICK
@given(
    lines=st.lists(
        st.text(alphabet="abc:-&*!|>'\"[]{}#,? \n\t<%@", max_size=12)
        | st.sampled_from(["run: |", "  x: &a", "- *a", "<<: *a", "---", "...", "resources:", "  any_of:"]),
        max_size=12,
    )
)
def test_any_yaml(lines: list[str]) -> None:
    sound(lint_file("x.yaml", "\n".join(lines).encode()))


@QUICK
@given(
    table=st.sampled_from(
        ["", "[strategy]", "[env]", "[nccl]", "[deepspeed]", "[topology]", "[preset.x]", "[[x]]"]
    ),
    key=st.text(alphabet=string.ascii_lowercase + "._", min_size=1, max_size=8),
    value=st.sampled_from(
        ["1", "'x'", "[1]", "{a = 1}", "2020-01-01", "nan", "true", "", "1e400", "'gpu'"]
    ),
)
def test_any_toml(table: str, key: str, value: str) -> None:
    for name in ("x.toml", "distui.toml"):
        sound(lint_file(name, f"{table}\n{key} = {value}\nbase = 'ddp'\n".encode()))


@QUICK
@given(
    lines=st.lists(
        st.sampled_from(
            ["import os", "from os import *", "import torch.distributed as d", "d.init_process_group()", "f(*a, **k)",
             "os.environ['RANK'] = x", "os.environ.update({**a, 'B': 1})", "os.environ.update(**k)", "match x:",
             "    case 1: pass", "if x:", "    pass", "class A(B, metaclass=M): pass", "from . import x",
             "x = lambda: 0"]
        ),
        max_size=8,
    )
)  # fmt: skip
def test_any_script(lines: list[str]) -> None:
    sound(lint_file("x.py", "\n".join(lines).encode()))


@for_each("word", ["torchrun", "deepspeed --num_nodes 2", "accelerate launch --num_machines 2"])
def test_a_launcher_with_nothing_behind_it(word: str) -> None:
    sound(worst_first(check_text(word, Surroundings())))
    for option in (
        "--num_processes",
        "--nnodes",
        "--nproc-per-node",
        "--rdzv-endpoint",
        "-r",
        "--",
        "=",
        "-",
    ):
        sound(worst_first(check_text(f"{word} {option}", Surroundings())))


@for_each(
    ("name", "text"),
    [
        ("many.sh", "".join(f"export NCL_{number}=1\n" for number in range(20_000))),
        ("beside.sh", "torchrun t.py\nx &\n" * 20_000),
        ("nested.sh", "$(" * 100_000),
        ("spaces.toml", "a" + " " * 900_000 + "\n[" + " " * 100_000),
        ("deep.json", "[" * 500_000),
        ("deep.yaml", "? " * 500_000),
        ("deep.py", "-" * 900_000),
    ],
)
def test_a_large_file_takes_seconds(name: str, text: str) -> None:
    """None of these is quadratic: they took minutes when they were."""
    sound(lint_file(name, text.encode()))
