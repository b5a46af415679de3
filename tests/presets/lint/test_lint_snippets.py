"""Recipes as they stand in widely copied documents, with the traps that are in them, and as they should be."""

from __future__ import annotations

from each import for_each

from distui.presets.finding import failed
from distui.presets.lint import lint_file

FOUR_GPUS = """\
# a tutorial on DDP and FSDP with four GPUs
torchrun --nnodes 1 --nprocs-per-node 2 train_ddp.py
"""
FOUR_GPUS_NEWER = "torchrun --nnodes 1 --nproc-per-node 4 train_ddp.py\n"
TWO_MACHINES = """\
# two nodes with 8 GPUs each
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
machine_rank: 0
main_process_ip: 10.0.0.1
main_process_port: 29500
main_training_function: main
mixed_precision: bf16
num_machines: 2
num_processes: 8
"""
ONE_MACHINE = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
mixed_precision: bf16
num_machines: 1
num_processes: 8
"""
RENDEZVOUS = """\
num_nodes: 2
resources:
  accelerators: H100:8
  network_tier: best
run: |
  MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  torchrun \\
    --nnodes=$SKYPILOT_NUM_NODES \\
    --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE \\
    --node_rank=$SKYPILOT_NODE_RANK \\
    --master_addr=$MASTER_ADDR \\
    --master_port=29500 \\
    --rdzv_backend=c10d \\
    --rdzv_endpoint=$MASTER_ADDR:29500 \\
    train.py
"""
HEAD_ONLY = """\
num_nodes: 2
resources:
  accelerators: H100:8
  network_tier: premium # GCP only
envs:
  NCCL_TIMEOUT: 1800
  OMP_NUM_THREADS: 8
run: |
  if [ "${SKYPILOT_NODE_RANK}" == "0" ]; then
    echo "$SKYPILOT_NODE_IPS" | awk '{print $1 " slots=8"}' > hostfile
    deepspeed --hostfile hostfile --num_nodes 2 --num_gpus 8 train.py --deepspeed ds_config.json
    tensorboard --logdir ./logs --port 6006 &
  fi
"""
HYBRID = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: FSDP
downcast_bf16: 'no'
enable_cpu_affinity: false
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_forward_prefetch: true
  fsdp_offload_params: false
  fsdp_sharding_strategy: HYBRID_SHARD
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_use_orig_params: true
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 4
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""
OUMI_JOB = """\
name: phi3-dpo-fsdp
resources:
  cloud: gcp
  accelerators: "A100:2"
  any_of:
    - use_spot: true
    - use_spot: false
  disk_size: 500
workdir: .
file_mounts:
  ~/.netrc: ~/.netrc
envs:
  WANDB_PROJECT: oumi-train
  OUMI_RUN_NAME: phi3.dpo
  ACCELERATE_LOG_LEVEL: info
  TOKENIZERS_PARALLELISM: false
setup: |
  set -e
  pip install '.[train]'
run: |
  set -e
  source ./configs/examples/misc/sky_init.sh
  accelerate launch --num_machines $OUMI_NUM_NODES --num_processes $OUMI_TOTAL_NUM_GPUS \\
    --config_file configs/recipes/phi3/dpo/accelerate.yaml -m oumi.train -c x.yaml --training.output_dir out
"""
STATIC = """\
name: minGPT-ddp
resources:
  cpus: 4+
  accelerators: L4
num_nodes: 2
setup: |
  git clone --depth 1 https://github.com/pytorch/examples || true
  cd examples/distributed/minGPT-ddp
  uv pip install -r requirements.txt "numpy<2" "torch"
run: |
  cd examples/distributed/minGPT-ddp/mingpt
  export LOGLEVEL=INFO
  MASTER_ADDR=$(echo "$SKYPILOT_NODE_IPS" | head -n1)
  echo "Starting distributed training, head node: $MASTER_ADDR"
  torchrun \\
  --nnodes=$SKYPILOT_NUM_NODES \\
  --nproc_per_node=$SKYPILOT_NUM_GPUS_PER_NODE \\
  --master_addr=$MASTER_ADDR \\
  --master_port=8008 \\
  --node_rank=${SKYPILOT_NODE_RANK} \\
  main.py
"""
HERE = """\
torchrun --standalone --nproc-per-node gpu --no-python mdl train --config c.toml
torchrun --nnodes $NUM_NODES --nproc-per-node gpu --rdzv-backend c10d --rdzv-endpoint $HOST:29400 \\
  --rdzv-id $JOB_ID --no-python mdl train --config c.toml
"""
ZERO3 = """\
{
  "bf16": {"enabled": true},
  "zero_optimization": {
    "stage": 3,
    "overlap_comm": true,
    "contiguous_gradients": true,
    "sub_group_size": 1e9,
    "reduce_bucket_size": 5e8,
    "stage3_prefetch_bucket_size": 5e8,
    "stage3_param_persistence_threshold": 1e6,
    "stage3_gather_16bit_weights_on_model_save": true
  },
  "train_batch_size": 256,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 16,
  "gradient_clipping": 1.0,
  "steps_per_print": 10,
  "wall_clock_breakdown": false
}
"""


@for_each(
    ("name", "text", "found"),
    [
        ("four.sh", FOUR_GPUS, ["error L3 2"]),
        ("four.sh", FOUR_GPUS_NEWER, []),
        ("two.yaml", TWO_MACHINES, ["note L2 10"]),
        ("two.yaml", TWO_MACHINES.replace("processes: 8", "processes: 16"), []),
        ("one.yaml", ONE_MACHINE, []),
        ("rdzv.yaml", RENDEZVOUS, ["warning L70 15", "note L4 10"]),
        (
            "head.yaml",
            HEAD_ONLY,
            [
                "error L7 4",
                "error L1 6",
                "error L6 11",
                "warning L5 12",
                "warning L70 11",
                "warning L70 11",
            ],
        ),
        ("hybrid.yaml", HYBRID, ["warning L11 13"]),
        ("job.yaml", OUMI_JOB, []),
        ("mingpt.yaml", STATIC, []),
        ("mdl.sh", HERE, []),
        ("z3.json", ZERO3, []),
    ],
)
def test_a_recipe(name: str, text: str, found: list[str]) -> None:
    findings = lint_file(name, text.encode())
    assert [f"{one.severity} {one.id} {one.where.rpartition(':')[2]}" for one in findings] == found
    assert failed(findings) == any(line.startswith("error") for line in found)
    assert all(one.text.endswith((".", "?")) and one.remedy for one in findings)
