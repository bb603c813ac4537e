#!/usr/bin/env python3
"""Passes when every booking reference in the answer is one that a tool has returned."""

import json
import re
import sys

turn = json.load(sys.stdin)
tools = " ".join(message["content"] or "" for message in turn["messages"] if message["role"] == "tool")
told = set(re.findall(turn["config"].get("pattern", r"BK-\d+"), turn["answer"] or ""))
made_up = sorted(reference for reference in told if reference not in tools)
reason = f"made up: {', '.join(made_up)}" if made_up else f"all of {len(told)} come from a tool"
print(json.dumps({"pass": not made_up, "reason": reason, "value": len(told)}))
