"""What distui's ssh does whatever the user's configuration says, and what a host is asked before a launch."""

from __future__ import annotations

from distui.runners.launch.hosts import SCRIPT
from distui.runners.run.wire.ssh import argv


def test_nothing_of_the_user_is_forwarded_to_a_host() -> None:
    """A model may name any host, and one that it names is anybody's."""
    words = argv("hostx", (), ("sh",))
    assert {"-oForwardAgent=no", "-oForwardX11=no", "-oClearAllForwardings=yes", "-oBatchMode=yes"} <= {
        *words
    }
    assert words[-3:] == ["--", "hostx", "sh"]


def test_a_host_starts_python_before_it_enters_a_folder_that_somebody_named() -> None:
    assert SCRIPT.index('found=$("$name" -c') < SCRIPT.index('cd "$work"')
