"""What of a plan's launcher differs from node to node: filled in for one of them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from . import accelerate, deepspeed, torchrun

OWN_FILES = (deepspeed.HOST_FILE, deepspeed.HEAD_SCRIPT)
"""Files that hold placeholders, beside accelerate's."""


def placed_argv(
    launcher: str, words: Sequence[str], command: Sequence[str], node: int, addresses: Sequence[str]
) -> tuple[str, ...]:
    """The command line of node number `node`; the user's own words, `command`, are left alone."""
    if launcher == "torchrun":
        return torchrun.placed(words, addresses[0], addresses[node], node)
    own = len(words) - len(command)
    return (*(_filled(word, node, addresses) for word in words[:own]), *words[own:])


def files(texts: Mapping[str, str], node: int, addresses: Sequence[str]) -> dict[str, str]:
    """The files of node number `node`."""
    return {
        name: _filled(text, node, addresses)
        if name in OWN_FILES or name.startswith("accelerate/")
        else text
        for name, text in texts.items()
    }


def moved(texts: Mapping[str, str], names: Sequence[str], before: str, after: str) -> dict[str, str]:
    """`texts` with the paths of the files `names` in another run directory."""
    made = dict(texts)
    for name in names:
        made = {key: text.replace(f"{before}/{name}", f"{after}/{name}") for key, text in made.items()}
    return made


def _filled(text: str, node: int, addresses: Sequence[str]) -> str:
    for number, address in enumerate(addresses):
        text = text.replace(deepspeed.address(number), address)
    return text.replace(accelerate.HEAD, addresses[0]).replace(accelerate.NODE, str(node))
