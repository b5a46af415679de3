"""`[notify]` of settings.toml: what counts, what is refused, and that no address or token leaves memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from distui.runners.notify import channels
from distui.runners.notify.channels import (
    ChannelTarget,
    Configured,
    NotificationChannel,
    load,
    resolved,
    target,
)
from distui.runners.notify.messages import (
    apprise_request,
    generic,
    text_of,
    variables,
    webhook_request,
    without,
)
from distui.runners.notify.notice_rules import Notice
from distui.runners.notify.rule_words import every_rule
from distui.runners.run.errors import RunError
from distui.runners.run.settings_file import SecretError

SECRET = "https://hooks.slack.com/services/T0/B0/sEcReTpArT"


def configured(tmp_path: Path, text: str, mode: int = 0o600) -> Configured:
    path = tmp_path / "distui" / "settings.toml"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return load({"XDG_CONFIG_HOME": str(tmp_path)})


def address(settings: Configured, name: str = "team", **env: str) -> ChannelTarget:
    return target(settings.channels[name], env.get, settings.path.parent)


def test_without_settings_nothing_is_sent(tmp_path: Path) -> None:
    empty = configured(tmp_path, "")
    assert set(empty.channels) == {"terminal", "desktop"}
    assert resolved((), empty) == ()
    assert not empty.problems


def test_a_way_is_sent_on_when_a_launch_or_the_settings_say_so(tmp_path: Path) -> None:
    text = (
        f'[notify]\nsend = ["team:gave-up"]\n[notify.channels.team]\ntype = "webhook"\nurl = "{SECRET}"\n'
    )
    settings = configured(tmp_path, text)
    assert resolved((), settings) == ("team:gave-up",)
    assert resolved(("team",), settings) == ("team:all",)
    assert resolved(("team:-hang", "terminal:gave-up"), settings)[1] == "terminal:gave-up"
    assert resolved(("off",), settings) == ("off",)
    assert SECRET not in "".join(resolved(("team",), settings))
    assert SECRET not in repr(settings.channels)
    assert address(settings).url == SECRET


def test_rules_of_all_ways_and_of_each(tmp_path: Path) -> None:
    text = (
        '[notify]\nrules = ["hang", "gave-up", "gpus-idle=10"]\n[notify.channels.a]\ntype = "desktop"\n'
        '[notify.channels.b]\ntype = "desktop"\nrules = ["-hang"]\n'
    )
    settings = configured(tmp_path, text)
    assert resolved(("a", "b", "a:hang"), settings) == ("a:hang", "b:gave-up,gpus-idle=10")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("teem",), "did you mean team?"), (("hangs:x",), "unknown channel hangs"),
        (("team:hangs",), "did you mean hang?"),
        (("off", "team"), "excludes every channel"), (("",), "name of a channel"), (("a b",), "name of a channel"),
        (("-x",), "name of a channel"),
    ],
)  # fmt: skip
def test_what_a_launch_cannot_mean_is_refused(tmp_path: Path, words: tuple[str, ...], part: str) -> None:
    settings = configured(tmp_path, f'[notify.channels.team]\ntype = "webhook"\nurl = "{SECRET}"\n')
    with pytest.raises(RunError) as refused:
        resolved(words, settings)
    assert part in str(refused.value)


def test_an_address_on_the_command_line_is_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(RunError) as refused:
        resolved((SECRET,), configured(tmp_path, ""))
    assert "sEcReT" not in str(refused.value)
    assert "settings.toml" in str(refused.value)


def test_a_way_with_a_mistake_is_named_and_refused_at_a_launch(tmp_path: Path) -> None:
    for lines, part in [
        ('type = "slak"', "type must be one of"), ('type = "webhook"', "needs its address"),
        (f'type = "webhook"\nurl = "{SECRET}"\nurl_file = "x"', "in one of"),
        ('type = "webhook"\nurl = 3', "must be a string"),
        ('type = "command"', "list of words"), ('type = "command"\ncommand = "rm -rf"', "list of words"),
        ('type = "command"\ncommand = []', "list of words"), ('type = "desktop"\nurl = "x"', "has no setting"),
        ('type = "webhook"\nurl_env = "MY_ADDRESS"', "name of a secret"),
        (f'type = "webhook"\nurl = "{SECRET}"\nurls = 1', "did you mean"),
        (f'type = "webhook"\nurl = "{SECRET}"\nrules = "hang"', "list of rules"),
        ('type = "terminal"', "must be called terminal"),
        ('type = "apprise"\nurl_file = "x"\ntoken_file = "y"', "of type apprise has no setting"),
        (f'type = "webhook"\nurl = "{SECRET}"\nrules = ["hangs"]', "did you mean hang?"),
    ]:  # fmt: skip
        settings = configured(tmp_path, f"[notify.channels.team]\n{lines}\n")
        (problem,) = settings.problems
        assert part in problem
        assert problem.startswith(str(settings.path))
        assert "sEcReT" not in problem
        with pytest.raises(RunError) as refused:
            resolved(("team",), settings)
        assert part in str(refused.value)


@pytest.mark.parametrize(
    "text", ["notify = 3", "[notify]\nsend = 3", "[notify]\nways = 1", "[notify]\nx = 1", "[notify"]
)
def test_a_broken_table_costs_a_sentence(tmp_path: Path, text: str) -> None:
    settings = configured(tmp_path, text)
    assert len(settings.problems) == 1
    assert resolved((), settings) == ()


def test_what_no_launch_could_take_in_send_is_named_once() -> None:
    team = {"type": "webhook", "url_env": "TEAM_WEBHOOK"}
    table = {
        "send": ["team:hangs", "tem", "off", "phone"],
        "channels": {"team": team, "phone": {"type": "x"}},
    }
    problems = channels.problems_of(table, Path("/s.toml"))
    assert [
        part in each for part, each in zip(("phone.type", "hang?", "team?"), problems, strict=True)
    ] == [True] * 3


def test_settings_that_others_can_write_do_not_count(tmp_path: Path) -> None:
    settings = configured(tmp_path, f'[notify.channels.team]\ntype = "webhook"\nurl = "{SECRET}"\n', 0o666)
    assert "team" not in settings.channels
    assert "passed over" in settings.problems[0]


@pytest.mark.parametrize("source", ["url", "url_file"])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, source: str) -> None:
    hidden = tmp_path / "hidden"
    hidden.write_text(SECRET)
    hidden.chmod(0o644)
    value = SECRET if source == "url" else str(hidden)
    settings = configured(
        tmp_path, f'[notify.channels.team]\ntype = "webhook"\n{source} = "{value}"\n', 0o644
    )
    with pytest.raises(SecretError, match="chmod 600") as refused:
        address(settings)
    assert "sEcReT" not in str(refused.value)
    hidden.chmod(0o600)
    settings.path.chmod(0o600)
    assert address(settings).url == SECRET


def test_a_file_beside_the_settings_and_one_that_is_missing(tmp_path: Path) -> None:
    settings = configured(tmp_path, '[notify.channels.team]\ntype = "webhook"\nurl_file = "team-url"\n')
    with pytest.raises(SecretError, match="cannot be read: No such file"):
        address(settings)
    beside = settings.path.parent / "team-url"
    beside.touch(mode=0o600)
    with pytest.raises(SecretError, match="is empty"):
        address(settings)
    beside.write_text(f"\n{SECRET}\n")
    assert address(settings).url == SECRET
    beside.unlink()
    os.mkfifo(beside, 0o600)
    with pytest.raises(SecretError, match="regular file"):
        address(settings)


def test_a_variable_of_the_launch(tmp_path: Path) -> None:
    settings = configured(tmp_path, '[notify.channels.team]\ntype = "webhook"\nurl_env = "TEAM_WEBHOOK"\n')
    with pytest.raises(SecretError, match="TEAM_WEBHOOK is not set"):
        address(settings)
    assert address(settings, TEAM_WEBHOOK=SECRET).url == SECRET


def test_what_is_no_address_is_refused_and_not_repeated(tmp_path: Path) -> None:
    for url in [
        "hooks.slack.com/x", "ftp://h/x", "file:///etc/passwd", "https:///x", "https://h:99999/", "https://h/x y",
        "https://me:pw@h/x", "https://h/\x7f", "https://hä/x",
    ]:  # fmt: skip
        settings = configured(
            tmp_path, '[notify.channels.team]\ntype = "webhook"\nurl_env = "TEAM_WEBHOOK"\n'
        )
        with pytest.raises(SecretError) as refused:
            address(settings, TEAM_WEBHOOK=url)
        assert url not in str(refused.value)


# --- texts ---


HOSTILE = 'rank 3 raised "<!channel> & <@U1> @everyone" \x1b]0;x\x07\n token=abcdefghijklmnop1234'


def hostile() -> Notice:
    return Notice("gave-up", "k", "it failed", 5.0, HOSTILE, "mend it", "error", (3,), 0)


def way(kind: str) -> NotificationChannel:
    return NotificationChannel("w", kind, every_rule(), url=SECRET)


def test_a_text_says_run_what_rank_remedy_and_how_to_attach() -> None:
    text = text_of(hostile(), "night", "gpu1", {"hang": 3})
    assert text.title == "night: it failed"
    assert text.lines[1:] == (
        "Remedy: mend it", "On gpu1: distui attach night", "Left out by the rate limit: 3 notifications of hang",
    )  # fmt: skip
    assert text.ranks == (3,)


def test_what_a_log_says_calls_no_channel_and_acts_on_nothing() -> None:
    text = text_of(hostile(), "night", "gpu1")
    assert "\x1b" not in text.whole
    assert "abcdefghijklmnop1234" not in text.whole
    for sent in (generic(text)["text"], apprise_request(ChannelTarget(SECRET), text)["body"]):
        assert not [each for each in ("<!", "<@", "@everyone") if each in sent]


def test_the_names_of_a_run_and_of_its_host_are_one_line_each() -> None:
    text = text_of(hostile(), "ni\nght\x1b]0;x\x07", "gp\nu1")
    values = variables(text)
    assert (text.run, text.host, text.attach) == ("ni ght", "gp u1", "distui attach ni ght")
    assert text.title.startswith("ni ght: ")
    assert text.lines[-1] == "On gp u1: distui attach ni ght"
    assert (values["DISTUI_NOTIFY_RUN"], values["DISTUI_NOTIFY_HOST"]) == ("ni ght", "gp u1")


def test_a_long_text_is_cut() -> None:
    text = text_of(Notice("hang", "k", "x" * 5000, 1.0, "y" * 500_000), "night", "gpu1")
    assert len(text.whole) < 1600


def test_the_request_of_each_kind() -> None:
    text = text_of(hostile(), "night", "gpu1")
    request = webhook_request(ChannelTarget("https://h/x", "t0ken"), text)
    assert request["headers"]["Authorization"] == "Bearer t0ken"
    assert '"version": 1' in request["body"]
    assert generic(text)["text"].startswith("night: it failed\nRank 3 raised")
    message = apprise_request(ChannelTarget("ntfys://topic"), text)
    assert (message["url"], message["title"], message["type"]) == (
        "ntfys://topic",
        "night: it failed",
        "failure",
    )
    assert "sEcReT" not in repr(ChannelTarget(SECRET, "t0ken")) + repr(way("webhook"))


def test_an_address_of_apprise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("apprise")
    settings = configured(tmp_path, '[notify.channels.team]\ntype = "apprise"\nurl_env = "TEAM_WEBHOOK"\n')
    where = address(settings, TEAM_WEBHOOK="mailto://me:p%40ss-word@gmail.com?to=you@x.org")
    assert where.host == "mailto"
    assert not [
        each for each in ("p@ss-word", "p%40ss-word", "gmail") if each in without(where.url, where.secrets)
    ]
    assert address(settings, TEAM_WEBHOOK=SECRET).host == "hooks.slack.com"
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(SecretError, match=r"it needs apprise: `.* -m pip install 'apprise>=2\.3,<3'`"):
        address(settings, TEAM_WEBHOOK=SECRET)
    for url in ("sEcReT", "slack://a b", "slack://", "://sEcReT"):
        with pytest.raises(SecretError) as refused:
            address(settings, TEAM_WEBHOOK=url)
        assert "sEcReT" not in str(refused.value)


def test_of_the_secrets_of_a_target_nothing_is_quoted() -> None:
    where = ChannelTarget(SECRET + "?key=abcd", "t0ken")
    text = without(f"failed: {SECRET}?key=abcd services/T0/B0/sEcReTpArT key=abcd t0ken", where.secrets)
    assert not [part for part in ("sEcReT", "abcd", "t0ken") if part in text]
