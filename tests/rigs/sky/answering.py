"""Stands in for the process that asks SkyPilot: `answering.py SCENE … START`, where SCENE holds answers by verb.

What a cloud refuses (quota, capacity, credentials) cannot be had on a test machine. Everything above this border, the
questions and answers as JSON lines, is real.

SCENE: {"verb": [{"said": […], "request": …, "after": PATH, "data"|"error"|"die"|"hang": …}]}; the last answer of a verb
repeats, and one with "after" comes when there is such a file.
Questions are added to SCENE.asked.
"""

import json
import os
import sys
import time

scene = sys.argv[1]
with open(scene, encoding="utf-8") as file:
    answers = json.load(file)
counts: dict[str, int] = {}
if os.path.exists(scene + ".asked"):  # a child before this one was asked already
    with open(scene + ".asked", encoding="utf-8") as file:
        for line in file:
            counts[json.loads(line).get("verb", "")] = counts.get(json.loads(line).get("verb", ""), 0) + 1
for line in sys.stdin:
    asked = json.loads(line)
    with open(scene + ".asked", "a", encoding="utf-8") as file:
        file.write(line)
    if "cancel" in asked:
        continue
    verb, number = asked["verb"], asked["id"]
    told = answers.get(verb, [{"data": None}])
    answer = told[min(counts.get(verb, 0), len(told) - 1)]
    counts[verb] = counts.get(verb, 0) + 1
    for text in answer.get("said", []):
        print(json.dumps({"id": number, "said": text}), flush=True)
    if "request" in answer:
        print(json.dumps({"id": number, "request": answer["request"]}), flush=True)
    while "after" in answer and not os.path.exists(answer["after"]):
        time.sleep(0.01)
    if answer.get("die"):
        sys.stdout.flush()
        time.sleep(0.05)
        os._exit(3)
    if not answer.get("hang"):
        print(
            json.dumps({"id": number, **{k: answer[k] for k in ("data", "error") if k in answer}}),
            flush=True,
        )
