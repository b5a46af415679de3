"""Runs for language models: `distui mcp` serves the verbs as tools (MCP), and SKILL.md says how to use them."""

from __future__ import annotations

from importlib import resources


def skill() -> str:
    """Return the text of SKILL.md."""
    return resources.files(__package__).joinpath("SKILL.md").read_text("utf-8")
