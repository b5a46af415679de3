"""Runs for language models: `distui mcp` serves the verbs as tools (MCP), and SKILL.md says how to use them."""
