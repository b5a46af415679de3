"""A configuration file that was found counts only where nobody else can have written it: as real other users."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from each import for_each
from strangers import NOBODY, OTHER, as_root, as_user

from distui.presets import trusted_files
from distui.presets.finding import PresetError
from distui.presets.load import library, load, read_own
from distui.presets.text_formats import DEEPEST, parse_toml
from distui.tui.cli import main

EVIL = '[preset.ddp]\nbase = "ddp"\nenv = { LD_PRELOAD = "/tmp/evil.so" }\n[preset.theirs]\nbase = "ddp"\n'


class Shared:
    """A folder as /tmp is, with a folder of the user's own in it, and a home."""

    def __init__(self, root: Path, mode: int = 0o1777) -> None:
        self.root = root
        root.chmod(0o755)
        self.tmp = root / "tmp"
        self.tmp.mkdir()
        self.tmp.chmod(mode)
        self.file = self.tmp / "distui.toml"
        self.mine = self.tmp / "mine"
        self.mine.mkdir(mode=0o755)
        self.env = {"HOME": str(root / "home")}
        (root / "home").mkdir(mode=0o700)

    def passed(self, cwd: Path | None = None) -> str:
        """What is passed over, asserting that the builtin presets are there and nothing of the stranger's is."""
        shelf = library(cwd or self.mine, self.env)
        assert "theirs" not in shelf.names
        assert "LD_PRELOAD" not in load("ddp", presets=shelf).preset.env
        return "\n".join(shelf.notes)

    def counts(self, cwd: Path | None = None) -> bool:
        """Whether it is taken, asserting that nothing is passed over then."""
        shelf = library(cwd or self.mine, self.env)
        assert ("theirs" in shelf.names) == (not shelf.notes)
        return "theirs" in shelf.names


@pytest.fixture
def shared() -> Iterator[Shared]:
    root = Path(tempfile.mkdtemp(prefix="dt-", dir="/tmp"))
    yield Shared(root)
    shutil.rmtree(root)


def own(path: Path, uid: int) -> Path:
    """Give a file, a link or a folder to a user."""
    os.chown(path, uid, uid, follow_symlinks=False)
    return path


@as_root
def test_a_strangers_file_in_a_sticky_folder_is_passed_over(shared: Shared) -> None:
    as_user(NOBODY, lambda: shared.file.write_text(EVIL))
    said = shared.passed()
    assert said.startswith(f"{shared.file} is passed over: it belongs to {trusted_files.user(NOBODY)}.")
    assert f"`distui trust {shared.file}`" in said
    with pytest.raises(PresetError, match=r"no preset 'theirs'.*is passed over"):
        load("theirs", cwd=shared.mine, env=shared.env)


@as_root
def test_it_is_not_even_opened(shared: Shared) -> None:
    as_user(NOBODY, lambda: shared.file.write_text("x = ["))
    os.utime(shared.file, (1, 1))
    assert "it belongs to" in shared.passed()
    as_user(NOBODY, shared.file.unlink)
    as_user(NOBODY, lambda: os.mkfifo(shared.file))
    assert "it belongs to" in shared.passed()
    as_user(NOBODY, shared.file.unlink)
    as_user(NOBODY, lambda: shared.file.symlink_to("/dev/zero"))
    assert "the link" in shared.passed()


@as_root
def test_the_same_the_other_way_round(shared: Shared) -> None:
    """An unprivileged user: root's files count, another user's do not, not even where a third one's folder is."""

    def here() -> tuple[bool, str]:
        shelf = library(shared.mine, shared.env)
        return "theirs" in shelf.names, " ".join(shelf.notes)

    own(shared.mine, NOBODY)
    own(shared.root / "home", NOBODY)
    shared.file.write_text(EVIL)
    assert as_user(NOBODY, here) == (True, "")
    own(shared.file, OTHER)
    assert as_user(NOBODY, here)[0] is False
    own(shared.file, NOBODY)
    assert as_user(NOBODY, here) == (True, "")
    own(shared.tmp, OTHER)
    taken, said = as_user(NOBODY, here)
    assert not taken
    assert f"its folder {shared.tmp} belongs to {trusted_files.user(OTHER)}" in said


