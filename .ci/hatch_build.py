"""The description in the package's metadata: the README without its pictures and relative links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)]+)\)")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)[^)]+\)")


class Readme(MetadataHookInterface):
    """Sets `readme` in the metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """See hatchling's MetadataHookInterface."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": standing_alone(text, Path(self.root)),
        }


def standing_alone(text: str, root: Path) -> str:
    """Return a README for a page outside the repository: pictures as text or captions, relative links as plain words."""

    def drawn(match: re.Match[str]) -> str:
        rendered = root / re.sub(r"(-\d+x\d+)?\.svg$", "-80x24.txt", match[2])
        if rendered.suffix == ".txt" and rendered.is_file():
            return f"```text\n{rendered.read_text(encoding='utf-8')}```"
        return f"*{match[1]}: `{match[2]}` in the source distribution.*"

    return LINK.sub(r"\1", PICTURE.sub(drawn, text))
