"""The rows: what is installed for each, and which training distui runs there."""

from __future__ import annotations

from dataclasses import dataclass

CPU_TORCH = "torch==2.13.0"
"""What the frameworks and the other Pythons are tried with: the version of all other tests."""
TORCHES = ("2.7.1", "2.9.1", "2.11.0", "2.13.0", "2.14.1", "2.15.0")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One environment, and the training in it."""

    name: str
    kind: str
    """The table in which it stands: "torch", "framework" or "python"."""
    packages: tuple[str, ...] = ()
    """What pip installs there."""
    shown: tuple[str, ...] = ("torch",)
    """Packages whose versions are reported."""
    script: str = "plain.py"
    preset: str = "ddp"
    python: str = ""
    """Version of the environment's interpreter; "" for that of the tests."""

    @property
    def holds_distui(self) -> bool:
        """Whether distui itself is in the environment, which then has no torch: the ranks have the tests' own."""
        return self.kind == "python"

    @property
    def sleeps(self) -> bool:
        """Whether rank 1 sleeps when it is asked to; what is unedited has to be stopped by a signal."""
        return self.script == "plain.py"


def _framework(name: str, *packages: str, preset: str = "ddp") -> Row:
    return Row(
        name=name,
        kind="framework",
        packages=(CPU_TORCH, "numpy", *packages),
        shown=(packages[0], "torch"),
        script=f"on_{name}.py",
        preset=preset,
    )


ROWS = (
    *(
        Row(name=f"torch-{version}", kind="torch", packages=(f"torch=={version}", "numpy"))
        for version in TORCHES
    ),
    Row(
        name="torch-2.14.1-python-3.13",
        kind="torch",
        packages=("torch==2.14.1", "numpy"),
        python="3.13",
    ),
    _framework("accelerate", "accelerate"),
    _framework("trainer", "transformers", "accelerate"),
    _framework("lightning", "lightning"),
    _framework("deepspeed", "deepspeed", "setuptools", preset="ds-zero2"),
    *(
        Row(name=f"python-{version}", kind="python", shown=("textual", "msgspec"), python=version)
        for version in PYTHONS
    ),
)
