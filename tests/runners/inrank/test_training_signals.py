"""What the hook reads of the real trackers, in real ranks: each test needs its library (dependency group `trackers`)."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from distui.runners.inrank.training_signals import number_of
from distui.runners.telemetry.signal_names import Reported, ReportedValue, best, of_trackers

from .inrank_rig import Asking, eventually, rank

END = "\nprint('done', flush=True)\nimport sys; sys.stdin.read()\n"


def needs(*names: str) -> pytest.MarkDecorator:
    missing = [name for name in names if find_spec(name) is None]
    return pytest.mark.skipif(
        bool(missing), reason=f"{', '.join(missing)} not installed: pip install --group trackers"
    )


@pytest.fixture
def place(own_directories: Path) -> Path:
    path = own_directories / "rank"
    path.mkdir()
    return path


def reported(place: Path, script: str, **env: str) -> Reported:
    """What the hook has to tell once the script has come to its end."""
    with rank(place, script + END, **env) as started:
        asking = Asking(started.socket)
        eventually(lambda: "done" in started.read("out") or started.process.poll() is not None, 120)
        assert started.process.poll() is None, started.read("err")
        answer = asking.ask("steps", signals=0)
        assert "signals" not in asking.ask("steps", signals=answer["signals"]["version"]), "nothing is new"
        assert "signals" not in asking.ask("steps"), "an older agent"
        asking.close()
        assert started.ends() == 0, started.read("err")
    return msgspec.json.decode(json.dumps(answer["signals"]).encode(), type=Reported)


def fields(told: Reported) -> dict[str, ReportedValue]:
    return best(of_trackers(told))


def numbers(told: Reported) -> dict[str, float]:
    return {name: each.value for name, each in fields(told).items()}


LOOP = """
for step in range(1, 4):
    LOG({"train/loss": 3.0 - step / 10, "lr": 1e-3 / step, "val/acc": 0.5, "note": "text"}, step)
"""


@pytest.mark.long
@needs("wandb", "torch")
def test_wandb(place: Path) -> None:
    script = (
        "import wandb\nwandb.init(project='p')\nLOG = lambda values, step: wandb.log(values, step=step)\n"
    )
    told = reported(place, script + LOOP + "wandb.run.log({'grad_norm': 0.7, 'inner': {'loss': 1.0}})\n"
                    "wandb.finish()", WANDB_MODE="offline", WANDB_DIR=str(place), HOME=str(place))  # fmt: skip
    got = numbers(told)
    assert got == {"loss": 2.7, "lr": pytest.approx(1e-3 / 3), "grad_norm": 0.7, "step": 3.0}
    assert {each.source for each in fields(told).values()} == {"wandb"}
    assert told.trackers["wandb"].values["val/acc"][0] == 0.5
    assert "note" not in told.trackers["wandb"].values
    assert told.trackers["wandb"].values["inner.loss"][0] == 1.0


WRITER = """
import torch
writer = SummaryWriter(DIR)
for step in (10, 20):
    writer.add_scalar("Loss/train", torch.tensor(1.0 / step), step)
    writer.add_scalar("Loss/val", 9.0, global_step=step)
writer.add_scalars("speed", {"tokens_per_sec": 100.0}, 20)
writer.close()
"""


@pytest.mark.long
@needs("tensorboard", "torch")
def test_tensorboard_of_torch(place: Path) -> None:
    script = f"DIR = {str(place / 'tb')!r}\nfrom torch.utils.tensorboard import SummaryWriter\n" + WRITER
    told = reported(place, script)
    assert numbers(told) == {"loss": pytest.approx(0.05), "step": 20.0, "tokens_s": 100.0}
    assert told.trackers["tensorboard"].values["speed/tokens_per_sec"][0] == 100.0
    assert list((place / "tb").glob("events.*"))


@pytest.mark.long
@needs("tensorboardX", "torch")
def test_tensorboardx(place: Path) -> None:
    script = f"DIR = {str(place / 'tb')!r}\nfrom tensorboardX import SummaryWriter\n" + WRITER
    assert numbers(reported(place, script)) == {
        "loss": pytest.approx(0.05),
        "step": 20.0,
        "tokens_s": 100.0,
    }


@pytest.mark.long
@needs("mlflow")
def test_mlflow(place: Path) -> None:
    script = """
import mlflow
with mlflow.start_run():
    mlflow.log_metric("loss", 2.5, step=7)
    mlflow.log_metrics({"learning_rate": 1e-4, "eval_loss": 4.0}, step=7)
"""
    told = reported(place, script, MLFLOW_TRACKING_URI=f"sqlite:///{place}/m.db" if _sqlite() else f"file:{place}/m",
                    MLFLOW_ALLOW_FILE_STORE="true", HOME=str(place))  # fmt: skip
    assert numbers(told) == {"loss": 2.5, "lr": 1e-4, "step": 7.0}
    assert fields(told)["loss"].source == "MLflow"


def _sqlite() -> bool:
    return find_spec("sqlalchemy") is not None


@pytest.mark.long
@needs("trackio")
def test_trackio(place: Path) -> None:
    script = (
        "import trackio\ntrackio.init(project='p')\nLOG = lambda values, step: trackio.log(values, step=step)\n"
        + LOOP
    )
    told = reported(place, script, TRACKIO_DIR=str(place / "t"), HOME=str(place), HF_HUB_OFFLINE="1")
    assert numbers(told) == {"loss": 2.7, "lr": pytest.approx(1e-3 / 3), "step": 3.0}


@pytest.mark.long
@needs("accelerate", "tensorboard")
def test_accelerate_without_a_tracker_and_with_one(place: Path) -> None:
    script = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
accelerator.log({"loss": 1.25, "epoch": 2}, step=30)
"""
    told = reported(place, script)
    assert numbers(told) == {"loss": 1.25, "epoch": 2.0, "step": 30.0}
    assert fields(told)["loss"].source == "Accelerate"


