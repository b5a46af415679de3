"""The settings file: what is chosen is kept, what is broken is named and never lost."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import scripted as play
from conftest import Start, shown
from each import for_each
from patience import HANG_S

from distui.runners.run.settings_file import SettingsError, section_of, settings_path
from distui.tui.app import CockpitApp
from distui.tui.rows.charts import STRIP
from distui.tui.screens.column_picker import ColumnPicker
from distui.tui.screens.run import RunScreen
from distui.tui.setting_keys import KEYS, UserSettings
from distui.tui.user_settings import keep, load


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return settings_path({"XDG_CONFIG_HOME": str(tmp_path / "config")})


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text)
    return path


EVERYTHING = {
    "theme": "light", "hosts": ("gpu1", "me@gpu2"), "columns": ("rank", "temp"), "sort": "temp", "reverse": True,
    "gpu_columns": ("gpu", "power"), "gpu_sort": "power", "gpu_reverse": True, "metrics": ("train.loss", "train.my"),
    "window": "15m", "log_scale": True, "layout": "log",
}  # fmt: skip


def test_every_choice_comes_back(file: Path) -> None:
    assert set(EVERYTHING) == {key.field for key in KEYS.values()}
    keep(file, EVERYTHING)
    assert load(file) == (UserSettings(**EVERYTHING), [])  # type: ignore[arg-type]


def test_distuis_own_choice_is_not_written(file: Path) -> None:
    keep(file, EVERYTHING)
    keep(file, {name: type(value)() for name, value in EVERYTHING.items()})
    assert tomllib.loads(file.read_text()) == {}


def test_nothing_is_there_at_first(file: Path) -> None:
    assert load(file) == (UserSettings(), [])
    assert not file.parent.exists()


def test_comments_and_strange_keys_stay(file: Path) -> None:
    written(file, '# mine\n[ranks] # wide\ncolumns = ["rank"] # few\nfuture = 1\n\n[later]\nx = 2\n')
    keep(file, {"theme": "dark", "sort": "step"})
    text = file.read_text()
    for kept in ("# mine", "# wide", "# few", "future = 1", "[later]\nx = 2"):
        assert kept in text
    document = tomllib.loads(text)
    assert document["theme"] == "dark"  # above the sections
    assert document["ranks"] == {"columns": ["rank"], "future": 1, "sort": "step"}


@for_each(
    ("text", "sentence"),
    [
        ('themes = "dark"', "there is no setting themes; did you mean theme?"),
        ("[ranks]\nsorted = 1", "there is no setting ranks.sorted; did you mean ranks.sort?"),
        ('theme = "blue"', "theme must be one of dark, light, terminal, textual-dark, "),
        ('hosts = "gpu1"', "hosts must be a list of hosts"),
        ('hosts = ["-oProxyCommand=x"]', "hosts must be a list of hosts"),
        ('hosts = ["a", "a"]', "hosts must be a list of hosts"),
        ("[gpus]\ncolumns = ['gpu', 'warmth']", "gpus.columns must be a list of columns"),
        ("[ranks]\nreverse = 1", "ranks.reverse must be true or false"),
        ("ranks = 3", "ranks must be a section, [ranks]"),
        ('[curves]\nmetrics = ["loss"]', "curves.metrics must be a list of metrics"),
        ('[curves]\nwindow = "2m"', "curves.window must be one of 1m, 5m"),
    ],
)
def test_what_cannot_be_used_is_named_and_the_rest_counts(file: Path, text: str, sentence: str) -> None:
    settings, problems = load(written(file, text))
    assert settings == UserSettings()
    assert len(problems) == 1
    assert f"{file}: {sentence}" in problems[0]


def test_one_wrong_key_spoils_no_other(file: Path) -> None:
    settings, problems = load(written(file, 'theme = "light"\nhost = ["a"]\n[ranks]\nsort = "step"\n'))
    assert settings == UserSettings(theme="light", sort="step")
    assert problems == [f"{file}: there is no setting host; did you mean hosts?"]


@for_each("data", [b"theme = ", b"\xff\xfe\x00", b"a = [" * 100_000])
def test_a_damaged_file_is_never_written_over(file: Path, data: bytes) -> None:
    written(file, "").write_bytes(data)
    settings, problems = load(file)
    assert settings == UserSettings()
    assert len(problems) == 1
    assert problems[0].startswith(str(file))
    with pytest.raises(SettingsError, match=r"the choice is not saved: .*settings\.toml is not"):
        keep(file, {"theme": "light"})
    assert file.read_bytes() == data
    assert [path.name for path in file.parent.iterdir() if path.suffix == ".tmp"] == []


def test_a_section_that_is_none_is_never_written_over(file: Path) -> None:
    written(file, "ranks = 3\n")
    with pytest.raises(SettingsError, match=r"ranks must be a section, \[ranks\]"):
        keep(file, {"sort": "step"})
    assert file.read_text() == "ranks = 3\n"


def test_a_file_that_others_can_write_is_neither_read_nor_written(file: Path) -> None:
    written(file, 'theme = "light"\n').chmod(0o666)
    settings, problems = load(file)
    assert settings == UserSettings()
    assert "is passed over" in problems[0]
    with pytest.raises(SettingsError, match="is passed over"):
        keep(file, {"theme": "dark"})


def test_a_folder_in_its_place(file: Path) -> None:
    file.mkdir(parents=True, mode=0o700)
    assert "it is a folder" in load(file)[1][0]
    with pytest.raises(SettingsError, match="it is a folder"):
        keep(file, {"theme": "dark"})


def test_a_link_stays_one(file: Path, tmp_path: Path) -> None:
    (tmp_path / "dotfiles").mkdir(mode=0o700)
    kept = written(tmp_path / "dotfiles" / "settings.toml", "# in git\n")
    file.parent.mkdir(parents=True, mode=0o700)
    file.symlink_to(kept)
    keep(file, {"theme": "light"})
    assert file.is_symlink()
    assert kept.read_text() == '# in git\ntheme = "light"\n'


@pytest.mark.real
def test_cockpits_that_write_at_once_lose_nothing(file: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from distui.tui.user_settings import keep\n"
        "for at in range(25): keep(Path(sys.argv[1]), {sys.argv[2]: (sys.argv[3],) * (1 - at % 2)})"
    )
    fields = [("hosts", "a"), ("columns", "rank"), ("gpu_columns", "gpu"), ("metrics", "train.loss")]
    writers = [subprocess.Popen([sys.executable, "-c", code, str(file), *field]) for field in fields]
    assert [writer.wait(HANG_S) for writer in writers] == [0, 0, 0, 0]
    assert load(file) == (
        UserSettings(hosts=("a",), columns=("rank",), gpu_columns=("gpu",), metrics=("train.loss",)), []
    )  # fmt: skip


def test_a_number_of_thousands_of_digits_is_a_sentence() -> None:
    path = written(settings_path(), f"theme = {'9' * 5000}\n")
    _, (problem,) = load(path)
    assert problem.startswith(f"{path} is not TOML that can be read (Exceeds the limit")
    with pytest.raises(SettingsError, match="is not TOML"):
        section_of("logs")
    with pytest.raises(SettingsError, match=r"is not saved: .* is not TOML"):
        keep(path, {"theme": "light"})


def test_the_mark_of_an_editor_at_the_beginning_is_no_mistake() -> None:
    path = written(settings_path(), '\ufefftheme = "light"\n')
    assert load(path) == (UserSettings(theme="light"), [])
    keep(path, {"theme": "dark"})
    assert load(path) == (UserSettings(theme="dark"), [])


# --- in the cockpit


async def test_the_theme_is_kept_also_where_one_leaves_at_once(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.press("t")
        await it.press("q")
    assert load(settings_path())[0].theme == "light"
    async with shown(rig(play.running())) as it:
        assert it.app.theme == "distui-light"
        await it.press("t", "t")
        await it.until(lambda: not load(settings_path())[0].theme)


async def test_windows_and_metrics_are_kept(rig: Start) -> None:
    async with shown(rig(play.running()), 120, 40) as it:
        await it.press("4", "minus", "L", "a", "enter", "escape")
        chosen = it.app.screen.query_one("#curves").metrics  # type: ignore[attr-defined]
        assert chosen == STRIP[1:]
    async with shown(rig(play.running()), 120, 40) as it:
        await it.press("4")
        assert it.app.view.window == "15m"
        assert it.app.view.log_scale
        assert it.app.screen.query_one("#curves").metrics == chosen  # type: ignore[attr-defined]
        await it.press("equals_sign")
        await it.until(lambda: not load(settings_path())[0].window)


async def test_a_broken_file_is_named_on_the_screen_and_stays(rig: Start) -> None:
    path = written(settings_path(), "theme = \n")
    async with shown(rig(play.running()), 120, 40) as it:
        assert f"{path} is not TOML that can be read" in it.told()
        await it.press("t")
        await it.until(lambda: "The choice is not saved" in it.told())
        assert it.app.theme == "distui-light"
    assert path.read_text() == "theme = \n"


def dialog(app: CockpitApp) -> ColumnPicker:
    assert isinstance(app.screen, ColumnPicker)
    return app.screen


def titles(screen: str) -> list[str]:
    """Titles of the rank table."""
    return next(line for line in screen.splitlines() if "temp▴" in line).strip("│ ").split()


@pytest.mark.parametrize("size", [(60, 15), (120, 40)], ids=["60x15", "120x40"])
async def test_columns_are_chosen_and_kept(rig: Start, size: tuple[int, int]) -> None:
    async with shown(rig(play.running()), *size) as it:
        await it.press("2")
        await it.until(lambda: "▶ step" in it.screen())
        await it.press("a")
        picker = dialog(it.app)
        assert "Enter, esc keep" in it.screen()
        ids = picker.choice.order
        for id in ("rank", "state", "pid", "temp", "rss"):
            picker.view.move_to(ids.index(id))
            if id == "rank":
                await it.press("space")
                assert "This column names the row" in it.told()
            elif (id in picker.choice.shown) != (id in ("temp", "rss")):
                await it.press("space")
        picker.view.move_to(picker.choice.order.index("temp"))
        while picker.choice.order.index("temp") > 1:
            await it.press("left")
        await it.press("s", "enter")
        await it.until(lambda: "temp▴" in it.screen())
        now = titles(it.screen())
        assert now[:2] == ["rank", "temp▴"]
        assert "state" not in now
    kept, problems = load(settings_path())
    assert problems == []
    assert kept.columns[:2] == ("rank", "temp")
    assert "rss" in kept.columns
    assert kept.sort == "temp"
    async with shown(rig(play.running()), *size) as it:
        await it.press("2")
        await it.until(lambda: "temp▴" in it.screen())
        await it.press("a")
        assert dialog(it.app).choice.columns == kept.columns
        await it.press("u", "enter")
        await it.until(lambda: "state" in it.screen())
    assert load(settings_path())[0] == UserSettings()


async def test_esc_keeps_the_changed_columns(rig: Start) -> None:
    async with shown(rig(play.running()), 200, 60) as it:
        await it.press("2", "a")
        picker = dialog(it.app)
        picker.view.move_to(picker.choice.order.index("pid"))
        await it.until(lambda: "[x] pid" in it.screen())
        await it.press("space")
        await it.until(lambda: "[ ] pid" in it.screen())
        await it.press("escape")
        await it.until(lambda: "Columns of the" not in it.screen())
        assert "pid" not in it.app.view.columns
        assert "state" in it.app.view.columns


@pytest.mark.parametrize("size", [(60, 15), (90, 40), (120, 40)])
async def test_the_usual_columns_are_those_that_the_table_shows(rig: Start, size: tuple[int, int]) -> None:
    async with shown(rig(play.running()), *size) as it:
        await it.press("2")
        await it.until(lambda: "▶ step" in it.screen())
        run_screen = it.app.screen
        assert isinstance(run_screen, RunScreen)
        on_screen = {id for _, _, id in run_screen.ranks.table.areas}
        await it.press("a")
        picker = dialog(it.app)
        assert picker.choice.shown - {*picker._absent} == on_screen
        await it.press("down", "down", "space", "u")
        assert picker.choice.shown - {*picker._absent} == on_screen


async def test_esc_without_a_change_keeps_nothing(rig: Start) -> None:
    async with shown(rig(play.running())) as it:
        await it.press("2", "a", "down", "escape")
        assert it.app.view.columns == ()
        screen = it.app.screen
        assert isinstance(screen, RunScreen)
        screen.gpus.focus()
        await it.press("a")
        assert dialog(it.app).choice.table == "gpus"
        await it.press("escape")
    assert not settings_path().exists()
