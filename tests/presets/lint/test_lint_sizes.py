"""lint on the sizes of a model: what a mesh cannot divide is said with the arithmetic, before anything starts."""

from __future__ import annotations

from pathlib import Path

from each import for_each

from distui.presets.finding import Finding
from distui.presets.lint import lint_plan
from distui.presets.load import load
from distui.presets.plan import Place, make_plan
from distui.presets.request import Request
from distui.runners.node.script_files import read_around

EXAMPLES = Path(__file__).parents[3] / "presets" / "examples"
CALL = "from distui.runners.inrank.parallelize import parallelize\nparallelize(model)\n"


def lint(
    preset: str, ranks: int, script: Path, *args: str, overrides: tuple[str, ...] = ()
) -> list[Finding]:
    loaded = load(preset, overrides, cwd=Path("/"), env={"HOME": "/nowhere"})
    source = script.read_bytes()
    beside, _ = read_around(script, source)
    place = Place(
        run="20260101-000000-train-0123abcd", run_dir="/r", port=20001, ras_port=20002, gpus=16, cores=8,
        cwd="/w", python="/p/python", script_source=source, script_beside=beside,
    )  # fmt: skip
    request = Request(script=str(script), args=args, nproc_per_node=ranks)
    found = lint_plan(make_plan(loaded, request, place), loaded, request, source=source, beside=beside)
    return [one for one in found if one.id == "L44"]


@for_each(
    ("preset", "ranks", "words", "where", "text"),
    [
        ("tp", 2, "--heads 3", "mesh.tp", "3 heads cannot be divided by tp 2: 3 / 2 = 1.5."),
        ("tp", 2, "--heads=3", "mesh.tp", "3 heads"),
        ("tp", 2, "--hea 3", "mesh.tp", "3 heads"),
        ("fsdp2-tp", 4, "--heads 3", "mesh.tp", "3 heads"),
        ("3d", 4, "--heads 3", "mesh.tp", "3 heads"),
        ("ddp", 2, "--heads 5", "--width", "96 features cannot be divided by 5 heads: 96 / 5 = 19.2."),
        ("tp-sp", 2, "--block 63", "mesh.tp", "63 positions cannot be divided by tp 2: 63 / 2 = 31.5."),
        ("context", 2, "--block 63", "mesh.cp", "63 positions cannot be divided by cp 2"),
        ("pp-1f1b", 2, "--layers 1", "mesh.pp", "1 layers cannot be cut into 2 stages (pp 2)"),
        ("pp-gpipe", 2, "--batch 6", "mesh.microbatches", "6 samples cannot be cut into 4 microbatches: 6 / 4 = 1.5."),
    ],
)  # fmt: skip
def test_the_example_and_sizes_that_do_not_fit(
    preset: str, ranks: int, words: str, where: str, text: str
) -> None:
    (one,) = lint(preset, ranks, EXAMPLES / "chargpt.py", *words.split())
    assert (one.severity, one.where) == ("error", where)
    assert one.text.startswith(text)
    assert one.remedy


def test_experts_are_counted_where_the_script_writes_them() -> None:
    (one,) = lint("moe", 3, EXAMPLES / "chargpt_moe.py", overrides=("mesh.ep=3",))
    assert one.text == "4 experts cannot be divided by ep 3: 4 / 3 = 1.333."
    assert one.remedy == "Give a multiple of 3 with EXPERTS, or set mesh.ep to 1, 2 or 4."
    assert lint("moe", 2, EXAMPLES / "chargpt_moe.py") == []


@for_each("preset", ["tp", "tp-sp", "fsdp2-tp", "3d", "context", "pp-1f1b", "pp-gpipe", "hsdp"])
@for_each("ranks", [4, 8])
def test_the_example_by_itself_fits_every_preset(preset: str, ranks: int) -> None:
    assert lint(preset, ranks, EXAMPLES / "chargpt.py") == []


@for_each(
    ("source", "said"),
    [
        ("p.add_argument('--n_head', type=int, default=6)", 1),
        ("HEADS = 6", 1),
        ("HEADS = 8", 0),
        ("HEADS = 6\nHEADS = 8", 0),
        ("n_heads = width // 32", 0),
        ("p.add_argument('--n_head', type=int)", 0),
        ("p.add_argument('--n_head', default=os.cpu_count())", 0),
        ("p.add_argument('--n_head', default='6')", 1),
        ("p.add_argument('--n_head', default=-6)", 0),
        ("p.add_argument('--n_head', default=6)\np.add_argument('--heads', default=8)", 0),
        ("p.add_argument('--num-kv-heads', default=2)", 1),
        ("q.add_argument(*NAMES, default=6)", 0),
    ],
)
def test_only_what_is_surely_the_size_is_judged(tmp_path: Path, source: str, said: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(CALL + source)
    assert len(lint("tp", 4, script, overrides=("mesh.tp=4",))) == said
    script.write_text(source)
    assert lint("tp", 4, script, overrides=("mesh.tp=4",)) == [], (
        "nothing is divided by a script of its own"
    )


def test_what_is_beside_a_script_is_read_once_and_only_files(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "inner.py").write_text("HEADS = 3")
    (tmp_path / "loop.py").write_text("import train")
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "zero.py").symlink_to("/dev/zero")
    source = b"import loop, folder, zero, missing, os\nfrom pkg import inner\nfrom .loop import x\nfrom .. import y"
    assert set(read_around(tmp_path / "train.py", source)[0]) == {"loop.py", "pkg/inner.py"}
    assert read_around(tmp_path / "train.py", b"import (")[0] == {}