@for_each(("mode", "who"), [(0o666, "everybody"), (0o664, "group")])
def test_what_others_may_write_is_passed_over(shared: Shared, mode: int, who: str) -> None:
    shared.file.write_text(EVIL)
    shared.file.chmod(0o644)
    assert shared.counts()
    os.chown(shared.file, -1, 4 if os.geteuid() == 0 else -1)  # group adm
    shared.file.chmod(mode)
    if os.geteuid() == 0 or mode & 0o002:
        assert f"{who} " in shared.passed()
        assert f"`chmod go-w {shared.file}`" in shared.passed()


def test_a_folder_that_others_may_write_is_one_in_which_they_rename(shared: Shared) -> None:
    (shared.mine / "distui.toml").write_text(EVIL)
    assert shared.counts()
    shared.mine.chmod(0o777)
    assert f"everybody may write to its folder {shared.mine}" in shared.passed()
    shared.mine.chmod(0o755)
    shared.tmp.chmod(0o777)  # nothing keeps them from putting another folder in the place of this one
    assert f"everybody may write to its folder {shared.tmp}" in shared.passed()


@as_root
def test_a_group_counts_as_others_unless_it_is_the_users_own(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    import grp
    import pwd

    me = pwd.struct_passwd(("me", "x", NOBODY, NOBODY, "", "/nonexistent", ""))

    def group(name: str, members: list[str]) -> bool:
        monkeypatch.setattr(pwd, "getpwuid", lambda uid: me)
        monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((name, "x", gid, members)))
        shelf = as_user(NOBODY, lambda: library(shared.mine, shared.env))
        return "theirs" in shelf.names

    own(shared.mine, NOBODY)
    shared.file.write_text(EVIL)
    own(shared.file, NOBODY).chmod(0o664)
    assert group("me", [])
    assert group("me", ["me"])
    assert not group("me", ["me", "mallory"])
    assert not group("users", [])
    os.chown(shared.file, NOBODY, OTHER)
    assert not group("me", [])


@as_root
def test_an_access_list_of_a_private_group_counts_as_others(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trusted_files, "_private", lambda gid: True)
    shared.file.write_text(EVIL)
    shared.file.chmod(0o664)
    assert shared.counts()
    head = (2).to_bytes(4, "little")
    rows = [(1, 6, -1), (2, 6, NOBODY), (4, 4, -1), (16, 6, -1), (32, 4, -1)]
    body = b"".join(
        tag.to_bytes(2, "little") + mode.to_bytes(2, "little") + (who & 0xFFFFFFFF).to_bytes(4, "little")
        for tag, mode, who in rows
    )
    try:
        os.setxattr(shared.file, "system.posix_acl_access", head + body)
    except OSError as error:
        pytest.skip(f"no access lists here: {error}")
    assert "may write to it" in shared.passed()


@as_root
def test_links_are_followed_and_judged_at_both_ends(shared: Shared) -> None:
    good = shared.root / "good.toml"
    good.write_text(EVIL)
    shared.file.symlink_to(good)
    assert shared.counts()  # mine, to mine
    shared.file.unlink()
    as_user(NOBODY, lambda: shared.file.symlink_to(good))
    assert (
        f"the link {shared.file} belongs to" in shared.passed()
    )  # a stranger chose which of my files counts
    as_user(NOBODY, shared.file.unlink)
    theirs = (
        own(shared.tmp / "theirs", NOBODY) if (shared.tmp / "theirs").exists() else shared.tmp / "theirs"
    )
    as_user(NOBODY, theirs.mkdir)
    as_user(NOBODY, lambda: (theirs / "x.toml").write_text(EVIL))
    (shared.mine / "distui.toml").symlink_to(theirs / "x.toml")
    assert "belongs to" in shared.passed()  # mine, to a stranger's
    own(theirs / "x.toml", 0)
    assert f"its folder {theirs} belongs to" in shared.passed()  # mine, to mine in a stranger's folder


@as_root
def test_a_parent_of_a_stranger_may_put_another_folder_in_its_place(shared: Shared) -> None:
    deep = shared.mine / "a" / "b"
    deep.mkdir(parents=True)
    (shared.mine / "distui.toml").write_text(EVIL)
    assert shared.counts(deep)
    own(shared.mine / "a", NOBODY)
    assert shared.counts(deep)  # below the file: it is not on the way to it
    own(shared.mine, NOBODY)
    assert f"its folder {shared.mine} belongs to" in shared.passed(deep)


