"""Notes and tags: kept beside a run, by several writers at once, through damage and a full disk."""

from __future__ import annotations

import json
import os
import resource
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_run_removal import made, state_home

from distui.runners.removal import retention
from distui.runners.run import run_notes
from distui.runners.run.errors import RunError
from distui.tui.cli import main

__all__ = ["state_home"]


def test_notes_and_tags_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    entry = made("night")
    before = sorted(os.listdir(entry.path))
    for verb in ("note", "tag"):
        with pytest.raises(SystemExit):
            main([verb])
        assert "are required: RUN;" in capsys.readouterr().err, "a text or a tag is not"
    assert main(["note", "night"]) == 0
    assert main(["tag", "night"]) == 0
    assert capsys.readouterr().out == "night has no note\nnight: no tags\n"
    assert sorted(os.listdir(entry.path)) == before, "reading made a file"
    assert main(["note", "night", "the", "baseline of  table 2"]) == 0
    assert main(["tag", "night", "+good", "paper", "-bad"]) == 0
    assert capsys.readouterr().out == "night: good paper\n"
    assert main(["tag", "night", "-paper", "+v2"]) == 0
    assert main(["ls", "tag:good"]) == 0
    listed = capsys.readouterr().out
    assert "good v2" in listed
    assert "the baseline of table 2" in listed
    assert main(["ls", "tag:good", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)
    assert (document["tags"], document["note"]) == (["good", "v2"], "the baseline of table 2")
    assert main(["status", "night"]) == 0
    assert "tags: good v2\nnote: the baseline of table 2\n" in capsys.readouterr().out
    assert main(["note", "night", ""]) == 0
    assert main(["note", "night", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["note"] is None
    assert [note["text"] for note in document["notes"]] == ["the baseline of table 2", ""]
    assert main(["note", "night", "--clear"]) == 0
    assert run_notes.read(entry.path).notes == []
    assert run_notes.read(entry.path).tags == ("good", "v2")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["tag", "night", "+"], "o tag can be ''"),
        (["tag", "night", "a b"], "o tag can be 'a b'"),
        (["tag", "night", "+" + "x" * 41], "up to 40 letters"),
        (["tag", "night", "+a", "-a"], "added and taken away"),
        (["tag", "night", "+\x1b[31m"], "use up to 40"),
        (["note", "night", "x" * 4001], "4000 are the most"),
        (["note", "night", "--clear", "x"], "leave one of them out"),
        (["tag", "night", *(f"t{n}" for n in range(65))], "64 tags at most"),
    ],
)
def test_what_is_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    entry = made("night")
    assert main(words) == 2
    assert says in capsys.readouterr().err
    assert not (entry.path / run_notes.NAME).exists()


def test_many_writers_at_once_lose_nothing() -> None:
    path = made("busy").path

    def write(who: str) -> None:
        for n in range(40):
            run_notes.note(path, f"{who}.{n}")
            run_notes.tag(path, [f"{who}-{n % 3}"], [])

    with ThreadPoolExecutor(4) as writers:
        assert [*writers.map(write, ("w0", "w1", "w2", "w3"))] == [None] * 4
    notes = run_notes.read(path)
    assert {text for _, text in notes.notes} == {f"w{who}.{n}" for who in range(4) for n in range(40)}
    assert len(notes.tags) == 12


def test_damage_costs_one_line_and_a_torn_one_is_ended_first() -> None:
    path = made("torn").path
    run_notes.note(path, "first")
    with (path / run_notes.NAME).open("ab") as file:
        file.write(b'\xff\x00{"note": 5}\n{"time": 1, "note": "cut o')
    run_notes.tag(path, ["good"], [])
    notes = run_notes.read(path)
    assert ([text for _, text in notes.notes], notes.tags) == (["first"], ("good",))
    (path / run_notes.NAME).unlink()
    (path / run_notes.NAME).symlink_to("/etc/hostname")
    with pytest.raises(RunError, match="cannot write"):
        run_notes.note(path, "through a link")
    (path / run_notes.NAME).unlink()
    (path / run_notes.NAME).mkdir()
    assert run_notes.read(path).tags == ()
    with pytest.raises(RunError, match="cannot write"):
        run_notes.tag(path, ["x"], [])


@pytest.mark.parametrize("damage", ["line", "folder", "large"])
def test_what_cannot_be_read_is_named_and_the_run_is_not_pruned(
    damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tag `keep` may have been in it."""
    path = made("precious").path
    file = path / run_notes.NAME
    if damage == "folder":
        file.mkdir()
    else:
        file.write_bytes(b'{"add": ["ke\n' if damage == "line" else b"x" * (run_notes.MOST_BYTES + 1))
    assert [*retention.due(retention.Retention(0.0), "", 9e9)] == []
    assert main(["prune", "--keep", "0", "--yes"]) == 0
    assert path.exists()
    assert "nothing to remove" in capsys.readouterr().out
    for words in (["ls"], ["status", "precious"], ["note", "precious"], ["tag", "precious"]):
        assert main(words) == 0
        assert run_notes.NAME in "".join(capsys.readouterr()), words
    assert main(["ls", "--json"]) == 0
    (problem,) = json.loads(capsys.readouterr().out)[0]["problems"]
    assert problem.startswith(run_notes.NAME)
    if damage != "folder":
        assert main(["note", "precious", "--clear"]) == 0
        assert run_notes.read(path).problem == ""


def test_a_full_disk_keeps_what_was_there() -> None:
    path = made("full").path
    run_notes.note(path, "before")
    size = (path / run_notes.NAME).stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    try:
        with pytest.raises(RunError, match="nothing was changed"):
            run_notes.note(path, "x" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (path / run_notes.NAME).stat().st_size == size
    assert run_notes.read(path).note == "before"


def test_a_secret_in_a_note_is_masked() -> None:
    path = made("secret").path
    run_notes.note(path, "ran with HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz012345 on gpu1")
    assert b"hf_abc" not in (path / run_notes.NAME).read_bytes()
    assert run_notes.read(path).note.endswith("on gpu1")


ACTS = "best\x1b]0;title of it, long enough to be cut\x07 of \x1b[31mall\x1b[0m\u202e"


def test_escape_sequences_go_whole_wherever_a_note_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Also those of a line that somebody else wrote into the file."""
    entry = made("night")
    assert main(["note", "night", ACTS]) == 0
    assert "title" not in (entry.path / run_notes.NAME).read_text()
    with (entry.path / run_notes.NAME).open("a") as file:
        file.write(json.dumps({"time": 1.0, "note": ACTS}) + "\n")
    for words in (["ls"], ["ls", "--json"], ["status", "night"], ["status", "night", "--json"],
                  ["note", "night"], ["note", "night", "--json"], ["ls", "note:best of"]):  # fmt: skip
        assert main(words) == 0
        out = capsys.readouterr().out
        assert "best of all\ufffd" in out.replace("\\ufffd", "\ufffd"), words
        assert "title" not in out, words
        assert "\x1b" not in out, words
    assert main(["note", "night", "hf_abcdefghij\x1b[0mklmnopqrstuvwxyz0123456789"]) == 0
    assert "klmno" not in (entry.path / run_notes.NAME).read_text()
