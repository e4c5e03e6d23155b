"""Writes the questions that `monolayer eval` asks: held out from training by seed and, for word problems, by text.

    python3 -m train_nano.eval_set OUT_DIR [--tokenizer ../assets/nano/tokenizer.json] [--small]

The output repeats byte for byte. `--small` gives the few lines that the tests use.
"""

import argparse
import json
import pathlib
import random

from tokenizers import Tokenizer

from .chat import MODES, NAMESPACE, Renderer, check, forced
from .config import NANO
from .data.mixture import DEVELOPERS, evaluation_problems, held_out
from .data.arithmetic import problem
from .data.retrieval import TOKENS_A_LINE, document, needle
from .data.smalltalk import smalltalk
from .data.tools import TOOLSETS, tool_turn, toolset

# Training draws from 1,000,000 on, the looks of a training run from 77 on, the tokenizer from 500.
RETRIEVAL_SEED, TOOLS_SEED, TEXT_SEED = 31_001, 31_002, 31_003
SHORTEST, LONGEST = 600, 3000  # tokens of a retrieval's prompt


def _line(task, turn, mode, answer, most, tools=None):
    out = {"task": task, "thinking": mode, "messages": [{"role": "user", "content": turn.user}]}
    if tools:
        out["tools"] = [{"type": "function", "function": f} for f in tools]
    return out | {"answer": answer, "max_tokens": most}


def problems(count):
    turns = evaluation_problems(count)
    for mode in MODES:
        part = turns if mode == "adaptive" else turns[: count // 4]
        yield from (_line(f"word problems, {mode}", t, mode, t.answer, 96) for t in part)


def retrievals(tokenizer, count, entries):
    """Prompts of SHORTEST to LONGEST tokens; the record asked for lies in a block before the reply's first."""
    rng, r, found = random.Random(RETRIEVAL_SEED + entries), Renderer(), 0
    name = "retrieval, entries" if entries else "retrieval, codes"
    while found < count:
        tokens = rng.uniform(SHORTEST, LONGEST)
        turn = document(rng, int(tokens / TOKENS_A_LINE[entries]), 1, entries)[0]
        opening = r.opening("adaptive")
        prompt = tokenizer.encode(opening + r.question(turn), add_special_tokens=False)
        at = prompt.char_to_token(len(opening) + len(r.question(turn).partition("\n")[0]) + 1 + needle(turn))
        if SHORTEST < len(prompt.ids) <= LONGEST and at // NANO.block < len(prompt.ids) // NANO.block:
            found += 1
            yield _line(name, turn, "adaptive", turn.answer, 64)


def tool_calls(count):
    """The content of the right reply is the call, marks included."""
    rng, r = random.Random(TOOLS_SEED), Renderer()
    for _ in range(count):
        offered = rng.randrange(len(TOOLSETS))
        turn = tool_turn(rng, offered)
        answer = r.reply(turn, "disabled").removeprefix("</mm:think>").removesuffix("[e~[")
        assert answer.startswith(NAMESPACE)
        yield _line("tool calls", turn, "adaptive", answer, 96, toolset(offered))


def small_talk(count):
    """Questions whose answer has one form only."""
    rng, seen = random.Random(TEXT_SEED + 1), {}
    for _ in range(5000):
        turn = smalltalk(rng)
        seen.setdefault(turn.user, set()).add(turn.answer)
    fixed = [(q, min(a)) for q, a in seen.items() if len(a) == 1]
    for question, answer in fixed[:count]:
        yield {"task": "small talk", "thinking": "adaptive", "messages": [{"role": "user", "content": question}],
               "answer": answer, "max_tokens": 64}


def texts(count):
    """Whole conversations of held-out problems, to be predicted."""
    rng, r = random.Random(TEXT_SEED), Renderer()
    for _ in range(count):
        mode, developer, turns = rng.choice(MODES), rng.choice(DEVELOPERS), []
        while len(turns) < 6:
            turn = problem(rng)
            if held_out(turn.user):
                turns.append(forced(turn, mode))
        check(turns, mode, developer)
        body = "".join(r.question(t) + r.reply(t, mode) + "\n" for t in turns)
        yield {"task": "held-out conversations", "text": r.opening(mode, developer) + body}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out", type=pathlib.Path)
    p.add_argument("--tokenizer", default="../assets/nano/tokenizer.json")
    p.add_argument("--small", action="store_true")
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(a.tokenizer)

    def write(name, *parts):
        with open(a.out / f"{name}.jsonl", "w") as f:
            for part in parts:
                f.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in part)

    if a.small:
        write("nano_small", problems(12), retrievals(tokenizer, 2, False), tool_calls(3), small_talk(3), texts(3))
        return
    write("problems", problems(1319))
    write("retrieval", retrievals(tokenizer, 200, False), retrievals(tokenizer, 100, True))
    write("other", tool_calls(200), small_talk(60), texts(100))


if __name__ == "__main__":
    main()
