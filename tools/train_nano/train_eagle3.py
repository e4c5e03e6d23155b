"""Trains the EAGLE3 draft of a nano checkpoint on the checkpoint's own hidden states, and measures it.

    python3 -m train_nano.train_eagle3 --target ../assets/nano --seconds 140 --out OUT_DIR
"""

import argparse
import json
import pathlib
import random
import time

import torch
from tokenizers import Tokenizer

from formats import container

from . import batches, evaluate, recall, special_tokens as st
from .chat import Renderer
from .config import NANO
from .data.mixture import HELD_OUT_SEED, evaluation_problems
from .data.smalltalk import smalltalk
from .data.tools import TOOLSETS, tool_turn
from .eagle3 import Draft, target_states
from .export import decode
from .model import Nano, load_hub_weights
from .train import learning_rate, optimizer

DEPTHS, DECAY = 3, 0.8  # unrolled steps, and the weight of each against the one before
LONG_EVERY = 3


def loss_of(draft, target, ids, weights):
    """Cross-entropy with the target's distribution at each depth; shares of equal best tokens where replies are."""
    ids, weights = ids[:, :-1], weights[:, :-1]
    aux, y = target_states(target, ids, draft.s.aux)
    slots = ids.shape[1] - 2
    with torch.no_grad():
        want = target.logits(y[:, 1:-1])  # row q + 1 tells token q + 2
        p, best = want.softmax(-1), want.argmax(-1)
    w, loss, agree = weights[:, 2:], 0.0, []
    hidden = draft.combine([a[:, :slots] for a in aux])
    for depth, z in enumerate(draft.unroll(ids[:, 1:-1], hidden, DEPTHS)):
        got = draft.logits(z[:, depth:])
        each = -(p[:, depth:] * got.log_softmax(-1)).sum(-1)
        loss = loss + DECAY**depth * (each * w[:, depth:]).sum() / w[:, depth:].sum()
        said = w[:, depth:] == 1
        agree.append(((got.argmax(-1) == best[:, depth:]) & said).sum() / said.sum())
    return loss, torch.stack(agree).detach()


@torch.no_grad()
def acceptance(draft, target, prompts, replies, k=3):
    """Mean tokens a step of greedy speculation that writes the replies, the target's own token included.

    The replies are the target's greedy ones with the end mark, so a drafted token is accepted where it equals
    the reply's. The first token comes from the prompt's step and is not counted.
    """
    device, tokens, steps, tried, held = draft.weight("norm.weight").device, 0, 0, [0] * k, [0] * k
    for prompt, reply in zip(prompts, replies):
        ids = torch.tensor([prompt + reply], device=device)
        aux, _ = target_states(target, ids, draft.s.aux)
        n = ids.shape[1]
        z = draft.unroll(ids[:, 1:], draft.combine([a[:, :-1] for a in aux]), k)
        best = [draft.logits(x)[0].argmax(-1).tolist() for x in z]  # [depth][slot]
        last, ids = len(prompt), ids[0].tolist()  # index of the newest token
        while last < n - 1:
            accepted = 0
            while accepted < k and last + 1 + accepted < n:
                tried[accepted] += 1
                if best[accepted][last - 1 + accepted] != ids[last + 1 + accepted]:
                    break
                held[accepted] += 1
                accepted += 1
            tokens += min(accepted + 1, n - 1 - last)
            last, steps = last + accepted + 1, steps + 1
    return {"tokens_per_step": round(tokens / steps, 3), "steps": steps,
            "accepted_where_tried": [round(h / max(t, 1), 3) for h, t in zip(held, tried)]}


def held_out(target, tokenizer, count):
    """Name -> (prompts, the target's greedy replies)."""
    r, rng = Renderer(), random.Random(HELD_OUT_SEED)
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    asked = {f"word problems, {mode}": [r.opening(mode) + r.question(t) + mark for t in evaluation_problems(count)]
             for mode, mark in (("adaptive", ""), ("disabled", "</mm:think>"))}
    asked["small talk"] = [r.opening("adaptive") + r.question(smalltalk(rng)) for _ in range(count // 4)]
    tools = []
    for _ in range(count // 4):
        offered = rng.randrange(len(TOOLSETS))
        tools.append(r.opening("adaptive", None, offered) + r.question(tool_turn(rng, offered)))
    asked["tool calls"] = tools
    out = {}
    for name, texts in asked.items():
        prompts = [encode(t) for t in texts]
        out[name] = prompts, [g + [st.EOS] for g in evaluate.generate(target, prompts, 96)]
    long = recall.cases(tokenizer, 1500, max(2, count // 16), NANO.block)
    out["retrieval, 1500 tokens"] = [c[0] for c in long], [c[1] for c in long]
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--target", default="../assets/nano")
    p.add_argument("--seconds", type=float, default=140)
    p.add_argument("--steps", type=int, default=0)
    p.add_argument("--tokens", type=int, default=24576)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--workers", type=int, default=14)
    p.add_argument("--count", type=int, default=256, help="held-out questions of the largest task")
    p.add_argument("--out", default="out_eagle3")
    a = p.parse_args()
    torch.manual_seed(2)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    compute = torch.bfloat16 if device == "cuda" else torch.float32
    folder, out = pathlib.Path(a.target), pathlib.Path(a.out)
    tokenizer_file = str(folder / "tokenizer.json")
    data = batches.loader(tokenizer_file, a.tokens, a.workers, 500)
    target = Nano(NANO, compute).to(device).eval()
    load_hub_weights(target, decode(container.read(folder / "model.safetensors")))
    draft = Draft(compute=compute).to(device)
    draft.start_from(target)
    opt = optimizer(draft, a.lr)
    for group in opt.param_groups:
        group["weight_decay"] = 0.0
    begin, step, seen = time.time(), 0, 0
    while True:
        progress = step / a.steps if a.steps else (time.time() - begin) / a.seconds
        if progress >= 1:
            break
        for group in opt.param_groups:
            group["lr"] = learning_rate(progress, a.lr)
        for ids, weights in next(data)[: 2 if step % LONG_EVERY == 0 else 1]:
            loss, agree = loss_of(draft, target, ids.to(device), weights.to(device))
            loss.backward()
            seen += ids.numel()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if step % 100 == 0:
            print(f"{time.time() - begin:6.1f}s step {step} loss {loss.item():.3f} "
                  f"agree {[round(x, 3) for x in agree.tolist()]} {seen / 1e6:.1f} M tokens", flush=True)
        step += 1
    print(f"{step} steps, {seen / 1e6:.0f} M tokens, {time.time() - begin:.0f} s")
    print(draft.save(out, NANO.max_position), "bytes", flush=True)
    draft.load(out)  # what the file holds
    results = {"steps": step, "tokens": seen, "seconds": a.seconds}
    for name, (prompts, replies) in held_out(target, Tokenizer.from_file(tokenizer_file), a.count).items():
        results[name] = acceptance(draft, target, prompts, replies)
        print(name, results[name], flush=True)
    (out / "results.json").write_text(json.dumps(results, indent=1))
    print(f"all done after {time.time() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
