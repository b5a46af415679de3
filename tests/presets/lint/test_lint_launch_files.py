"""lint on launch files: each rule by a batch script that breaks it, and by its twin that does not."""

from __future__ import annotations

from each import for_each

from distui.presets.finding import Finding
from distui.presets.lint import lint_file

HEAD = "head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n"
TORCHRUN = "torchrun --nnodes=2 --nproc-per-node=4"
MEGATRON = "pretrain_gpt.py --tensor-model-parallel-size 2 --micro-batch-size 4 --global-batch-size"
GPUS = "CUDA_VISIBLE_DEVICES"
C10D = "--rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID --rdzv-endpoint=$head:29511 train.py"
STATIC = f"{TORCHRUN} --master-addr=$MASTER_ADDR --master-port=12321"
ADDRESS = f"{HEAD}export MASTER_ADDR=$head\n"
DEEPSPEED = (
    '{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1}'
)
ONE_MACHINE = "distributed_type: MULTI_GPU\nnum_machines: 2\nnum_processes: 8\nmachine_rank: 0\n"


def batch(body: str, *options: str) -> str:
    """A batch script for two nodes of four GPUs, one task each."""
    given = ["--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=4", "--exclusive"]
    names = {option.partition("=")[0] for option in options}
    lines = [option for option in given if option.partition("=")[0] not in names]
    return (
        "#!/bin/bash\n"
        + "".join(f"#SBATCH {one}\n" for one in [*lines, *options] if one[-2:] != "=-")
        + body
    )


FILES = {
    "run.sh": "torchrun --nnodes=2 --nproc-per-node=4 --node-rank=$SLURM_NODEID --master-addr=$(hostname) t.py\n",
    "rank.sh": f"{STATIC} --node-rank=$SLURM_NODEID t.py\n",
    "deep.json": DEEPSPEED,
    "auto.json": '{"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}}',
    "acc.yaml": ONE_MACHINE,
    "rank.py": "",
    "old.py": "import argparse, torch\np = argparse.ArgumentParser()\np.add_argument('--local_rank', type=int)\n"
    "args = p.parse_args()\ntorch.cuda.set_device(args.local_rank)\n",
    "args.py": "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data', required=True)\n"
    "p.add_argument('--lr')\nargs = p.parse_args()\n",
    "auto.py": "model = load(device_map='auto')\n",
    "hosts": "a slots=8\nb slots=8\n",
    "env.py": "import os\nrank = int(os.environ['RANK'])\n",
    "device.py": "import os, torch\ntorch.cuda.set_device(int(os.environ.get('LOCAL_RANK', 0)))\n",
    "pl.py": "from lightning import Trainer\nTrainer(devices=4, num_nodes=2)\n",
    "ddp.py": "import os, torch.distributed as dist\ndist.init_process_group(rank=int(os.environ['SLURM_PROCID']))\n",
    "env.sh": "export WORLD_SIZE=2\n",
    "job.slurm": batch(f"{HEAD}{TORCHRUN} {C10D}"),
}

