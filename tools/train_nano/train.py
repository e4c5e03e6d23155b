"""Trains nano and exports it.

The run is cut by time: learning rate, quantisation and block selection follow the share of
`--seconds` that has passed (with `--steps`, the share of steps, which repeats exactly).

    python3 -m train_nano.train --seconds 420 --assets ../assets/nano --out OUT_DIR
"""

import argparse
import json
import math
import pathlib
import shutil
import time

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from . import batches, evaluate, experts, export
from .config import NANO
from .model import Nano, hub_weights, load_hub_weights

WARMUP, DECAY_FROM = 0.02, 0.45  # shares of the run
SELECT_FROM, QUANTISE_FROM, BALANCE_UNTIL = 0.30, 0.60, 0.85


def learning_rate(progress, peak):
    """Linear warm-up, flat, then a cosine to 1 % of the peak."""
    if progress < WARMUP:
        return peak * max(progress, 0.001) / WARMUP
    if progress < DECAY_FROM:
        return peak
    x = (progress - DECAY_FROM) / (1 - DECAY_FROM)
    return peak * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(x, 1))))


def optimizer(model, peak):
    decay = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95), fused=torch.cuda.is_available())


def loss_of(model, ids, weights, index_weight=1.0):
    """Weighted cross-entropy of the next token, plus the indexers' losses on long batches."""
    x, target, w = ids[:, :-1], ids[:, 1:], weights[:, 1:]
    long = x.shape[1] > model.s.top_blocks * model.s.block
    for a in model.sparse_attentions():
        a.row_weight = w if long else None
    y = model(x)
    each = F.cross_entropy(model.logits(y).flatten(0, 1), target.flatten(), reduction="none").view_as(w)
    loss = (each * w).sum() / w.sum()
    answers = (each.detach() * (w == 1)).sum() / (w == 1).sum().clamp(min=1)
    index = sum(a.index_loss for a in model.sparse_attentions()) if long else torch.zeros((), device=x.device)
    return loss + index_weight * index, answers, index.detach()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=420)
    p.add_argument("--steps", type=int, default=0, help="a fixed number of steps instead of a time")
    p.add_argument("--tokens", type=int, default=65536, help="tokens of a short batch")
    p.add_argument("--long-every", type=int, default=8)
    p.add_argument("--lr", type=float, default=1.5e-3)
    p.add_argument("--workers", type=int, default=14)
    p.add_argument("--compile", default="parts", choices=("no", "parts"))
    p.add_argument("--assets", default="../assets/nano")
    p.add_argument("--out", default="out")
    p.add_argument("--problems", type=int, default=1024, help="held-out problems asked at the end")
    a = p.parse_args()

    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer_file = str(pathlib.Path(a.assets) / "tokenizer.json")
    data = batches.loader(tokenizer_file, a.tokens, a.long_every, a.workers)
    compute = torch.bfloat16 if device == "cuda" else torch.float32  # BF16 products are very slow on most CPUs
    model = Nano(NANO, compute).to(device).train()
    if a.compile != "no":
        compile_parts(model)
    opt = optimizer(model, a.lr)
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)

    begin, step, seen, quantised, mark = time.time(), 0, 0, False, (time.time(), 0)
    while True:
        progress = step / a.steps if a.steps else (time.time() - begin) / a.seconds
        if progress >= 1:
            break
        if progress >= QUANTISE_FROM and not quantised:
            model.quantise(quantised := True)
        for attention in model.sparse_attentions():
            attention.select = progress >= SELECT_FROM
        for group in opt.param_groups:
            group["lr"] = learning_rate(progress, a.lr)
        ids, weights = (t.to(device, non_blocking=True) for t in next(data))
        loss, answers, index = loss_of(model, ids, weights)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        rate = 2e-3 * (progress < BALANCE_UNTIL) * (1 - progress)
        if step % 200 == 0:
            load = [m.load / m.load.sum() * NANO.experts for m in model.experts()]
            now, pace = time.time(), (time.time() - mark[0], seen - mark[1])
            print(f"{now - begin:6.1f}s step {step} loss {loss.item():.4f} answers {answers.item():.4f} "
                  f"index {index.item():.3f} norm {norm.item():.2f} load {min(l.min().item() for l in load):.2f}.."
                  f"{max(l.max().item() for l in load):.2f} {pace[1] / max(pace[0], 1e-9) / 1e3:.0f} ktok/s "
                  f"q{int(quantised)}", flush=True)
            mark = (time.time(), seen)
        for m in model.experts():
            m.balance(rate)
        step, seen = step + 1, seen + ids.numel()
    print(f"{step} steps, {seen / 1e6:.0f} M tokens, {time.time() - begin:.0f} s")

    model.quantise(True)
    weights = hub_weights(model)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copyfile(pathlib.Path(a.assets) / name, out / name)
    print(export.write(out, NANO, weights), "bytes in the folder", flush=True)
    exported = Nano(NANO, compute).to(device)  # not compiled, and with the values that the file holds
    load_hub_weights(exported, export.decode(export.encode(weights)))
    table = evaluate.report(exported, Tokenizer.from_file(tokenizer_file), a.problems, a.problems // 16)
    (out / "results.json").write_text(json.dumps({"steps": step, "tokens": seen, "table": table}, indent=1))


def compile_parts(model):
    """Only the pointwise chains of the MLPs; whole layers would compile again for each length and phase."""
    torch._dynamo.config.cache_size_limit = 64
    activation, weighted = torch.compile(experts.clamped_swiglu), torch.compile(experts.weighted_activation)
    for layer in model.layers:
        layer.mlp.activation = weighted if hasattr(layer.mlp, "router") else activation


if __name__ == "__main__":
    main()
