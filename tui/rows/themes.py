"""Names of the themes."""

THEMES = ("dark", "light", "terminal")
"""Names of distui's own themes in the file, in the order of the key."""
TEXTUAL_THEMES = (
    "textual-dark",
    "textual-light",
    "nord",
    "gruvbox",
    "catppuccin-mocha",
    "dracula",
    "tokyo-night",
    "monokai",
    "flexoki",
    "catppuccin-latte",
    "catppuccin-frappe",
    "catppuccin-macchiato",
    "solarized-light",
    "solarized-dark",
    "rose-pine",
    "rose-pine-moon",
    "rose-pine-dawn",
    "atom-one-dark",
    "atom-one-light",
    "ansi-dark",
    "ansi-light",
)
"""Themes of Textual; listed by name, since importing them is slow."""
ALL_THEMES = (*THEMES, *TEXTUAL_THEMES)
