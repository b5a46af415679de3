"""lint on shell texts and command lines: each rule by a text that breaks it, and by its twin that does not."""

from __future__ import annotations

from collections.abc import Callable

from each import for_each

from distui.presets.finding import Finding
from distui.presets.lint import lint_command
from distui.presets.lint.launcher_calls import read_script
from distui.presets.lint.launches import check_text
from distui.presets.lint.shell import MOST_TEXT, read_commands
from distui.presets.lint.surroundings import Surroundings

STATIC = "torchrun --nnodes=2 --nproc-per-node=8 --node-rank=$RANK --master-addr=$HEAD --master-port=8008 train.py"
ACCELERATE = "accelerate launch --rdzv_backend c10d"
C10D = "torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=$HEAD:8008 --rdzv-id=7 train.py"

CASES: list[tuple[str, str, str]] = [
    ("L1", "export NCCL_TIMEOUT=1800", "export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1800"),
    ("L1", "NCCL_TIMEOUT=1800 torchrun t.py", "NCCL_DEBUG=INFO torchrun t.py"),
    ("L2", "accelerate launch --num_machines 2 --num_processes 8 t.py",
     "accelerate launch --num_machines 2 --num_processes 16 t.py"),
    ("L2", "accelerate launch --num_machines 3 --num_processes 16 t.py",
     "accelerate launch --num_machines 1 --num_processes 16 t.py"),
    ("L3", "torchrun --nprocs-per-node 2 train.py", "torchrun --nproc-per-node 2 train.py --nprocs-per-node 2"),
    ("L3", "python3 -m torch.distributed.run --rdzv_endpont=h:1 t.py",
     "python3 -m torch.distributed.run --rdzv_endpoint=h:1 t.py"),
    ("L3", "torchrun --epochs 3 $SCRIPT", "torchrun --standalone $SCRIPT --epochs 3"),
    ("L3", "srun torchrun --standalone --nproc 2 t.py", "srun torchrun --standalone --nproc_per 2 t.py"),
    ("L4", C10D.replace("train.py", "--node_rank=$RANK train.py"), C10D),
    ("L5", f"{STATIC}\ntensorboard --logdir logs &", f"tensorboard --logdir logs &\n{STATIC}"),
    ("L5", f"exec {STATIC}\necho done", f"{STATIC}\necho done"),
    ("L5", f"if [ $R = 0 ]; then\n  {STATIC} | tee log\n  (tensorboard) &\nfi",
     f"if [ $R = 0 ]; then\n  {STATIC} | tee log &\n  tensorboard &\nelse\n  tail -f log &\nfi\nwait"),
    ("L6", "export HF_HOME=/x\ndeepspeed --hostfile h t.py", "export NCCL_DEBUG=WARN\ndeepspeed --hostfile h t.py"),
    ("L6", "export HF_HOME=/x\ndeepspeed --num_nodes 2 t.py",
     "export HF_HOME=/x\necho HF_HOME=/x > ~/.deepspeed_env\ndeepspeed --num_nodes 2 t.py"),
    ("L6", "HF_HOME=/x deepspeed -H h t.py", "HF_HOME=/x deepspeed --num_gpus 8 t.py"),
    ("L9", "export NCCL_SOCKET_IFNAME=eth0", "export NCCL_SOCKET_IFNAME==eth0"),
    ("L9", "export NCCL_NET_GDR_LEVEL=5", "export NCCL_NET_GDR_LEVEL=SYS"),
    ("L10", "export CUDA_VISIBLE_DEVICES=\ntorchrun --nproc-per-node gpu t.py",
     "export CUDA_VISIBLE_DEVICES=0,1\ntorchrun --nproc-per-node gpu t.py"),
    ("L15", "export NCCL_SOCKET_IFNAMES=eth", "export NCCL_SOCKET_IFNAME=eth"),
    ("L16", "export NCCL_DEBUG=LOUD", "export NCCL_DEBUG=$LEVEL"),
    ("L22", "torchrun --nproc-per-node 2 --master_port 29500 t.py", "torchrun --nproc-per-node 2 t.py"),
    ("L22", "export MASTER_PORT=29500", "export MASTER_PORT=8123"),
    ("L36", "export MY_TOKEN=hf_abc", "export MAX_TOKEN_NUM=1024 SSH_KEY=~/.ssh/id HF_TOKEN=<yours>"),
    ("L36", "export WANDB_API_KEY=0123456789abcdef", "export WANDB_API_KEY=$(cat ~/.key)"),
    ("L38", "torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=localhost:8008 t.py", C10D),
    ("L38", "torchrun --nnodes=2 --standalone t.py", "torchrun --nnodes=1 --standalone t.py"),
    ("L38", "torchrun --nnodes=2 --nproc-per-node=8 --master-addr=$HEAD train.py", STATIC),
    ("L38", STATIC.replace("$HEAD", "127.0.0.1"), STATIC.replace("$HEAD", "127.0.0.1").replace("$RANK", "0")),
    ("L38", "accelerate launch --num_machines 2 --num_processes 16 --main_process_ip 127.0.0.1 t.py",
     "accelerate launch --num_machines 2 --num_processes 16 --main_process_ip $HEAD t.py"),
    ("L40", "export CUDA_LAUNCH_BLOCKING=1", "# export CUDA_LAUNCH_BLOCKING=1"),
]  # fmt: skip


