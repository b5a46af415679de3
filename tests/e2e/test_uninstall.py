"""`distui uninstall`: what it lists, what it removes, and when it refuses.

With DISTUI_WRITE=1 the table in docs/install.md is written anew.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from distui.runners.removal import leftovers, run_removal
from distui.runners.removal.leftovers import PLACES
from distui.runners.run.wire.ssh import Way

from .runs import World
from .written import write

PAGE = Path(__file__).parents[2] / "docs" / "install.md"
ONLY_WITH_ALL = ("state/distui", "config/distui", ".distui")
BEGIN, END = "<!-- places: written by the tests -->\n", "<!-- end -->"


def table() -> str:
    lines = ["| place | holds | made by | `distui uninstall` |", "|---|---|---|---|"]
    for place in PLACES:
        lines.append(f"| `{place.path}` | {place.holds} | {place.made_by} | {place.kept or 'removes it'} |")
    return "\n".join(lines) + "\n"


def test_the_page_has_the_table() -> None:
    head, _, rest = PAGE.read_text().partition(BEGIN)
    wanted = f"{head}{BEGIN}{table()}{END}{rest.partition(END)[2]}"
    if os.environ.get("DISTUI_WRITE"):
        PAGE.write_text(wanted)
    assert PAGE.read_text() == wanted, "write it anew: DISTUI_WRITE=1 pytest tests/e2e/test_uninstall.py"


def furnished(world: World) -> None:
    """An ended run, settings, a bundle, man pages, a completion file and a line in ~/.bashrc."""
    write(world, "exec", "--name", "night", "--", "true")
    for name in ("config/distui/presets/mine.toml", ".cache/distui/bundles/x", ".distui/distui"):
        path = world.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    world.distui("man", "--dir", str(world.root / ".local/share/man/man1")).fine()
    (world.root / ".bashrc").write_text('PS1="> "\neval "$(distui completion bash)"\n')
    world.env.pop("XDG_CACHE_HOME", None)


def kept_by(world: World, *options: str) -> dict[str, str]:
    """Path below the home → why it stays, "" if it is removed."""
    document = world.distui("uninstall", *options, "--json").fine().json()
    return {str(Path(each["path"]).relative_to(world.root)): each["kept"] for each in document["places"]}


def test_it_lists_and_removes_what_distui_made(world: World) -> None:
    furnished(world)
    listed = kept_by(world, "--dry-run")
    assert {path for path, kept in listed.items() if not kept} >= {".cache/distui"}
    assert listed[".bashrc"].startswith("yours")
    assert {listed[path] for path in ONLY_WITH_ALL} == {"stays without --all"}
    assert (world.root / ".cache/distui").exists(), "--dry-run changes nothing"
    text = world.distui("uninstall", "--dry-run").fine().out
    assert "pip uninstall distui" in text
    assert "would be removed" in text

    world.distui("uninstall").refused(2, "no terminal to ask on", "--yes")
    asked = world.distui("uninstall", stdin="n\n", terminal=True)
    assert (asked.code, (world.root / ".cache/distui").exists()) == (1, True)
    kept_by(world, "--yes")
    assert kept_by(world, "--dry-run").keys() == {*ONLY_WITH_ALL, ".bashrc"}
    kept_by(world, "--yes", "--all")
    assert kept_by(world, "--dry-run").keys() == {".bashrc"}
    assert "completion" in (world.root / ".bashrc").read_text()


def test_a_live_run_refuses(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_removal, "LEAVING_S", -1.0)  # the process with the lock will not exit
    furnished(world)
    (run,) = world.runs.glob("*-night-*")
    with (run / "runner.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = world.distui("uninstall", "--yes")
    assert (refused.code, (world.root / ".cache/distui").exists()) == (2, True)
    assert "night" in refused.err


def test_a_link_is_removed_and_not_what_it_leads_to(world: World) -> None:
    furnished(world)
    (world.root / ".cache/distui").rename(world.root / "there")
    (world.root / ".cache/distui").symlink_to(world.root / "there")
    kept_by(world, "--yes")
    assert (world.root / "there/bundles/x").exists()
    assert not (world.root / ".cache/distui").is_symlink()


def test_a_directory_may_be_reached_through_a_link(world: World) -> None:
    """Caches are often on another disk."""
    furnished(world)
    (world.root / ".cache").rename(world.root / "disk")
    (world.root / ".cache").symlink_to(world.root / "disk")
    kept_by(world, "--yes")
    assert not (world.root / "disk/distui").exists()


def test_a_pipe_in_place_of_a_file_is_not_read(world: World) -> None:
    os.mkfifo(world.root / ".bashrc")
    assert ".bashrc" not in kept_by(world, "--dry-run")


def test_a_directory_with_the_name_of_a_share_stays(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any account can move a directory that it can write to /tmp."""
    share = leftovers.Place(f"{tmp_path}/distui-share-*", leftovers.SOCKETS, "distui share")
    monkeypatch.setattr(leftovers, "SHARES", share.path)
    monkeypatch.setattr(leftovers, "PLACES", (share,))
    monkeypatch.delenv("DISTUI_SOCKET_DIR", raising=False)
    (tmp_path / "distui-share-moved/data").mkdir(parents=True)
    (tmp_path / "distui-share-ended").mkdir()
    (tmp_path / "distui-share-ended/run.sock").touch()
    assert [place.path for place in leftovers.removed(False).places] == [f"{tmp_path}/distui-share-ended"]
    assert [path.name for path in tmp_path.iterdir()] == ["distui-share-moved"]


def test_hosts_of_launches_are_named_and_not_contacted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = "Hosts of launches whose runs were removed are not known"
    assert unknown in world.distui("uninstall", "--dry-run").fine().out
    monkeypatch.setattr(leftovers, "hosts_of_launches", lambda: [Way("gpu1"), Way("gpu2")])
    told = world.distui("uninstall", "--dry-run").fine().out
    assert "not contacted: `distui uninstall --host gpu1 --host gpu2`" in told
