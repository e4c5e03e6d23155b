"""Trains nano and exports it.

The run is cut by time: learning rate, quantisation and block selection follow the share of
`--seconds` that has passed (with `--steps`, the share of steps, which repeats exactly).
`--resume DIR` goes on from an exported checkpoint, quantisation-aware from its first step.

    python3 -m train_nano.train --seconds 420 --assets ../assets/nano --out OUT_DIR [--resume DIR]
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

from formats import container

from . import batches, evaluate, experts, export, recall
from .config import NANO
from .model import Nano, hub_weights, load_hub_weights

WARMUP, DECAY_FROM = 0.02, 0.45  # shares of the run
SELECT_FROM, QUANTISE_FROM, BALANCE_UNTIL = 0.30, 0.60, 0.85
RESUMED_SELECT_FROM = 0.20


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
    if not long:
        return loss, answers, None
    index = sum(a.index_loss for a in model.sparse_attentions())
    return loss + index_weight * index, answers, index.detach()


def resume(model, folder):
    """The values that the checkpoint holds become the master weights."""
    load_hub_weights(model, export.decode(container.read(pathlib.Path(folder) / "model.safetensors")))
    model.quantise(True)


def evaluated(weights, compute, device):
    """A model that is not compiled, with the values that the file holds."""
    model = Nano(NANO, compute).to(device).eval()
    load_hub_weights(model, export.decode(export.encode(weights)))
    return model


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--seconds", type=float, default=420)
    p.add_argument("--steps", type=int, default=0, help="a fixed number of steps instead of a time")
    p.add_argument("--tokens", type=int, default=24576, help="tokens of a short batch, and of a long one")
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--workers", type=int, default=14)
    p.add_argument("--first-seed", type=int, default=0, help="of the workers; a resumed run takes one of its own")
    p.add_argument("--compile", default="parts", choices=("no", "parts"))
    p.add_argument("--resume", help="folder of an exported checkpoint to go on from")
    p.add_argument("--assets", default="../assets/nano")
    p.add_argument("--out", default="out")
    p.add_argument("--look-every", type=float, default=0.15, help="share of the run between looks at retrieval")
    p.add_argument("--problems", type=int, default=1024, help="held-out problems asked at the end")
    return p.parse_args()


def main():
    a = arguments()
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer_file = str(pathlib.Path(a.assets) / "tokenizer.json")
    tokenizer = Tokenizer.from_file(tokenizer_file)
    data = batches.loader(tokenizer_file, a.tokens, a.workers, a.first_seed)
    compute = torch.bfloat16 if device == "cuda" else torch.float32  # BF16 products are very slow on most CPUs
    model = Nano(NANO, compute).to(device).train()
    quantised, select_from = False, SELECT_FROM
    if a.resume:
        resume(model, a.resume)
        quantised, select_from = True, RESUMED_SELECT_FROM
    if a.compile != "no":
        compile_parts(model)
    opt = optimizer(model, a.lr)
    out = pathlib.Path(a.out)
    out.mkdir(parents=True, exist_ok=True)

    begin, step, seen, mark, looks = time.time(), 0, 0, (time.time(), 0), 0
    while True:
        progress = step / a.steps if a.steps else (time.time() - begin) / a.seconds
        if progress >= 1:
            break
        if progress >= QUANTISE_FROM and not quantised:
            model.quantise(quantised := True)
        for attention in model.sparse_attentions():
            attention.select = progress >= select_from
        for group in opt.param_groups:
            group["lr"] = learning_rate(progress, a.lr)
        short, long = next(data)
        answers = []
        for ids, weights in (short, long):
            ids, weights = ids.to(device, non_blocking=True), weights.to(device, non_blocking=True)
            loss, of_answers, index = loss_of(model, ids, weights)
            loss.backward()
            answers.append(of_answers)
            seen += ids.numel()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad(set_to_none=True)
        if step % 100 == 0:
            load = [m.load / m.load.sum() * NANO.experts for m in model.experts()]
            now, pace = time.time(), (time.time() - mark[0], seen - mark[1])
            print(f"{now - begin:6.1f}s step {step} answers {answers[0].item():.4f} long {answers[1].item():.4f} "
                  f"index {index.item():.3f} norm {norm.item():.2f} load {min(l.min().item() for l in load):.2f}.."
                  f"{max(l.max().item() for l in load):.2f} {pace[1] / max(pace[0], 1e-9) / 1e3:.0f} ktok/s "
                  f"q{int(quantised)} s{int(progress >= select_from)}", flush=True)
            mark = (time.time(), seen)
        for m in model.experts():
            m.balance(2e-3 * (progress < BALANCE_UNTIL) * (1 - progress))
        step += 1
        if progress >= (looks + 1) * a.look_every:
            looks += 1
            look(model, tokenizer)
    print(f"{step} steps, {seen / 1e6:.0f} M tokens, {time.time() - begin:.0f} s")

    model.quantise(True)
    weights = hub_weights(model)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copyfile(pathlib.Path(a.assets) / name, out / name)
    print(export.write(out, NANO, weights), "bytes in the folder", flush=True)
    model = evaluated(weights, compute, device)
    results = {"steps": step, "tokens": seen, "retrieval": recall.table(model, tokenizer, max(2, a.problems // 32)),
               "retrieval_local_block_only": recall.without_selection(model, tokenizer, max(2, a.problems // 32))}
    print(json.dumps(results, indent=1), flush=True)
    results["table"] = evaluate.report(model, tokenizer, a.problems)
    (out / "results.json").write_text(json.dumps(results, indent=1))
    print(f"all done after {time.time() - begin:.0f} s", flush=True)


def look(model, tokenizer):
    """Prints how retrieval stands, with selection and stored formats in force."""
    model.eval()
    compiled = [layer.mlp.activation for layer in model.layers]
    for layer in model.layers:  # new lengths would compile again
        layer.mlp.activation = experts.weighted_activation if hasattr(layer.mlp, "router") else experts.clamped_swiglu
    select = [a.select for a in model.sparse_attentions()]
    for a in model.sparse_attentions():
        a.select = True
    for what, got in recall.table(model, tokenizer, 16, (1000, 2800), (False,)).items():
        print(f"  {what}: {got}", flush=True)
    for a, s in zip(model.sparse_attentions(), select):
        a.select = s
    for layer, activation in zip(model.layers, compiled):
        layer.mlp.activation = activation
    model.train()


def compile_parts(model):
    """Only the pointwise chains of the MLPs; whole layers would compile again for each length and phase."""
    torch._dynamo.config.cache_size_limit = 64
    activation, weighted = torch.compile(experts.clamped_swiglu), torch.compile(experts.weighted_activation)
    for layer in model.layers:
        layer.mlp.activation = weighted if hasattr(layer.mlp, "router") else activation


if __name__ == "__main__":
    main()