def lint_text(text: str, exists: Callable[[str], bool] | None = None) -> list[Finding]:
    return check_text(text, Surroundings(exists=exists))


@for_each(("id", "bad", "good"), CASES)
def test_a_rule_and_its_twin(id: str, bad: str, good: str) -> None:
    assert [one.id for one in lint_text(bad)] == [id]
    assert lint_text(good) == []


GIVEN = {"RANK": "$", "HEAD": "$", "R": "$", "OPTIONS": "$"}
NODES = Surroundings(file="run.sh", nnodes=2, gpus=8, is_task=True, env=GIVEN)

ON_NODES: list[tuple[str, str, str, str]] = [
    ("L2", "error", f"{ACCELERATE} --num_machines 2 --num_processes 8 t.py",
     f"{ACCELERATE} --num_machines 2 --num_processes 16 t.py"),
    ("L35", "error", STATIC.replace("nnodes=2", "nnodes=4"), STATIC),
    ("L35", "error", C10D.replace("node=8", "node=16"), C10D),
    ("L35", "warning", C10D.replace("node=8", "node=4"), C10D.replace("node=8", "node=gpu")),
    ("L35", "warning", C10D.replace("--nproc-per-node=8", ""), C10D.replace("--nproc-per-node=8", "$OPTIONS")),
    ("L35", "error", "torchrun --nproc-per-node=8 train.py", C10D.replace("nnodes=2", "nnodes=$SKYPILOT_NUM_NODES")),
    ("L66", "warning", "deepspeed --num_gpus 8 t.py", "deepspeed --no_ssh --node_rank $R t.py"),
    ("L35", "error", f"{ACCELERATE} --num_machines 4 --num_processes 32 t.py",
     f"{ACCELERATE} --num_machines 2 --num_processes 16 t.py"),
    ("L38", "error", "accelerate launch --num_machines 2 --num_processes 16 t.py",
     f"{ACCELERATE} --num_machines 2 --num_processes 16 t.py"),
    ("L38", "error", STATIC.replace("$RANK", "0"), STATIC),
    ("L38", "error", "accelerate launch --num_machines 2 --machine_rank 0 --num_processes 16 t.py",
     "accelerate launch --num_machines 2 --machine_rank $SKYPILOT_NODE_RANK --num_processes 16 t.py"),
]  # fmt: skip


@for_each(("id", "severity", "bad", "good"), ON_NODES)
def test_what_is_known_of_the_nodes_counts(id: str, severity: str, bad: str, good: str) -> None:
    assert [(one.id, one.severity, one.where) for one in check_text(bad, NODES)] == [
        (id, severity, "run.sh:1")
    ]
    assert check_text(good, NODES) == []


