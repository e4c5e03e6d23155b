"""Adds up the JSON outputs of `monolayer eval --json` over parts of one question set.

    python3 eval_merge.py PART.json... > WHOLE.json

Parts must agree in everything but data, limit, steps and seconds.
"""

import json
import math
import sys

SUMS = ("asked", "exact", "wrong", "truncated", "parse_failures", "failed", "prompt_tokens", "reply_tokens")
APART = ("data", "limit", "steps", "seconds", "tasks", "misses", "speculation")


def wilson(hits, trials, z=1.959963984540054):
    p, scale = hits / trials, 1 + z * z / trials
    middle = (p + z * z / (2 * trials)) / scale
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials)) / scale
    return [max(0.0, middle - half), min(1.0, middle + half)]


def merge(parts):
    head = {k: v for k, v in parts[0].items() if k not in APART}
    tasks, misses = {}, []
    for part in parts:
        assert {k: v for k, v in part.items() if k not in APART} == head, part["data"]
        misses += [m | {"data": part["data"]} for m in part["misses"]]
        for task in part["tasks"]:
            assert "perplexity" not in task, "texts are not added up"
            sum_of = tasks.setdefault(task["task"], {"task": task["task"], "longest_prompt": 0} | dict.fromkeys(SUMS, 0))
            for key in SUMS:
                sum_of[key] += task[key]
            sum_of["longest_prompt"] = max(sum_of["longest_prompt"], task["longest_prompt"])
    for task in tasks.values():
        task |= {"exact_share": task["exact"] / task["asked"], "wilson_95": wilson(task["exact"], task["asked"])}
    return head | {"parts": len(parts), "seconds": sum(p["seconds"] for p in parts), "tasks": list(tasks.values()),
                   "misses": misses}


if __name__ == "__main__":
    print(json.dumps(merge([json.load(open(name)) for name in sys.argv[1:]]), indent=1))
