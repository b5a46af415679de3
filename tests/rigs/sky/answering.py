"""Stands in for the process that asks SkyPilot: `answering.py SCENE … START`, where SCENE holds answers by verb.

What a cloud refuses (quota, capacity, credentials) cannot be had on a test machine. Everything above this border, the
questions and answers as JSON lines, is real.

SCENE: {"verb": [{"said": […], "request": …, "after": PATH, "data"|"error"|"die"|"hang": …}]}; the last answer of a verb
repeats, and one with "after" comes when there is such a file.
Questions are added to SCENE.asked.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


class Answers:
    """The answers of a scene, in the order of the questions. A child before this one may have been asked already."""

    def __init__(self, scene: str) -> None:
        self._asked = scene + ".asked"
        with open(scene, encoding="utf-8") as file:
            self._answers: dict[str, list[dict[str, Any]]] = json.load(file)
        self._counts: dict[str, int] = {}
        if os.path.exists(self._asked):
            with open(self._asked, encoding="utf-8") as file:
                for line in file:
                    self._count(json.loads(line).get("verb", ""))

    def _count(self, verb: str) -> int:
        number = self._counts.get(verb, 0)
        self._counts[verb] = number + 1
        return number

    def to(self, line: str) -> dict[str, Any] | None:
        """The answer to a question, with its `id`; None for a message that is no question."""
        asked = json.loads(line)
        with open(self._asked, "a", encoding="utf-8") as file:
            file.write(line)
        if "cancel" in asked:
            return None
        answers = self._answers.get(asked["verb"], [{"data": None}])
        answer = answers[min(self._count(asked["verb"]), len(answers) - 1)]
        return {"id": asked["id"], **answer}


def first(answer: dict[str, Any]) -> str:
    """The lines that come at once."""
    number = answer["id"]
    told = [{"id": number, "said": text} for text in answer.get("said", [])]
    if "request" in answer:
        told.append({"id": number, "request": answer["request"]})
    return "".join(json.dumps(one) + "\n" for one in told)


def waits(answer: dict[str, Any]) -> bool:
    """Whether the last line may not come yet."""
    return "after" in answer and not os.path.exists(answer["after"])


def last(answer: dict[str, Any]) -> str:
    """The line that ends the answer; "" where there is none."""
    if answer.get("hang"):
        return ""
    return json.dumps({key: answer[key] for key in ("id", "data", "error") if key in answer}) + "\n"


def main(scene: str) -> None:
    answers = Answers(scene)
    for line in sys.stdin:
        answer = answers.to(line)
        if answer is None:
            continue
        print(first(answer), end="", flush=True)
        while waits(answer):
            time.sleep(0.01)
        if answer.get("die"):
            sys.stdout.flush()
            time.sleep(0.05)
            os._exit(3)
        print(last(answer), end="", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
