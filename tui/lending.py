"""What leaves the screen: copied lines, and programs that the terminal is lent to."""

from __future__ import annotations

import subprocess

from textual.app import App, SuspendNotSupported

from . import terminal


class LendingApp(App[None]):
    """Lends the terminal, and gives text away."""

    def keep(self, text: str) -> None:
        """Copy to the terminal's clipboard, and to a file for terminals that do not let us."""
        if not text:
            self.notify("no line to copy")
            return
        self.copy_to_clipboard(text)
        try:
            path = terminal.keep_copy(text)
        except OSError as error:
            self.notify(f"copied to the clipboard only: {error}", severity="warning", markup=False)
            return
        self.notify(f"{text.count(chr(10)) + 1} lines copied, also to {path}", markup=False)

    def page(self, text: str) -> None:
        """The user's pager on this text."""
        path = terminal.spill(text)
        self.lend(terminal.pager_argv(path))
        path.unlink(missing_ok=True)

    def lend(self, argv: list[str]) -> None:
        """Let a program have the terminal until it ends."""
        try:
            with self.suspend():
                subprocess.run(argv, check=False)
        except SuspendNotSupported:
            self.notify("this terminal cannot be lent to another program", severity="warning")
        except OSError as error:
            self.notify(
                f"{argv[0]} did not start: {error.strerror or error}", severity="error", markup=False
            )
