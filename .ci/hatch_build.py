"""The description in the package's metadata: the README as a page that has neither its pictures nor its neighbours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)[^)]+\)")


class Readme(MetadataHookInterface):
    """Fills `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """See hatchling."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": standing_alone(text, Path(self.root)),
        }


def standing_alone(text: str, root: Path) -> str:
    """A README without what only a checkout has: pictures as text, or their captions; links as their words."""

    def drawn(match: re.Match[str]) -> str:
        rendered = root / re.sub(r"(-\d+x\d+)?\.svg$", "-80x24.txt", match[2])
        if rendered.suffix == ".txt" and rendered.is_file():
            return f"```text\n{rendered.read_text(encoding='utf-8')}```"
        return f"*{match[1]}: `{match[2]}` in the source distribution.*"

    return LINK.sub(r"\1", PICTURE.sub(drawn, text))