SLURM: list[tuple[str, str, str]] = [
    # torchrun for several nodes, on the first one only
    ("L56", batch(f"{HEAD}{TORCHRUN} {C10D}"), batch(f"{HEAD}srun {TORCHRUN} {C10D}")),
    (
        "L56",
        batch(f"{HEAD}torchrun --nnodes=$SLURM_NNODES --nproc-per-node=4 {C10D}"),
        batch(f"{HEAD}srun -l bash -c 'torchrun --nnodes=$SLURM_NNODES --nproc-per-node=4 {C10D}'"),
    ),
    (
        "L56",
        batch("accelerate launch --num_machines 2 --num_processes 8 --rdzv_backend c10d t.py"),
        batch("accelerate launch --num_processes 4 t.py", "--nodes=1"),
    ),
    (
        "L56",
        batch("torchrun --standalone --nproc-per-node=4 t.py"),
        batch("srun hostname\ntorchrun --standalone --nproc-per-node=4 t.py", "--nodes=1"),
    ),
    # a launcher per task
    (
        "L57",
        batch(f"{HEAD}srun {TORCHRUN} {C10D}", "--ntasks-per-node=4"),
        batch(f"{HEAD}srun --ntasks=2 {TORCHRUN} {C10D}", "--ntasks-per-node=4"),
    ),
    (
        "L57",
        batch(
            "srun torchrun --standalone --nproc-per-node=4 t.py",
            "--nodes=1",
            "--ntasks=4",
            "--ntasks-per-node=-",
        ),
        batch(
            "srun --ntasks=1 torchrun --standalone --nproc-per-node=4 t.py",
            "--nodes=1",
            "--ntasks=4",
            "--ntasks-per-node=-",
        ),
    ),
    ("L57", "mpirun -np 8 torchrun --nproc-per-node 8 t.py", "mpirun -np 8 python t.py"),
    # numbers that are expanded too early
    (
        "L58",
        batch(f"{ADDRESS}export NODE_RANK=$SLURM_NODEID\nsrun {STATIC} --node-rank=$NODE_RANK t.py"),
        batch(f"{ADDRESS}srun bash -c '{STATIC} --node-rank=$SLURM_NODEID t.py'"),
    ),
    (
        "L58",
        batch(f'{ADDRESS}srun bash -c "{STATIC} --node-rank=$SLURM_PROCID t.py"'),
        batch(f'{ADDRESS}srun bash -c "{STATIC} --node-rank=\\$SLURM_PROCID t.py"'),
    ),
    (
        "L58",
        batch(f"{ADDRESS}srun {STATIC} --node-rank=\\$SLURM_PROCID t.py"),
        batch(f"{ADDRESS}srun bash rank.sh"),
    ),
    (
        "L58",
        batch(f"{ADDRESS}srun bash -c '{STATIC} --node-rank=$SLURM_LOCALID t.py'"),
        batch(f'{ADDRESS}CMD="{STATIC} --node-rank=\\$SLURM_NODEID t.py"\nsrun bash -c "$CMD"'),
    ),
    (
        "L58",
        batch(f"{ADDRESS}export RANK=$SLURM_PROCID\nsrun python t.py", "--ntasks-per-node=4"),
        batch(f"{ADDRESS}srun bash -c 'RANK=$SLURM_PROCID python t.py'", "--ntasks-per-node=4"),
    ),
    (
        "L58",
        batch(f"{ADDRESS}cat > go.sh <<EOF\n{STATIC} --node-rank=$SLURM_NODEID t.py\nEOF\nsrun bash go.sh"),
        batch(
            f"{ADDRESS}cat > go.sh <<'EOF'\n{STATIC} --node-rank=$SLURM_NODEID t.py\nEOF\nsrun bash go.sh"
        ),
    ),
    (
        "L58",
        batch(
            'A="accelerate launch --num_machines 2 --num_processes 8 --machine_rank $SLURM_NODEID"\nsrun $A t.py'
        ),
        batch(
            'A="accelerate launch --num_machines 2 --num_processes 8 --machine_rank \\$SLURM_NODEID"\nsrun sh -c "$A t"'
        ),
    ),
    # one after another
    (
        "L59",
        batch(f"{ADDRESS}for i in 0 1; do\n  srun -N1 -n1 -r $i {STATIC} --node-rank=$i t.py\ndone"),
        batch(
            f"{ADDRESS}for i in 0 1; do\n  srun -N1 -n1 -r $i {STATIC} --node-rank=$i t.py &\ndone\nwait"
        ),
    ),
    (
        "L59",
        f"ssh a '{STATIC} --node-rank=0 t.py'\nssh b '{STATIC} --node-rank=1 t.py'",
        f"ssh a '{STATIC} --node-rank=0 t.py' &\nssh b '{STATIC} --node-rank=1 t.py'",
    ),
    (
        "L59",
        batch("srun -N1 -n1 ray start --head --block\npython t.py"),
        batch("srun -N1 -n1 ray start --head --block &\npython t.py"),
    ),
    (
        "L59",
        batch(f"{HEAD}srun -N1 -n1 {TORCHRUN} {C10D}"),
        batch(f"{HEAD}srun -N2 -n2 {TORCHRUN} {C10D}"),
    ),
    (
        "L69",
        batch(
            f"{ADDRESS}srun bash -c '{TORCHRUN} --node-rank=$SLURM_NODEID --master-addr=a --master-port=$PORT t.py'"
        ),
        batch(f"{ADDRESS}srun bash -c '{STATIC} --node-rank=$SLURM_NODEID t.py'"),
    ),
    # the end of the script is the end of the job
    (
        "L60",
        batch(f"{ADDRESS}srun {STATIC} --node-rank=0 t.py &", "--nodes=1").replace("nnodes=2", "nnodes=1"),
        batch(f"{ADDRESS}srun {STATIC} --node-rank=0 t.py &\nwait", "--nodes=1").replace(
            "nnodes=2", "nnodes=1"
        ),
    ),
    # variables
    (
        "L61",
        batch(f"{ADDRESS}srun --export=MASTER_PORT=1 python t.py"),
        batch(f"{ADDRESS}srun --export=ALL,X=1 python t.py"),
    ),
    (
        "L61",
        batch(f"{ADDRESS}srun python t.py", "--export=NONE"),
        batch(f"{ADDRESS}unset SLURM_EXPORT_ENV\nsrun python t.py", "--export=NONE"),
    ),
    (
        "L61",
        "export NCCL_DEBUG=WARN\nmpirun -np 16 --hostfile hf python t.py",
        "export NCCL_DEBUG=WARN\nmpirun -np 16 --hostfile hf -x NCCL_DEBUG python t.py",
    ),
    (
        "L62",
        batch("srun python t.py --num_workers 8", "--cpus-per-task=8"),
        batch("export SRUN_CPUS_PER_TASK=8\nsrun python t.py --num_workers 8", "--cpus-per-task=8"),
    ),
    # GPUs
    (
        "L63",
        "CUDA_VISIBLE_DEVICES=2,3 deepspeed --num_gpus 2 t.py",
        "CUDA_VISIBLE_DEVICES=2,3 deepspeed t.py",
    ),
    (
        "L63",
        "export CUDA_VISIBLE_DEVICES=0,1\ntorchrun --nproc-per-node 4 t.py",
        "export CUDA_VISIBLE_DEVICES=0,1,2,3\ntorchrun --nproc-per-node 4 t.py",
    ),
    (
        "L63",
        "CUDA_VISIBLE_DEVICES=0 accelerate launch --num_processes 2 t.py",
        "CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_processes 2 t.py",
    ),
    # ports
    (
        "L64",
        batch(
            "export MASTER_PORT=12345\ntorchrun --nproc-per-node=2 t.py",
            "--nodes=1",
            "--gpus-per-node=2",
            "--array=0-7",
        ).replace("#SBATCH --exclusive\n", ""),
        batch(
            "export MASTER_PORT=12345\ntorchrun --nproc-per-node=2 t.py",
            "--nodes=1",
            "--gpus-per-node=2",
            "--array=0-7%1",
        ),
    ),
    (
        "L64",
        "torchrun --nproc-per-node=2 --master-port=2222 a &\ntorchrun --nproc-per-node=2 --master-port=2222 b &\nwait",
        "torchrun --nproc-per-node=2 --master-port=2222 a &\ntorchrun --nproc-per-node=2 --master-port=2223 b &\nwait",
    ),
    (
        "L64",
        "accelerate launch --gpu_ids 0,1 --num_processes 2 a &\naccelerate launch --gpu_ids 2,3 --num_processes 2 b.py",
        "accelerate launch --gpu_ids 0,1 --num_processes 2 a.py\naccelerate launch --gpu_ids 2,3 --num_processes 2 b.py",
    ),
    (
        "L73",
        batch(f"{HEAD}srun apptainer exec -B /d i.sif {TORCHRUN} {C10D}"),
        batch(f"{HEAD}srun apptainer exec --nv -B /d i.sif {TORCHRUN} {C10D}"),
    ),
    (
        "L73",
        "docker run --rm -v /d:/d image torchrun --nproc-per-node 2 t.py",
        "docker run --rm --gpus all image torchrun --nproc-per-node 2 t.py",
    ),
    # options of another launcher
    (
        "L3",
        "accelerate launch --nproc_per_node 2 t.py",
        "accelerate launch --num_processes 2 t.py --nproc_per_node 2",
    ),
    ("L3", "deepspeed --nproc_per_node 2 t.py", "deepspeed --num_gpus 2 t.py"),
    # here-documents of sbatch, and scripts that it gets
    (
        "L58",
        "sbatch <<EOF\n" + batch(f"srun {STATIC} --node-rank=$SLURM_NODEID t.py") + "\nEOF\n",
        "sbatch <<'EOF'\n" + batch(f"srun bash -c '{STATIC} --node-rank=$SLURM_NODEID t.py'") + "\nEOF\n",
    ),
    ("L56", "sbatch job.slurm", "sbatch env.sh"),
    (
        "L56",
        batch("python train.py trainer.num_nodes=2"),
        batch("srun python train.py trainer.num_nodes=2"),
    ),
    ("L35", batch("source env.sh\nsrun -n 8 python t.py"), batch("source env.sh\nsrun -n 2 python t.py")),
    # fewer processes than GPUs
    (
        "L74",
        batch("srun python t.py", "--ntasks-per-node=2"),
        batch("srun python t.py", "--ntasks-per-node=4"),
    ),
    (
        "L74",
        batch("srun python t.py", "--nodes=1", "--ntasks=1", "--ntasks-per-node=4"),
        batch("srun python t.py", "--nodes=1", "--ntasks=4", "--ntasks-per-node=4"),
    ),
    (
        "L74",
        batch(f"{ADDRESS}srun python ddp.py"),
        batch(f"{ADDRESS}srun python ddp.py", "--ntasks-per-node=4"),
    ),
    # options after the script
    ("L75", "deepspeed t.py --hostfile hf", "deepspeed --num_gpus 2 t.py --deepspeed ds"),
    (
        "L75",
        "torchrun --standalone t.py --nproc_per_node 8",
        "torchrun --standalone --nproc_per_node 8 t.py",
    ),
    ("L3", "accelerate launch --learning_rate 1 t.py", "accelerate launch t.py --learning_rate 1"),
    # what the script needs
    (
        "L69",
        batch(f"{ADDRESS}srun python env.py", "--ntasks-per-node=4"),
        batch(f"{ADDRESS}srun bash -c 'RANK=$SLURM_PROCID python env.py'", "--ntasks-per-node=4"),
    ),
    ("L69", "python env.py", "RANK=0 python env.py"),
    (
        "L63",
        batch("srun python device.py", "--ntasks-per-node=4", "--gpus-per-task=1"),
        batch("srun python device.py", "--ntasks-per-node=4"),
    ),
    ("L35", batch("srun python pl.py"), batch("srun python pl.py", "--ntasks-per-node=4")),
    (
        "L69",
        "torchrun --standalone --nproc_per_node 2 old.py",
        "torchrun --standalone --nproc_per_node 2 device.py",
    ),
    (
        "L61",
        batch("MASTER_ADDR=$(hostname)\nsrun python t.py"),
        batch("export MASTER_ADDR=$(hostname)\nsrun python t.py"),
    ),
    ("L61", "NCCL_DEBUG=INFO\ntorchrun t.py", "NCCL_DEBUG=INFO torchrun t.py"),
    ("L69", "torchrun t.py\nexport NCCL_DEBUG=INFO", "export NCCL_DEBUG=INFO\ntorchrun t.py"),
    # the arguments of the script
    ("L76", "torchrun args.py --data d --learning_rate 1", "torchrun args.py --data d --lr 1"),
    ("L76", "torchrun args.py --lr 1", "torchrun args.py --data=d"),
    ("L76", "deepspeed args.py --data d", "deepspeed --no_local_rank args.py --data d"),
    (
        "L76",
        "python -m torch.distributed.launch old.py",
        "python -m torch.distributed.launch --use_env old.py",
    ),
    # words of the launcher
    (
        "L75",
        "torchrun --nproc_per_node 2 python t.py",
        "torchrun --nproc_per_node 2 --no-python python t.py",
    ),
    ("L75", "torchrun --standalone -m train.py", "torchrun --standalone -m train"),
    ("L75", "accelerate launch --multi_gpu --use_fsdp t.py", "accelerate launch --use_fsdp t.py"),
    ("L75", "deepspeed --include localhost:1 --num_gpus 2 t.py", "deepspeed --include localhost:1 t.py"),
    (
        "L35",
        "deepspeed --hostfile hosts --num_nodes 4 t.py",
        "deepspeed --hostfile hosts --num_nodes 2 t.py",
    ),
    ("L68", "if x; then\n  torchrun t.py\n", "if x; then\n  torchrun t.py\nfi"),
    # values of #SBATCH options
    ("L67", batch("srun python t.py", "--mem=64"), batch("srun python t.py", "--mem=64G")),
    (
        "L67",
        batch("srun python t.py", "--mem=8G", "--mem-per-cpu=1G"),
        batch("srun python t.py", "--mem=8G"),
    ),
    ("L67", batch("srun python t.py", "--time=24"), batch("srun python t.py", "--time=24:00:00")),
    (
        "L67",
        batch("srun python t.py", "--time=1:0:0", "--time=2:0:0"),
        batch("srun python t.py", "--time=2:0:0"),
    ),
    ("L74", batch("srun python t.py", "--gres=gpu:2"), batch("srun python t.py", "--gres=gpu:4")),
    ("L67", batch("srun python t.py", "--job-name=a b"), batch("srun python t.py", "--job-name='a b'")),
    ("L67", batch("srun python t.py", "--time=00:00:20"), batch("srun python t.py", "--time=00:20:00")),
    ("L68", "A=1 \\\n\ntorchrun t.py", "A=1 \\\ntorchrun t.py"),
    ("L68", "torchrun t.py a=1 \\ \n  b=2", "torchrun t.py a=1 \\\n  b=2"),
    ("L16", "export GLOO_SOCKET_IFNAME=^lo", "export GLOO_SOCKET_IFNAME=eth0"),
    (
        "L35",
        "torchrun --nnodes=1 --node_rank=3 t.py",
        "torchrun --nnodes=4 --node_rank=$R --master-addr=a t.py",
    ),
    ("L35", "mpirun -np 8 -H a:2,b:2 python t.py", "mpirun -np 4 -H a:2,b:2 python t.py"),
    ("L75", "singularity exec i.sif --nv torchrun t.py", "singularity exec --nv i.sif torchrun t.py"),
    ("L77", "torchrun --nproc_per_node 2 auto.py", "torchrun --nproc_per_node 2 device.py"),
    # programs that start ranks with Ray
    (
        "L35",
        batch("srun -N1 -n1 python -m verl.trainer.main_ppo trainer.n_gpus_per_node=8"),
        batch("srun -N1 -n1 python -m verl.trainer.main_ppo trainer.n_gpus_per_node=4 trainer.nnodes=2"),
    ),
    # the log
    (
        "L67",
        batch("srun python t.py", "--output=run_%j/out.log"),
        batch("srun python t.py", "--output=logs/%j.log"),
    ),
    (
        "L38",
        batch(
            f"{ADDRESS}srun bash -c '{STATIC.replace('MASTER_ADDR', 'SLURM_SUBMIT_HOST')} --node-rank=$SLURM_NODEID t'"
        ),
        batch(f"{ADDRESS}srun bash -c '{STATIC} --node-rank=$SLURM_NODEID t.py'"),
    ),
    # scontrol
    (
        "L65",
        batch(
            "srun --container-image=x bash -c 'export MASTER_ADDR=$(scontrol show hostnames | head -n1)\npython t.py'"
        ),
        batch(f"{ADDRESS}srun --container-image=x.sqsh bash -c 'python t.py'"),
    ),
    (
        "L65",
        batch(
            f"H=$(scontrol show hostnames x | head -1 || echo localhost)\nhead=$H\nsrun {TORCHRUN} {C10D}"
        ),
        batch(f"H=$(scontrol show hostnames x | head -1)\nhead=$H\nsrun {TORCHRUN} {C10D}"),
    ),
    # deepspeed
    (
        "L66",
        batch("srun deepspeed --hostfile hf --no_local_rank t.py"),
        batch("deepspeed --hostfile hf t.py"),
    ),
    (
        "L66",
        batch("srun --nodes 4 --ntasks 4 deepspeed --hostfile=hf train.py"),
        batch("srun -N1 -n1 deepspeed --num_gpus 4 t.py"),
    ),
    ("L66", batch("deepspeed t.py"), batch("deepspeed t.py", "--nodes=1")),
    # lines of the batch script
    (
        "L67",
        batch("set -e\n#SBATCH --time=1:00:00\nsrun python t.py"),
        batch("#SBATCH --time=1:00:00\nset -e\nsrun python t.py"),
    ),
    ("L67", batch("srun python t.py", "--time=$HOURS"), batch("srun python t.py", "--output=%x_%j.out")),
    (
        "L67",
        batch("srun python t.py", "--ntask-per-node=4"),
        batch("srun python t.py", "--container-mounts=/a:/a"),
    ),
    ("L67", batch("srun python t.py", "--mem = 0"), batch("srun python t.py", "--mem 0")),
    ("L67", batch("srun python t.py").removeprefix("#!/bin/bash\n"), "# SBATCH comment\npython t.py"),
    ("L67", batch("srun python t.py").replace("\n", "\r\n"), batch("srun python t.py")),
    (
        "L68",
        "torchrun --nproc-per-node 2 \\ \n  --max-restarts 1 t.py",
        "torchrun --nproc-per-node 2 \\\n  --max-restarts 1 t.py",
    ),
    (
        "L68",
        "torchrun --nproc-per-node 2 \\\n  # --max-restarts 1 \\\n  --tee 3 t.py",
        "A=(\n  --nproc-per-node 2\n  # --tee 3\n  --tee 1\n)\ntorchrun ${A[@]} t.py",
    ),
    (
        "L68",
        "torchrun --nproc-per-node 2 t.py \\\n  --lr 1\n  --epochs 2",
        "case $1 in\n  -h|--help) exit ;;\n  --epochs) shift ;;\nesac",
    ),
    ("L68", "MASTER_PORT = 1234", "MASTER_PORT=1234"),
    (
        "L69",
        batch(
            "srun python -m torch.distributed.run --standalone --nproc_per_node=$SLURM_GPUS_PER_NODE t.py",
            "--nodes=1",
            "--gres=gpu:4",
            "--gpus-per-node=-",
        ),
        batch(
            "srun python -m torch.distributed.run --standalone --nproc_per_node=$SLURM_GPUS_ON_NODE t.py",
            "--nodes=1",
        ),
    ),
    (
        "L69",
        "MASTER_ADDRESS=a\ntorchrun --nnodes 2 --node_rank $R --master_addr $MASTER_ADDRES t.py",
        "MASTER_ADDRESS=a\ntorchrun --nnodes 2 --node_rank $R --master_addr $MASTER_ADDRESS t.py",
    ),
    # the address of the first node
    ("L38", batch("srun bash run.sh"), batch("export MASTER_ADDR=$(hostname)\nsrun bash rank.sh")),
    (
        "L38",
        batch(f"srun bash -c '{TORCHRUN} --rdzv-backend=c10d --rdzv-endpoint=$(hostname):29511 t.py'"),
        batch(f"srun {TORCHRUN} --rdzv-backend=c10d --rdzv-endpoint=$(hostname):29511 t.py"),
    ),
    (
        "L38",
        batch(
            f"{HEAD}srun bash -c '{TORCHRUN} --rdzv-backend=c10d --rdzv-id=$RANDOM --rdzv-endpoint=a:29511 t.py'"
        ),
        batch(
            f"{HEAD}srun {TORCHRUN} --rdzv-backend=c10d --rdzv-id=$RANDOM --rdzv-endpoint=$head:29511 t.py"
        ),
    ),
    (
        "L38",
        batch("export MASTER_ADDR=$SLURM_JOB_NODELIST\nsrun python t.py", "--ntasks-per-node=4"),
        batch("export MASTER_ADDR=$SLURM_JOB_NODELIST\nsrun python t.py", "--nodes=1"),
    ),
    (
        "L38",
        batch("export MASTER_ADDR=localhost\nsrun python t.py", "--ntasks-per-node=4"),
        batch("export MASTER_ADDR=localhost\nsrun python t.py", "--nodes=1", "--ntasks-per-node=4"),
    ),
    (
        "L38",
        batch(f"srun {TORCHRUN} --node-rank=0 --master-addr=a t.py"),
        batch(f"{ADDRESS}srun bash rank.sh"),
    ),
    (
        "L35",
        batch(f"{HEAD}srun torchrun --nnodes=4 --nproc-per-node=4 {C10D}"),
        batch(f"{HEAD}srun torchrun --nnodes=2 --nproc-per-node=$SLURM_GPUS_ON_NODE {C10D}"),
    ),
    (
        "L35",
        batch("torchrun --standalone --nproc-per-node=8 t.py", "--nodes=1"),
        batch(
            "torchrun --standalone --nproc-per-node=4 t.py",
            "--nodes=1",
            "--gres=gpu:a100:4",
            "--gpus-per-node=-",
        ),
    ),
    (
        "L35",
        batch("srun python t.py trainer.devices=8 trainer.num_nodes=2", "--ntasks-per-node=4"),
        batch("srun python t.py trainer.devices=4 trainer.num_nodes=2", "--ntasks-per-node=4"),
    ),
    (
        "L2",
        batch("srun accelerate launch --num_machines 2 --num_processes 4 --rdzv_backend c10d t.py"),
        batch("srun accelerate launch --num_machines 2 --num_processes 8 --rdzv_backend c10d t.py"),
    ),
    # batch sizes
    (
        "L17",
        "torchrun --nproc-per-node 8 t.py --deepspeed deep.json",
        "torchrun --nproc-per-node 16 t.py --deepspeed deep.json",
    ),
    (
        "L17",
        "deepspeed --num_gpus 8 t.py --deepspeed_config deep.json",
        "deepspeed --num_gpus 16 t.py --deepspeed_config deep.json",
    ),
    (
        "L17",
        "torchrun --nproc-per-node 8 t.py --deepspeed auto.json --per_device_train_batch_size 4",
        "torchrun --nproc-per-node 8 t.py --deepspeed auto.json --per_device_train_batch_size 8",
    ),
    (
        "L17",
        batch(f"{ADDRESS}srun bash -c '{STATIC} --node-rank=$SLURM_NODEID {MEGATRON} 24'"),
        batch(f"{ADDRESS}srun bash -c '{STATIC} --node-rank=$SLURM_NODEID {MEGATRON} 32'"),
    ),
    (
        "L17",
        "python3 -m verl.trainer.main_ppo data.train_batch_size=60 trainer.n_gpus_per_node=8 trainer.nnodes=1",
        "python3 -m verl.trainer.main_ppo data.train_batch_size=64 trainer.n_gpus_per_node=8 trainer.nnodes=1",
    ),
]