@as_root
def test_above_the_home_directory_nothing_is_asked(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    own(shared.tmp, NOBODY)
    (shared.mine / "distui.toml").write_text(EVIL)
    assert "belongs to" in shared.passed()
    status = shared.mine.stat()
    monkeypatch.setattr(trusted_files, "_home", lambda: (status.st_dev, status.st_ino))
    assert shared.counts()
    os.rename(shared.mine / "distui.toml", shared.mine / "x.toml")
    (shared.tmp / "distui.toml").symlink_to(shared.mine / "x.toml")
    os.chown(shared.tmp / "distui.toml", NOBODY, NOBODY, follow_symlinks=False)
    assert (
        "belongs to" in shared.passed()
    )  # a link from outside does not become the user's by where it leads


@as_root
def test_the_nearest_file_that_counts_is_taken(shared: Shared) -> None:
    as_user(NOBODY, lambda: shared.file.write_text(EVIL))
    (shared.root / "distui.toml").write_text('[preset.above]\nbase = "ddp"\n')
    shelf = library(shared.mine, shared.env)
    assert "above" in shelf.names
    assert "theirs" not in shelf.names
    assert len(shelf.notes) == 1


@as_root
def test_the_users_own_folder_is_judged_the_same_way(shared: Shared) -> None:
    folder = shared.root / "home" / ".config" / "distui" / "presets"
    folder.mkdir(parents=True)
    (folder / "theirs.toml").write_text('base = "ddp"\n')
    assert shared.counts()
    own(folder / "theirs.toml", NOBODY)
    assert "theirs.toml is passed over: it belongs to" in shared.passed()
    keys = folder.parent / "keys.toml"
    keys.write_text('stop = "X"\n')
    assert read_own(keys, shared.env) == ({"stop": "X"}, [])
    own(keys, NOBODY)
    document, passed = read_own(keys, shared.env)
    assert document is None
    assert "it belongs to" in passed[0]


@as_root
def test_trust_is_of_a_content_at_a_path(shared: Shared) -> None:
    as_user(NOBODY, lambda: shared.file.write_text(EVIL))
    trusted_files.add(shared.env, shared.file, trusted_files.content(shared.file))
    assert shared.counts()
    kept = trusted_files.file_of(shared.env)
    assert kept.stat().st_mode & 0o777 == 0o600
    as_user(NOBODY, lambda: shared.file.write_text(EVIL + "# more\n"))
    assert "it has changed since you trusted it" in shared.passed()
    as_user(NOBODY, lambda: shared.file.write_text(EVIL))
    assert shared.counts()  # the content is what was trusted
    other = shared.tmp / "other"
    as_user(NOBODY, other.mkdir)
    as_user(NOBODY, lambda: os.rename(shared.file, other / "distui.toml"))
    assert "is passed over" in shared.passed(other)
    assert trusted_files.remove(shared.env, shared.file)
    assert not trusted_files.remove(shared.env, shared.file)
    as_user(NOBODY, lambda: os.rename(other / "distui.toml", shared.file))
    assert "is passed over" in shared.passed()


@as_root
def test_a_trusted_file_that_becomes_something_else_is_passed_over_at_once(shared: Shared) -> None:
    as_user(NOBODY, lambda: shared.file.write_text(EVIL))
    trusted_files.add(shared.env, shared.file, EVIL.encode())
    for make in (
        lambda: os.mkfifo(shared.file),
        lambda: shared.file.symlink_to("/dev/zero"),
        shared.file.mkdir,
        lambda: shared.file.symlink_to(shared.file),
        lambda: shared.file.symlink_to("nowhere"),
        lambda: shared.file.write_bytes(b"#" * (trusted_files.MOST_BYTES + 1)),
    ):
        as_user(NOBODY, lambda: shared.file.rmdir() if shared.file.is_dir() else shared.file.unlink())
        as_user(NOBODY, make)
        assert "is passed over" in shared.passed()


@as_root
def test_a_list_of_trust_that_others_may_write_trusts_nothing(shared: Shared) -> None:
    as_user(NOBODY, lambda: shared.file.write_text(EVIL))
    trusted_files.add(shared.env, shared.file, EVIL.encode())
    kept = trusted_files.file_of(shared.env)
    kept.chmod(0o666)
    assert "trusted.json" in shared.passed()
    kept.chmod(0o600)
    assert shared.counts()
    for text in ("[", "{}", '{"files": []}', '{"files": {"a": 1}}', "[" * 100_000, ""):
        kept.write_text(text)
        assert "remove it, and trust your files again" in shared.passed()


@as_root
def test_a_race_of_renames_never_lets_a_strangers_text_through(shared: Shared) -> None:
    """A folder that everybody may write: the judged file and the read one are the same, whatever is swapped."""
    good = '[preset.mine]\nbase = "ddp"\n'
    shared.tmp.chmod(0o1777)
    (shared.root / "good.toml").write_text(good)
    as_user(NOBODY, lambda: (shared.tmp / "evil.toml").write_text(EVIL))
    ready, done = threading.Event(), threading.Event()

    def swap() -> None:
        while not done.is_set():
            for target in (shared.root / "good.toml", shared.tmp / "evil.toml"):
                link = shared.tmp / "next"
                link.symlink_to(target)
                os.rename(link, shared.file)
            ready.set()

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        ready.wait()
        taken = looks = 0
        while looks < 100 or not taken:
            looks += 1
            shelf = library(shared.mine, shared.env)
            assert "theirs" not in shelf.names
            taken += "mine" in shelf.names
    finally:
        done.set()
        thread.join()
    assert taken


HOSTILE = {
    "arrays": b"a = " + b"[" * 100_000,
    "tables": b"a = " + b"{b=" * 20_000,
    "dots": b"a" + b".a" * 50_000 + b" = 1",
    "quoted dots": b'"a"' + b" . 'a'" * 50_000 + b" = 1",
    "header": b"[a" + b".a" * 50_000 + b"]",
    "behind a string": b'a = """x"""""\nb = ' + b"[" * 5_000,
    "digits": b"a = " + b"9" * 100_000,
    "hexadecimal": b"a = 0x" + b"f" * 100_000,
}


@for_each("name", HOSTILE)
def test_hostile_text_is_a_sentence_that_names_the_file(shared: Shared, name: str) -> None:
    (shared.mine / "distui.toml").write_bytes(HOSTILE[name])
    with pytest.raises(PresetError) as caught:
        library(shared.mine, shared.env)
    assert str(caught.value).startswith(str(shared.mine / "distui.toml"))
    assert len(str(caught.value)) < 400


@for_each("name", HOSTILE)
def test_hostile_text_among_the_users_own_presets_is_a_sentence_of_every_verb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = tmp_path / "distui" / "presets"
    folder.mkdir(parents=True)
    (folder / "x.toml").write_bytes(HOSTILE[name])
    (tmp_path / "t.py").touch()
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for words in (
        ["presets"],
        ["presets", "show", "x"],
        ["plan", "x", "--", "t.py"],
        ["launch", "x", "--", "t.py"],
    ):
        code = main(words)
        said = capsys.readouterr().err
        assert code == (1 if words == ["presets"] else 2), (words, said)
        assert "x.toml" in said or words == ["presets"], words
        assert "Traceback" not in said


def test_what_is_deep_enough_for_anybody_is_read() -> None:
    deep = DEEPEST - 1
    assert parse_toml(b"a" + b".a" * deep + b" = 1", "x")
    assert parse_toml(b"a = " + b"[" * DEEPEST + b"]" * DEEPEST, "x")
    assert parse_toml(b'a = "' + b"[.{" * 1000 + b"\"\nb = '" + b"[" * 1000 + b"'  # " + b"[" * 1000, "x")
    assert parse_toml(b'a = """' + b'["' * 1000 + b'x"""\n', "x")
    assert parse_toml(b'a = "' + b"10.0.0.1 " * 1000 + b'"', "x")


@for_each(
    "text", [b"a" + b".a" * 300_000 + b" = 1", b"[" + b'"a" . ' * 100_000 + b"a]", b"a = " + b"[" * 100_000]
)
def test_what_is_nested_without_end_is_refused_at_once(text: bytes) -> None:
    with pytest.raises(PresetError, match="nested more than 32 deep"):
        parse_toml(text, "x")


def test_only_regular_files_are_read(shared: Shared) -> None:
    file = shared.mine / "distui.toml"
    kinds: list[Callable[[], None]] = [
        lambda: os.mkfifo(file), file.mkdir, lambda: file.symlink_to("/dev/zero"),
    ]  # fmt: skip
    for make in kinds:
        make()
        said = library(shared.mine, shared.env).notes
        assert len(said) == 1
        assert "must be a regular file" in said[0]
        file.rmdir() if file.is_dir() else file.unlink()
    folder = shared.root / "home" / ".config" / "distui" / "presets"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "pipe.toml")
    (folder / "zero.toml").symlink_to("/dev/zero")
    (folder / "gone.toml").symlink_to("nowhere")
    (folder / "itself.toml").symlink_to("itself.toml")
    assert set(library(shared.mine, shared.env).problems) == {"pipe", "zero", "gone", "itself"}
