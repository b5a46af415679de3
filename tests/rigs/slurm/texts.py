"""Every configuration file of a rig, as text. Pure."""

from __future__ import annotations

from .settings import NET, Shape, address

SSHD = """\
Port 22
HostKey /mnt/etc/host_key
AuthorizedKeysFile /mnt/etc/key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
StrictModes no
PidFile /run/sshd.pid
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
MaxSessions 200
MaxStartups 200
"""

CGROUP = "CgroupPlugin=autodetect\nCgroupAutomount=no\nIgnoreSystemd=yes\n"

CATALOG = "AcceleratorName,Clouds\nA100,\"['Slurm']\"\nH100,\"['Slurm']\"\n"
"""SkyPilot fetches its list of accelerators when it has none. Two rows are enough."""

UV_CACHE = "/tmp/uv_cache_0"
"""Where SkyPilot lets uv unpack wheels on a Slurm node (sky/utils/command_runner.py). All nodes of all rigs share it."""

NODE_PROFILE = """\
export PATH=/mnt/nfs/bin:$PATH
export UV_NO_INDEX=1 UV_OFFLINE=1 UV_FIND_LINKS=/mnt/nfs/wheelhouse UV_PYTHON_DOWNLOADS=never
export PIP_NO_INDEX=1 PIP_FIND_LINKS=/mnt/nfs/wheelhouse PIP_DISABLE_PIP_VERSION_CHECK=1
"""
"""What the administrator of a cluster without internet sets for everybody; srun hands it on to the nodes."""

CURL = """\
#!/bin/sh
# The one thing that SkyPilot always downloads on a Slurm node is the installer of uv: answer with another.
case "$*" in
*uv/install.sh*) echo 'mkdir -p "$UV_INSTALL_DIR" && ln -sf /mnt/nfs/bin/uv "$UV_INSTALL_DIR/uv"' ;;
*) exec /usr/bin/curl "$@" ;;
esac
"""

SKY_SLURM = """\
slurm:
  allowed_clusters: all
  provision_timeout: 60
"""

SKY_JOBS = """\
jobs:
  controller:
    consolidation_mode: true
"""


def slurm(shape: Shape) -> str:
    """slurm.conf. config_overrides lets a node claim more than it has."""
    nodes = f"c[1-{shape.nodes}]"
    resources = f"CPUs={shape.cpus} RealMemory={shape.memory}"
    pretended = f" Gres=gpu:h100:{shape.gpus}" if shape.gpus else ""
    return f"""\
ClusterName=rig
SlurmctldHost=login({address("login")})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
StateSaveLocation=/mnt/state
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/{shape.proctrack}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
LaunchParameters=use_interactive_step
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=20
KillWait=5
MinJobAge=60
DefMemPerCPU=256
InactiveLimit=0
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
GresTypes=gpu
NodeName={nodes} NodeAddr={nodes} {resources}{pretended} State=UNKNOWN
PartitionName=gpu Nodes={nodes} Default=YES MaxTime=04:00:00 State=UP OverSubscribe=NO
"""


def gres(shape: Shape) -> str:
    """gres.conf: the files must be devices, or Slurm sets no CUDA_VISIBLE_DEVICES."""
    if not shape.gpus:
        return ""
    return f"NodeName=c[1-{shape.nodes}] Name=gpu Type=h100 File=/run/nvidia[0-{shape.gpus - 1}]\n"


def hosts(shape: Shape) -> str:
    """/etc/hosts of every host."""
    return "127.0.0.1 localhost\n" + "".join(f"{address(name)} {name}\n" for name in shape.hosts)


def ssh(shape: Shape, key: str) -> str:
    """~/.ssh/config of the client, by which `ssh c1` works; SkyPilot puts its own lines before these."""
    return (
        f"Host {' '.join(shape.hosts[:-1])} {NET}.*\n"
        f"  User root\n  IdentityFile {key}\n  IdentitiesOnly yes\n"
        "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )


def slurm_ssh(key: str) -> str:
    """~/.slurm/config of the client: SkyPilot's list of Slurm clusters, each with its login host."""
    return (
        f"Host distui\n  HostName {address('login')}\n  Port 22\n  User root\n"
        f"  IdentityFile {key}\n  IdentitiesOnly yes\n"
    )


def sky(shape: Shape) -> str:
    """~/.sky/config.yaml of the client."""
    return SKY_SLURM + (SKY_JOBS if shape.jobs else "")
