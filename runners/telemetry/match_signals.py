"""Matches a user's patterns against lines: a process of its own, because `re` holds the interpreter while it backtracks.

    python -I -S match_signals.py PATTERN...

A request is one JSON list of lines; the answer is one JSON list with, for each match, {group: text}. Standard library
only; imports nothing of distui, so that it starts in milliseconds.
"""

from __future__ import annotations

import json
import re
import sys

LONGEST = 64
"""Characters of a number; a longer text is none."""


def main(patterns: list[str]) -> int:
    compiled = [re.compile(pattern) for pattern in patterns]
    for request in sys.stdin:
        matches = [
            {name: text for name, text in match.groupdict("").items() if 0 < len(text) <= LONGEST}
            for line in json.loads(request)
            for pattern in compiled
            if (match := pattern.search(line)) is not None
        ]
        sys.stdout.write(json.dumps(matches) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