def test_files_that_a_command_names() -> None:
    text = "accelerate launch --config_file conf/a.yaml t.py\ndeepspeed t.py --deepspeed ds.json\n"
    around = Surroundings(file="x.sh", exists=lambda name: name == "ds.json")
    (one,) = check_text(text, around)
    assert (one.id, one.severity, one.where, one.value) == ("L8", "note", "x.sh:1", "conf/a.yaml")
    assert check_text(text, Surroundings(exists=lambda _: True)) == []


def only(text: str) -> Finding:
    (one,) = lint_text(text)
    return one


def test_the_line_is_that_of_the_word() -> None:
    before = "#!/bin/bash\nset -e\n\ncat <<EOF\ntorchrun --nope x.py\nEOF\n"
    one = only(before + "torchrun \\\n  --nnodes 1 \\\n  --nproc_pernode 2 \\\n  t.py\n")
    assert (one.where, one.value, one.remedy) == (
        "line 9",
        "--nproc_pernode",
        "Did you mean --nproc-per-node?",
    )


def test_variables_are_followed_where_they_have_one_value() -> None:
    twice = "N=8\nif x; then N=16; fi\n"
    launch = "accelerate launch --num_machines 2 --num_processes $N t.py"
    assert only(f"N=8\n{launch}").id == "L2"
    assert lint_text(f"{twice}{launch}") == []


def test_what_the_lost_variables_are_called() -> None:
    one = only(
        "export OMP_NUM_THREADS=4\nexport NCCL_DEBUG=WARN\nexport TORCH_NCCL_TRACE_BUFFER_SIZE=2000\ndeepspeed -H h t.py"
    )
    assert "OMP_NUM_THREADS, TORCH_NCCL_TRACE_BUFFER_SIZE do not arrive" in one.text
    assert ".deepspeed_env" in one.remedy


@for_each(
    "text",
    [
        "pip install deepspeed accelerate",
        "which torchrun && echo torchrun --nope",
        "accelerate config --config_file x.yaml",
        "python train.py --nprocs-per-node 2",
        "alias t='torchrun --nope'",
    ],
)
def test_what_starts_nothing_is_left_alone(text: str) -> None:
    assert read_script(text).launches == []
    assert lint_text(text) == []


@for_each(
    "command",
    [
        "torchrun --nope t.py",
        "/opt/venv/bin/torchrun --nope t.py",
        "exec nohup torchrun --nope t.py",
        "CUDA_VISIBLE_DEVICES=0 python -m torch.distributed.run --nope t.py",
        "uv run --no-sync torchrun --nope t.py",
        "numactl -N 0 torchrun --nope t.py",
        "cd /w && time torchrun --nope t.py 2>&1 | tee log",
        "oumi distributed torchrun --nope -m oumi train",
        "for i in 1 2; do torchrun --nope t.py; done",
        "(cd /w; torchrun '--nope' t.py)",
        'torchrun "--nope" t.py',
        "torchrun \\\n--nope t.py",
        "main() {\n  torchrun --nope t.py\n}",
        "srun bash -c 'torchrun --nope t.py'",
        'CMD="torchrun \\\n  --nope t.py"\necho $CMD\neval ${CMD}',
        'export RUN="torchrun --nope $X"\nsrun $RUN t.py',
        "mpiexec -n 2 torchrun --nope t.py",
        'L="torchrun --nope"\nexport CMD="$L $S --a b"\nsrun $CMD',
    ],
)
def test_a_launcher_is_found_behind_what_starts_it(command: str) -> None:
    assert [one.program for one in read_script(command).launches] == ["torchrun"]
    assert only(command).value == "--nope"


FILES = {
    "acc.yaml": "distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 8\nmachine_rank: 0\n"
    "main_process_ip: 10.0.0.1\nmain_process_port: 29501\n",
    "task.yaml": "num_nodes: 1\nsetup: pip install torch==2.1.2\nrun: torchrun --standalone t.py\n",
    "ds.json": '{"zero_optimization": {"stage": 4}}',
    "t.py": "",
    "gpu.py": "import torch\ntorch.cuda.set_device(0)\n",
    "spawn.py": "import torch.multiprocessing as mp\nmp.spawn(print)\n",
}


