#!/usr/bin/env python3
"""Runs the `grade(sample, item)` of an OpenAI `python` grader, whose source is in the evaluator's config.

Whoever may call the server runs their own Python with it, so allow it to callers that you trust, isolated.
"""

import contextlib
import json
import sys

turn = json.load(sys.stdin)
config = turn["config"]
calls = [
    {"id": call["id"], "type": "function", "function": call["function"]} for call in turn["tool_calls"] or ()
]
sample = {"output_text": turn["answer"], "output_tools": calls}
sample["choices"] = [{"message": {"role": "assistant", "content": turn["answer"], "tool_calls": calls}}]
with contextlib.suppress(ValueError):
    sample["output_json"] = json.loads(turn["answer"] or "")

names = {"__name__": "grader"}
exec(compile(config["source"], "grader.py", "exec"), names)  # noqa: S102 - what it is for; callers and isolation are the operator's
number = float(names["grade"](sample, (turn["metadata"] or {}).get("item") or {}))
least = config["passThreshold"]
answer = {
    "pass": number >= least,
    "value": number,
    "reason": f"grade() returned {number:g}, {least:g} wanted",
}
if 0 <= number <= 1:
    answer["score"] = number
print(json.dumps(answer))
