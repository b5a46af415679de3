"""Match a user's patterns against lines, in a separate process because `re` holds the GIL while it backtracks.

    python -I -S match_signals.py PATTERN...

A request is one JSON list of lines; the answer is one JSON list with {group: text} per match. It uses only the standard
library and imports nothing of distui, so that it starts in milliseconds.
"""

from __future__ import annotations

import json
import re
import sys

LONGEST = 64
"""Maximum characters of a number; a longer text is not a number."""


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
