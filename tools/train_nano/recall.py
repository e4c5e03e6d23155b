"""Retrieval beyond the selected blocks: exact answers, and what the indexers chose.

A greedy reply equals the expected one exactly when every one of its tokens is the likeliest
after the expected tokens before it: one forward pass over question and reply tells.
"""

import random

import torch

from . import special_tokens as st
from .chat import Renderer
from .data.mixture import HELD_OUT_SEED
from .data.retrieval import TOKENS_A_LINE, document, needle


def cases(tokenizer, length, count, block, entries=False, seed=HELD_OUT_SEED):
    """`count` of (prompt ids, reply ids, token of the needle, value) with prompts of about `length` tokens.

    `value`: where in the reply the value is said first, as a slice.

    The needle lies in a block before the one in which the reply starts.
    """
    rng, r, out = random.Random(seed + length), Renderer(), []
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False)
    for _ in range(20 * count):
        turn = document(rng, int(length / TOKENS_A_LINE[entries]), 1, entries)[0]
        head = r.opening("adaptive") + "]~b]user\n"
        prompt = encode(r.opening("adaptive") + r.question(turn))
        at = prompt.char_to_token(len(head) + needle(turn))
        if abs(len(prompt.ids) - length) < 0.2 * length and at // block < len(prompt.ids) // block:
            reply, digits = encode(r.reply(turn, "adaptive")).ids, encode(turn.value).ids
            first = next(i for i in range(len(reply)) if reply[i : i + len(digits)] == digits)
            out.append((prompt.ids, reply, at, slice(first, first + len(digits))))
        if len(out) == count:
            break
    return out


@torch.no_grad()
def measure(model, given, rows=8):
    """Exact share, mean attention inside the selected blocks, and shares of needles inside them.

    Attention is looked at in the rows of the reply, needles in those and in the rows that say the value first. A
    needle counts by the share of index heads that selected its block, or where any did. All by layer.
    """
    device, exact, mass, heads, said, said_any = next(model.parameters()).device, [], [], [], [], []
    attentions = model.sparse_attentions()
    for a in attentions:
        a.measure, a.row_weight = True, None
    for at in range(0, len(given), rows):
        part = given[at : at + rows]
        ids = torch.full((len(part), max(len(p) + len(r) for p, r, _, _ in part)), st.PAD)
        for i, (p, r, _, _) in enumerate(part):
            ids[i, : len(p) + len(r)] = torch.tensor(p + r)
        y = model(ids.to(device))
        for i, (p, r, n, value) in enumerate(part):
            span = slice(len(p) - 1, len(p) + len(r) - 1)
            best = model.logits(y[i, span]).argmax(-1).cpu()
            exact.append(best.tolist() == r)
            mass.append(torch.stack([a.mass[i, span].mean() for a in attentions]))
            held = torch.stack([a.blocks[i, :, span, n // model.s.block].float() for a in attentions])
            heads.append(held.mean((1, 2)))
            said.append(held[:, :, value].mean((1, 2)))
            said_any.append(held[:, :, value].amax(1).mean(1))
    for a in attentions:
        a.measure = False
    by_layer = lambda x: [round(v, 3) for v in torch.stack(x).mean(0).tolist()]
    return {"exact": sum(exact) / len(exact), "attention_inside": by_layer(mass), "needle_inside": by_layer(heads),
            "needle_inside_at_value": by_layer(said), "needle_inside_at_value_any_head": by_layer(said_any)}


def table(model, tokenizer, count, lengths=(700, 1000, 1500, 2000, 2800), entries=(False, True)):
    out = {}
    for kind in entries:
        for length in lengths:
            given = cases(tokenizer, length, count, model.s.block, kind)
            out[f"{'entries' if kind else 'codes'}, {length} tokens, {count}"] = measure(model, given)
    return out


def without_selection(model, tokenizer, count, length=1500):
    """Exact share when sparse layers see their own block only: how much the answers rest on selection."""
    given = cases(tokenizer, length, count, model.s.block)
    shape = model.s
    for a in model.sparse_attentions():
        a.top_blocks = shape.local_blocks
    got = measure(model, given)["exact"]
    for a in model.sparse_attentions():
        a.top_blocks = shape.top_blocks
    return got