@for_each(
    ("command", "found"),
    [
        ("accelerate launch --config_file acc.yaml t.py", [("L2", "acc.yaml:3")]),
        ("accelerate launch --config_file=acc.yaml -m pkg", [("L2", "acc.yaml:3")]),
        ("deepspeed t.py --deepspeed_config ds.json", [("L30", "ds.json:1")]),
        ("sky launch -c x task.yaml", [("L47", "task.yaml:2")]),
        ("A=1 sky jobs launch task.yaml -y", [("L47", "task.yaml:2")]),
        ("sky launch gone.yaml", [("L8", "line 1")]),
        ("sky status gone.yaml", []),
        ("accelerate launch --config_file gone.yaml t.py", [("L8", "line 1")]),
        ("torchrun --standalone gone.py --out x.py", [("L8", "line 1")]),
        ("torchrun --standalone gone.py>log 2>&1", [("L8", "line 1")]),
        ("torchrun --standalone gone.py&>log", [("L8", "line 1")]),
        ("cat<<EOF\ntorchrun --standalone gone.py\nEOF", []),
        ("torchrun --standalone t.py", []),
        ("torchrun --standalone gpu.py", [("L48", "gpu.py:2")]),
        ("accelerate launch --cpu gpu.py", [("L48", "gpu.py:2")]),
        ("torchrun --nproc_per_node 2 spawn.py", [("L24", "spawn.py:2")]),
        ("torchrun --nproc_per_node 1 spawn.py", []),
        ("torchrun --standalone -m pkg.train gone.py", []),
        ("accelerate launch --no_python prog gone.py", []),
        ("torchrun --standalone $SCRIPT.py", []),
        ("python gone.py", []),
    ],
)
def test_a_command_is_checked_with_the_files_that_it_names(
    command: str, found: list[tuple[str, str]]
) -> None:
    findings = lint_command(
        command,
        FILES.__contains__,
        lambda name: FILES[name].encode() if name in FILES else None,
        gpus=False,
    )
    assert [(one.id, one.where) for one in findings] == found


def test_only_the_disk_knows_which_files_are_there() -> None:
    command = "accelerate launch --config_file configs/recipes/phi3/dpo/accelerate.yaml t.py"
    assert lint_text(command) == []
    assert lint_text(command, lambda name: True) == []
    assert [one.id for one in lint_text(command, lambda name: False)] == ["L8"]


def marks(text: str) -> str:
    """The first words of all commands, an & behind each of those in the background."""
    return " ".join(one.words[0].text + ("&" if one.background else "") for one in read_commands(text))


@for_each(
    ("text", "expected"),
    [
        ("a & b", "a& b"),
        ("a && b & c", "a& b& c"),
        ("(a; b) & c", "a& b& c"),
        ("{ a; b; } & c; d &", "a& b& c d&"),
        ("( (a; b) & c ) & d", "a& b& c& d"),
        ("a | b\nc &", "a b c&"),
        ("(a; (b; c)&)", "a b& c&"),
    ],
)
def test_lists_in_the_background(text: str, expected: str) -> None:
    assert marks(text) == expected


@for_each(
    "text",
    [
        "(" * 700 + "a;" * 60_000 + ")&" * 700,
        "if a; then b; " * 9_000,
        "! " * 60_000 + "a",
        "env " * 30_000,
        "srun " * 20_000 + "torchrun x.py",
        "torchrun " + "--foo " * 20_000,
        "bash -c " * 15_000,
        "cat <<A " * 15_000,
        ">" * 120_000,
        "a$" * 60_000 + ">",
    ],
)
def test_what_took_the_square_of_a_text_is_read(text: str) -> None:
    """Some took minutes, or gigabytes: a limit of the suite would end them."""
    assert len(text) <= MOST_TEXT
    assert {one.id for one in lint_text(text)} <= {"L3", "L68"}


def test_a_text_that_nobody_has_written_is_named_and_not_read() -> None:
    (one,) = lint_text("torchrun --nope t.py\n" * 10_000)
    assert (one.id, one.severity, one.where) == ("L41", "warning", "line 1")
    assert one.text == "The text is too large to be read (more than 128 KiB): nothing in it was checked."
