"""What a terminal is sent: the sequence that it shows, through what stands before it, and that no log can break it."""

from __future__ import annotations

from each import for_each

from distui.runners.notify.messages import text_of
from distui.runners.notify.notice_rules import Notice
from distui.tui.alert_bytes import alert_bytes, kind_of
from distui.tui.alerts import TYPED_S, TerminalFocus

KITTY = {"TERM": "xterm-kitty"}
TMUX = {"TERM": "tmux-256color", "TMUX": "/tmp/tmux-0/default,1,0"}
SCREEN = {"TERM": "screen-256color", "STY": "1.pts-0.host"}


def text(what: str = "ranks 0-2 hang", more: str = "all have joined") -> object:
    return text_of(Notice("hang", "k", what, 1.0, more), "night", "gpu1")


def sent(env: dict[str, str], sequence: str = "auto", what: str = "ranks 0-2 hang") -> str:
    return alert_bytes(text(what), env, sequence)  # type: ignore[arg-type]


@for_each(
    ("env", "kind"),
    [
        (KITTY, "osc9"), ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "osc9"),
        (TMUX, "osc9"), (SCREEN, "osc9"),
        ({"TERM": "xterm-256color", "VTE_VERSION": "7600"}, "osc777"), ({"TERM": "foot"}, "osc777"),
        ({"TERM": "rxvt-unicode-256color"}, "osc777"), ({"TERM": "xterm-256color"}, "bell"), ({"TERM": "linux"}, "bell"),
        ({}, "bell"),
    ],
)  # fmt: skip
def test_each_terminal_is_sent_what_it_shows(env: dict[str, str], kind: str) -> None:
    assert kind_of(env) == kind


def test_the_bytes_of_each_sequence() -> None:
    assert sent(KITTY) == "\x1b]9;distui: night: ranks 0-2 hang. All have joined\x1b\\\a"
    assert sent({"TERM": "foot"}) == "\x1b]777;notify;night: ranks 0-2 hang;All have joined\x1b\\\a"
    assert sent({"TERM": "xterm-256color"}) == "\a"
    assert sent(KITTY, "bell") == "\a"
    assert sent({}, "osc777").startswith("\x1b]777;notify;")


def test_tmux_and_screen_pass_it_through() -> None:
    inside = "]9;distui: night: ranks 0-2 hang. All have joined"
    assert sent(TMUX) == f"\x1bPtmux;\x1b\x1b{inside}\x1b\x1b\\\x1b\\\a"
    assert sent(SCREEN) == f"\x1bP\x1b{inside}\a\x1b\\\a"


@for_each("env", [KITTY, {"TERM": "foot"}, TMUX, SCREEN])
def test_what_a_log_says_ends_no_sequence(env: dict[str, str]) -> None:
    plain = sent(env)
    hostile = sent(env, what="x\x1b\\\x07\x9c\x1b]0;owned\x07;y\n\x1b[2J")
    assert [hostile.count(each) for each in ("\x1b", "\a", "\x9c", "\n")] == [
        plain.count(each) for each in ("\x1b", "\a", "\x9c", "\n")
    ]
    assert len(hostile.encode()) < 330
    assert len(sent(SCREEN, what="x" * 1000).encode()) < 256 + 8


def test_somebody_sits_there_by_what_the_terminal_reports() -> None:
    focus = TerminalFocus()
    focus.report(True)
    assert not focus.away(1e6)
    focus.report(False)
    focus.typed(1e6)
    assert focus.away(1e6)


def test_a_terminal_that_reports_nothing_is_left_when_nobody_types() -> None:
    focus = TerminalFocus()
    assert focus.away(0.0)
    focus.typed(100.0)
    assert not focus.away(100.0 + TYPED_S)
    assert focus.away(100.0 + TYPED_S + 1)