TASK = """\
num_nodes: 2
resources:
  accelerators: H100:8
  network_tier: best
workdir: .
run: |
  HEAD=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc-per-node=8 --node-rank=$SKYPILOT_NODE_RANK --master-addr=$HEAD \\
    --master-port=8008 rank.py
"""
PYTORCH = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: gpt}
spec:
  nprocPerNode: "8"
  pytorchReplicaSpecs:
    Master:
      replicas: 1
      template: &pod
        spec:
          containers:
            - name: pytorch
              image: example/train:1
              command: [torchrun, --nproc-per-node=8, train.py]
              resources: {limits: {nvidia.com/gpu: 8}}
              volumeMounts: [{name: shm, mountPath: /dev/shm}]
          volumes: [{name: shm, emptyDir: {medium: Memory}}]
    Worker:
      replicas: 3
      template: *pod
"""
TRAIN = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: gpt}
spec:
  runtimeRef: {name: torch-distributed}
  trainer:
    numNodes: 2
    numProcPerNode: 8
    command: [torchrun, train.py]
    resourcesPerNode: {limits: {nvidia.com/gpu: 8}}
"""
JOBSET = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: gpt}
spec:
  replicatedJobs:
    - name: workers
      template:
        spec:
          parallelism: 2
          completions: 2
          template:
            spec:
              restartPolicy: Never
              containers:
                - name: main
                  image: example/train:1
                  env: [{name: MASTER_ADDR, value: gpt-workers-0-0.gpt}]
                  command:
                    - bash
                    - -c
                    - |
                      torchrun --nnodes=2 --nproc-per-node=8 --node-rank=$JOB_COMPLETION_INDEX \\
                        --master-addr=$MASTER_ADDR --master-port=3389 train.py
                  resources: {limits: {nvidia.com/gpu: 8}}
                  volumeMounts: [{name: shm, mountPath: /dev/shm}]
              volumes: [{name: shm, emptyDir: {medium: Memory}}]
