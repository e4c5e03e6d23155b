"""Which turns a conversation holds, and which problems are held out.

Two barriers keep evaluation apart from training. Seeds: training draws from
`random.Random(TRAIN_SEED + stream)`, evaluation from `HELD_OUT_SEED`. Text: a question
whose CRC-32 is HELD_OUT_RESIDUE modulo HELD_OUT_MODULUS never enters training, and
evaluation asks only such questions.
"""

import random
import zlib

from .arithmetic import problem
from .retrieval import TOKENS_A_LINE, document, retrieval
from .smalltalk import smalltalk
from .tools import TOOLSETS, tool_turn
from .turn import Turn

TRAIN_SEED = 1_000_000  # plus the stream's number, below 1,000,000
HELD_OUT_SEED = 77
HELD_OUT_MODULUS, HELD_OUT_RESIDUE = 32, 7

DEVELOPERS = (None,) * 5 + (
    "You are a calculator.", "Answer briefly.", "You help children with arithmetic.",
    "You are a helpful assistant. Answer in one sentence.",
)
MODE_WEIGHTS = (2, 2, 1)  # adaptive, enabled, disabled


def held_out(question: str) -> bool:
    return zlib.crc32(question.encode()) % HELD_OUT_MODULUS == HELD_OUT_RESIDUE


def training_problem(rng) -> Turn:
    while True:
        turn = problem(rng)
        if not held_out(turn.user):
            return turn


def evaluation_problems(count: int, kind=problem) -> list[Turn]:
    rng, found, seen = random.Random(HELD_OUT_SEED), [], set()
    while len(found) < count:
        turn = kind(rng)
        if held_out(turn.user) and turn.user not in seen:
            found.append(turn)
            seen.add(turn.user)
    return found


def short_turn(rng) -> Turn:
    draw = rng.random()
    if draw < 0.82:
        return training_problem(rng)
    if draw < 0.92:
        return smalltalk(rng)
    return retrieval(rng, rng.randint(2, 14))


def long_turn(rng, tokens: int) -> Turn:
    """A retrieval turn of very roughly `tokens` tokens. The tokenizer's corpus uses it."""
    return retrieval(rng, max(8, tokens // 12))


def offered_tools(rng) -> int | None:
    """The toolset of a conversation; most offer none."""
    return rng.randrange(len(TOOLSETS)) if rng.random() < 0.15 else None


def turn_with(rng, offered: int | None) -> Turn:
    """A short turn of a conversation that offers that toolset."""
    if offered is not None and rng.random() < 0.7:
        return tool_turn(rng, offered)
    return short_turn(rng)


def long_turns(rng, tokens: int) -> list[Turn]:
    """A text of about `tokens` tokens, and enough questions about it to fill what the text leaves free."""
    entries = rng.random() < 0.3
    return document(rng, max(8, int(tokens / TOKENS_A_LINE[entries])), 14, entries)
