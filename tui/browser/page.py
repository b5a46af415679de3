"""`python -m distui.tui.browser.page SOCKET`: the process of one page, with the cockpit of a shared run.

textual-serve starts it, with pipes in place of a terminal.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..app import CockpitApp
from ..shared_source import SharedSource

PARENT_S = 2.0
"""Seconds between two checks that the server lives."""


class PageApp(CockpitApp):
    """The cockpit, which ends with its server."""

    CSS_PATH = "../app.tcss"

    def on_mount(self) -> None:
        """Watch the server. Textual calls the handler of the base class as well."""
        self._server = os.getppid()
        self.set_interval(PARENT_S, self._end_without_server)

    def _end_without_server(self) -> None:
        if os.getppid() != self._server:
            self.exit()


def main(argv: list[str]) -> int:
    """Show the run until the page is closed."""
    (share,) = argv
    app = PageApp(SharedSource(Path(share), os.getuid()), share, readonly=True, in_browser=True)
    app.run()
    app.work.print_tracebacks()
    return app.return_code or 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
