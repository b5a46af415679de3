"""Training scripts of the checks: on NCCL where there are GPUs, else on gloo."""

BEGIN = """
import os, sys, time
import torch
import torch.distributed as dist

cuda = torch.cuda.is_available()
rank, local = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
if cuda:
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        os.environ["NCCL_HOSTID"] = str(rank)  # it takes ranks that share a GPU for ranks on two hosts, over sockets
    local %= torch.cuda.device_count()
    torch.cuda.set_device(local)
device = torch.device("cuda", local) if cuda else torch.device("cpu")
dist.init_process_group("nccl" if cuda else "gloo")
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).to(device)
)
optimizer = torch.optim.AdamW(model.parameters())


def step():
    optimizer.zero_grad()
    model(torch.randn(64, 1024, device=device)).square().mean().backward()
    optimizer.step()
    if cuda:
        torch.cuda.synchronize()

"""

TRAIN = (
    BEGIN
    + """
while True:
    step()
"""
)

MISSING = (
    BEGIN
    + """
for number in range(10**9):
    if number == 30 and rank == 1:
        time.sleep(10**6)  # the rank that is missing
    step()
"""
)

OUT_OF_MEMORY = (
    BEGIN
    + """
for number in range(20):
    step()
held = []
if rank == 0:
    while True:
        held.append(torch.empty(1 << 30, dtype=torch.uint8, device=device))
        time.sleep(0.05)
while True:
    step()
"""
)

IDLE = (
    BEGIN
    + """
for number in range(30):
    step()
time.sleep(10**6)
"""
)

TWO_SHAPES = (
    BEGIN
    + """
for number in range(30):
    step()
dist.all_reduce(torch.ones(1024 if rank else 2048, device=device))
if cuda:
    torch.cuda.synchronize()
time.sleep(10**6)
"""
)

SLOW = (
    BEGIN
    + """
heavy = torch.randn(4096 if cuda else 1024, 4096 if cuda else 1024, device=device)
while True:
    if rank == 1:
        for _ in range(40 if cuda else 4):
            heavy = (heavy @ heavy).clamp(-1, 1)  # the others wait for this
    step()
"""
)