"""
MPI = """\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
spec:
  slotsPerWorker: 8
  mpiReplicaSpecs:
    Launcher:
      template: {spec: {containers: [{name: l, command: [mpirun, -np, "16", --bind-to, none, python, t.py, -n, "100"]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: w, resources: {limits: {nvidia.com/gpu: 8}}}]}}
"""
RAY = """\
apiVersion: ray.io/v1
kind: RayJob
spec:
  entrypoint: python train.py
  rayClusterSpec:
    rayVersion: 2.46.0
    headGroupSpec:
      template: {spec: {containers: [{name: h, image: "rayproject/ray:2.46.0"}]}}
    workerGroupSpecs:
      - groupName: gpu
        replicas: 4
        minReplicas: 1
        maxReplicas: 4
        rayStartParams: {num-gpus: "8"}
        template: {spec: {containers: [{name: w, image: "rayproject/ray:2.46.0-gpu",
                                        resources: {limits: {nvidia.com/gpu: 8}},
                                        volumeMounts: [{name: shm, mountPath: /dev/shm}]}],
                          volumes: [{name: shm, emptyDir: {medium: Memory}}]}}
"""
SHM = "              volumeMounts: [{name: shm, mountPath: /dev/shm}]\n"

EDITS: list[tuple[str, str, str, str]] = [
    ("L70", TASK, "workdir: .\n", ""),
    ("L8", TASK, "rank.py", "gone.py"),
    ("L58", PYTORCH, "--nproc-per-node=8, train.py", "--node-rank=$RANK, train.py"),
    ("L35", PYTORCH, "torchrun, --nproc", "torchrun, --nnodes=2, --nproc"),
    ("L69", TASK, "$SKYPILOT_NODE_RANK", "$SKYPILOT_RANK"),
    ("L74", TASK, "torchrun --nnodes=$SKYPILOT_NUM_NODES --nproc-per-node=8", "RANK=$R python rank.py"),
    ("L69", TASK, "run: |\n", "setup: conda activate gpt\nrun: |\n"),
    ("L72", PYTORCH, "limits: {nvidia.com/gpu: 8}", "requests: {memory: 2Gi}, limits: {memory: 1Gi, nvidia.com/gpu: 8}"),
    ("L72", RAY, "python train.py", "python train.py --num-workers 64"),
    ("L31", RAY, "  entrypoint:", "  ttlSecondsAfterFinished: 60\n  entrypoint:"),
    ("L31", PYTORCH, "  nprocPerNode:", "  cleanPodPolicy: None\n  nprocPerNode:"),
    ("L31", TRAIN, "    numNodes: 2\n", "    nodes: 2\n    numNode: 2\n"),
    ("L69", TASK, "run: |\n", "setup: echo $SKYPILOT_NODE_RANK > x\nrun: |\n"),
    ("L38", TASK, "--master-addr=$HEAD", "--master-addr=$SKYPILOT_NODE_IPS"),
    ("L38", TASK, "head -n1", "tail -n1"),
    ("L72", PYTORCH, "[torchrun, --nproc-per-node=8, train.py]", "[python, train.py]"),
    ("L72", PYTORCH, "image: example/train:1\n", "image: i\n              env: [{name: RANK, value: '0'}]\n"),
    ("L72", JOBSET, "completions: 2", "completions: 2\n          completionMode: NonIndexed"),
    ("L38", TASK, "--master-addr=$HEAD", "--master-addr=$(hostname)"),
    ("L38", JOBSET, "value: gpt-workers-0-0.gpt", "value: localhost"),
    ("L72", PYTORCH, "name: pytorch", "name: trainer"),
    ("L72", PYTORCH, "replicas: 1", "replicas: 2"),
    ("L72", PYTORCH, 'nprocPerNode: "8"', 'nprocPerNode: "4"'),
    ("L72", PYTORCH, "{limits: {nvidia.com/gpu: 8}}", "{requests: {nvidia.com/gpu: 8}}"),
    ("L72", PYTORCH, "{limits: {nvidia.com/gpu: 8}}", "{requests: {nvidia.com/gpu: 4}, limits: {nvidia.com/gpu: 8}}"),
    ("L72", PYTORCH, SHM, ""),
    ("L72", PYTORCH, "[torchrun, --nproc-per-node=8, train.py]", "[torchrun, --nproc-per-node=8, train.py, '&&', sync]"),
    ("L72", PYTORCH, "name: shm, mountPath", "name: share, mountPath"),
    ("L72", PYTORCH, "kubeflow.org/v1", "batch/v1"),
    ("L72", TRAIN, "  runtimeRef: {name: torch-distributed}\n", ""),
    ("L72", TRAIN, "numProcPerNode: 8", "numProcPerNode: 16"),
    ("L72", JOBSET, "completions: 2", "completions: 4"),
    ("L72", JOBSET, "restartPolicy: Never", "restartPolicy: Always"),
    ("L72", JOBSET, "gpt-workers-0-0.gpt", "gpt-worker-0-0.gpt"),
    ("L72", MPI, '"16"', '"32"'),
    ("L72", MPI, "slotsPerWorker: 8", "slotsPerWorker: 16"),
    ("L72", RAY, "maxReplicas: 4", "maxReplicas: 2"),
    ("L72", RAY, "rayVersion: 2.46.0", "rayVersion: 2.9.0"),
    ("L72", RAY, 'num-gpus: "8"', 'num-gpus: "4"'),
    ("L72", RAY, "entrypoint: python train.py", "entrypoint: torchrun --nnodes=1 train.py"),
]  # fmt: skip


@for_each("text", [TASK, PYTORCH, TRAIN, JOBSET, MPI, RAY])
def test_healthy_files(text: str) -> None:
    assert [(one.id, one.text) for one in lint(text, "job.yaml")] == []


@for_each(("id", "text", "right", "wrong"), EDITS)
def test_an_edit_breaks_a_rule(id: str, text: str, right: str, wrong: str) -> None:
    assert text.count(right) == 1
    found = lint(text.replace(right, wrong), "job.yaml")
    assert {one.id for one in found} == {id}, [one.text for one in found]


def lint(text: str, name: str = "run.slurm") -> list[Finding]:
    return lint_file(
        name,
        text.encode(),
        exists=lambda name: name in FILES,
        read=lambda name: FILES[name].encode() if name in FILES else None,
    )


def test_a_task_s_ranks_are_those_of_its_nodes() -> None:
    """2 nodes of 8 GPUs are 16 ranks: 64 is right for 4 × 1 × 16, and wrong on one node."""
    run = "--master-port=8008 rank.py --deepspeed deep.json"
    ranks = TASK.replace("--master-port=8008 rank.py", run).replace("per-node=8", "per-node=gpu")
    assert lint(ranks, "task.yaml") == []
    assert [one.id for one in lint(ranks.replace("H100:8", "H100:4"), "task.yaml")] == ["L17"]


def test_a_key_that_is_given_twice() -> None:
    (one,) = lint('{"train_batch_size": 8, "train_batch_size": 16}', "ds.json")
    assert (one.id, one.value) == ("L31", "train_batch_size")


def test_fsdp_without_a_dimension_to_shard_over() -> None:
    sizes = "parallelism_config:\n  parallelism_config_tp_size: 2\n  parallelism_config_dp_shard_size: "
    head = f"distributed_type: FSDP\nnum_processes: 4\n{sizes}"
    assert [one.id for one in lint(f"{head}1\n", "fsdp.yaml")] == ["L18"]
    assert lint(f"{head}2\n", "fsdp.yaml") == []


def test_the_launch_of_an_image() -> None:
    listed = 'FROM x\nENTRYPOINT ["torchrun", "--nproc-per-node=$GPUS", "train.py"]\n'
    (one,) = lint(listed, "Dockerfile")
    assert (one.id, one.where) == ("L58", "Dockerfile:2")
    assert lint("FROM x\nRUN echo $X\nCMD torchrun --nproc-per-node=$GPUS train.py\n", "Dockerfile") == []


@for_each(("id", "bad", "good"), SLURM)
def test_a_rule_and_its_twin(id: str, bad: str, good: str) -> None:
    found = lint(bad)
    assert [one.id for one in found] == [id], [one.text for one in found]
    assert [(one.id, one.text) for one in lint(good)] == []