TRAINER = """
import torch
from transformers import Trainer, TrainingArguments

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)
    def forward(self, x, labels=None):
        out = self.inner(x)
        return {"loss": torch.nn.functional.mse_loss(out, labels), "logits": out}

data = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(64)]
arguments = TrainingArguments(output_dir=DIR, max_steps=6, per_device_train_batch_size=4, logging_steps=2,
                              report_to=[], save_strategy="no", use_cpu=True, disable_tqdm=True,
                              eval_strategy="steps", eval_steps=3)
Trainer(Net(), arguments, train_dataset=data, eval_dataset=data[:8]).train()
"""


@pytest.mark.long
@needs("transformers", "accelerate")
def test_the_trainer_of_transformers(place: Path) -> None:
    told = reported(place, f"DIR = {str(place / 'hf')!r}\n" + TRAINER, HOME=str(place), HF_HUB_OFFLINE="1")
    got = fields(told)
    assert (got["step"].value, got["total"].value) == (6.0, 6.0)
    assert got["loss"].source == "HF Trainer"
    assert got["loss"].value > 0
    assert {"lr", "grad_norm", "epoch"} <= got.keys()
    assert "eval_loss" in told.trackers["transformers"].values


LIGHTNING = """
import torch
import lightning.pytorch as pl

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        loss = self.inner(batch[0]).pow(2).mean()
        self.log("train_loss", loss)
        return loss
    def validation_step(self, batch, index):
        self.log("val_loss", self.inner(batch[0]).pow(2).mean())
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(40, 4)), batch_size=4)
pl.Trainer(accelerator="cpu", max_epochs=2, log_every_n_steps=1, enable_progress_bar=False, logger=LOGGER,
           enable_checkpointing=False, default_root_dir=DIR).fit(Net(), data, data)
"""


@pytest.mark.long
@needs("lightning")
@pytest.mark.parametrize(
    "logger", ["False", "__import__('lightning.pytorch.loggers', fromlist=['x']).CSVLogger(DIR)"]
)
def test_lightning(place: Path, logger: str) -> None:
    script = f"DIR = {str(place / 'l')!r}\n" + LIGHTNING.replace("LOGGER", logger)
    told = reported(place, script, HOME=str(place))
    got = fields(told)
    assert got["loss"].source == "Lightning"
    assert (got["step"].value, got["total"].value, got["epoch"].value) == (20.0, 20.0, 1.0)
    assert "val_loss" in told.trackers["lightning"].values


# --- manners: what a script sees of it ---


def pretended(place: Path, body: str) -> str:
    """A library of that name, which does what the test wants."""
    folder = place / "accelerate"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "accelerator.py").write_text(body)
    return (
        f"import sys; sys.path.insert(0, {str(place)!r})\nfrom accelerate.accelerator import Accelerator\n"
    )


@pytest.mark.real
def test_what_the_library_returns_and_raises_is_what_the_script_gets(place: Path) -> None:
    body = (
        "class Accelerator:\n    def log(self, values, step=None):\n        'Doc.'\n"
        "        if step == 13: raise KeyError('thirteen')\n        return ('kept', step)\n"
    )
    script = (
        pretended(place, body)
        + """
a = Accelerator()
assert a.log({"loss": 1.0}, step=1) == ("kept", 1)
try:
    a.log({"loss": 99.0}, step=13)
    raise SystemExit("no error")
except KeyError as error:
    assert error.args == ("thirteen",)
assert Accelerator.log.__doc__ == "Doc." and Accelerator.log.__name__ == "log"
class Odd(dict):
    def items(self): raise RuntimeError("odd")
a.log(Odd(loss=1.0), 2); a.log(None, 3); a.log({"loss": object(), 5: 6.0, "x" * 5000: 1.0, "huge": 10 ** 400}, 4)
a.log({"loss": float("nan"), "worst": float("-inf")}, 5)
a.log({"loss": float("nan")}, 6)
for at in range(500): a.log({"name%d" % at: 1.0}, 7)
"""
    )
    told = reported(place, script)
    tracker = told.trackers["accelerate"]
    assert tracker.values["loss"][0] == "nan"
    assert tracker.bad == {"loss": 5, "worst": 5}
    assert len(tracker.values) == 128
    assert "huge" not in tracker.values


def test_values_of_a_gpu_are_not_waited_for() -> None:
    """A tensor that says it is on a GPU: only a tracker that has waited for it itself lets it be read."""

    class Tensor:
        device = SimpleNamespace(type="cuda")
        dtype = SimpleNamespace(is_complex=False)
        numel, item = staticmethod(lambda: 1), staticmethod(lambda: 2.5)

    Tensor.__module__ = "torch"
    assert number_of(Tensor(), synchronous=False) is None
    assert number_of(Tensor(), synchronous=True) == 2.5
