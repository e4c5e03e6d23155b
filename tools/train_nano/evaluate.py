"""Greedy answers to held-out questions, as an engine would produce them: chat format, stop at the end mark."""

import random
import re

import torch

from . import special_tokens as st
from .chat import Renderer
from .data.mixture import HELD_OUT_SEED, evaluation_problems
from .data.retrieval import retrieval
from .data.smalltalk import smalltalk
from .data.tools import TOOLSETS, tool_turn


@torch.no_grad()
def generate(model, prompts, most=96, rows=256):
    """Greedy continuations (lists of ids, without the end mark) by full recomputation in padded batches."""
    out, device = [], next(model.parameters()).device
    for at in range(0, len(prompts), rows):
        part = prompts[at : at + rows]
        lengths = torch.tensor([len(p) for p in part], device=device)
        start, row = int(lengths.max()), torch.arange(len(part), device=device)
        ids = torch.full((len(part), start + most), st.PAD, device=device)
        for i, p in enumerate(part):
            ids[i, : len(p)] = torch.tensor(p, device=device)
        done = torch.zeros(len(part), dtype=torch.bool, device=device)
        for step in range(most):
            y = model(ids[:, : start + step])
            best = model.logits(y[row, lengths + step - 1]).argmax(-1)
            done |= best == st.EOS
            ids[row, lengths + step] = torch.where(done, st.EOS, best)
            if bool(done.all()):
                break
        for i, p in enumerate(part):
            reply = ids[i, len(p) : len(p) + step + 1].tolist()
            out.append(reply[: reply.index(st.EOS)] if st.EOS in reply else reply)
    return out


def split(text):
    """Reasoning and content of a reply that starts with one of the two marks, or with neither."""
    head, closer, tail = text.partition("</mm:think>")
    return (head.removeprefix("<mm:think>"), tail) if closer else ("", text)


def correct(turn, content):
    """The last number of the content is the expected one, and the content is one line."""
    numbers = re.findall(r"-?\d+", content)
    return bool(numbers) and numbers[-1] == turn.value


def score(model, tokenizer, turns, mode, most=96, rows=256):
    """Share of right values, share of contents equal to the generator's, and the texts."""
    r = Renderer()
    prefix = {"enabled": "<mm:think>", "disabled": "</mm:think>"}.get(mode, "")
    prompts = [tokenizer.encode(r.opening(mode) + r.question(t) + prefix, add_special_tokens=False).ids for t in turns]
    texts = [prefix + tokenizer.decode(ids, skip_special_tokens=False) for ids in generate(model, prompts, most, rows)]
    contents = [split(t)[1] for t in texts]
    value = sum(correct(t, c) for t, c in zip(turns, contents)) / len(turns)
    exact = sum(t.answer == c for t, c in zip(turns, contents)) / len(turns)
    return value, exact, texts


def report(model, tokenizer, problems=1024):
    """Prints examples and shares; returns the shares as a list of (what, value, exact)."""
    model.eval()
    table, shown, asked = [], [], evaluation_problems(problems)
    for mode, count in (("adaptive", problems), ("disabled", problems // 4), ("enabled", problems // 4)):
        value, exact, texts = score(model, tokenizer, asked[:count], mode)
        table.append((f"held-out word problems, {mode}, {count}", value, exact))
        shown += list(zip(asked, texts))[:4] if mode != "enabled" else []
    rng = random.Random(HELD_OUT_SEED)
    turns = [retrieval(rng, rng.randint(4, 36)) for _ in range(problems // 8)]
    value, exact, _ = score(model, tokenizer, turns, "adaptive", 48)
    table.append((f"retrieval within four blocks, {len(turns)}", value, exact))
    talk = [smalltalk(rng) for _ in range(8)]
    shown += list(zip(talk, score(model, tokenizer, talk, "adaptive")[2]))
    for turn, text in shown:
        print(f"Q {turn.user}\nA {text}   [{turn.value}]")
    right = tool_calls(model, tokenizer, rng, problems // 8)
    table.append((f"tool calls, {problems // 8}", right, right))
    for what, value, exact in table:
        print(f"{what}: value {value:.3f}, exact {exact:.3f}", flush=True)
    return table


def tool_calls(model, tokenizer, rng, count):
    """Share of calls, reasoning included, that equal the generator's; the first few are printed."""
    r, prompts, wanted = Renderer(), [], []
    for _ in range(count):
        offered = rng.randrange(len(TOOLSETS))
        turn = tool_turn(rng, offered)
        text = r.opening("adaptive", None, offered) + r.question(turn)
        prompts.append(tokenizer.encode(text, add_special_tokens=False).ids)
        wanted.append(r.reply(turn, "adaptive").removesuffix("[e~["))
    got = [tokenizer.decode(ids, skip_special_tokens=False) for ids in generate(model, prompts, 96)]
    for g, w in list(zip(got, wanted))[:2] + [(g, w) for g, w in zip(got, wanted) if g != w][:3]:
        print(f"T {g}\n= {w}")
    return sum(g == w for g, w in zip(got, wanted)) / count
