"""Expected outputs of assets/nano, and how far the training model is from them.

    python3 -m oracle.nano_expected NANO_DIR OUT.safetensors
"""

import json
import pathlib
import random
import sys

import numpy as np
import torch
from tokenizers import Tokenizer

from formats import container
from train_nano import export
from train_nano.chat import Renderer
from train_nano.config import NANO
from train_nano.data.mixture import evaluation_problems
from train_nano.data.retrieval import retrieval
from train_nano.model import Nano, load_hub_weights

from . import reference

TOKENS, ROWS = 700, 64


def prompt(tokenizer):
    """A retrieval turn of more than four blocks and held-out problems, cut to TOKENS tokens."""
    r, turns = Renderer(), [retrieval(random.Random(1), 44)] + evaluation_problems(8)
    text = r.opening("adaptive") + "".join(r.question(t) + r.reply(t, "adaptive") + "\n" for t in turns)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert len(ids) >= TOKENS, len(ids)
    return ids[:TOKENS]


def main(folder, out):
    folder = pathlib.Path(folder)
    weights = export.decode(container.read(folder / "model.safetensors"))
    ids = prompt(Tokenizer.from_file(str(folder / "tokenizer.json")))
    rows = np.linspace(0, TOKENS - 1, ROWS).round().astype(int)
    want = reference.expected(reference.build(json.loads((folder / "config.json").read_text()), weights), ids, rows)
    container.write(out, want)

    model = Nano(NANO, torch.float32).eval()
    load_hub_weights(model, weights)
    with torch.no_grad():
        trace = []
        logits = model.logits(model(torch.tensor([ids]), trace))[0]
    for i, h in enumerate(trace):
        print(f"hidden.{i} relative difference {reference.relative(h[0][rows], want[f'hidden.{i}'][1]):.2e}")
    print(f"logits   relative difference {reference.relative(logits[rows], want['logits'][1]):.2e}")
    for i, layer in enumerate(model.layers):
        if layer.self_attn.sparse:
            mine = layer.self_attn.blocks[0]  # [index heads, T, blocks]
            theirs = torch.tensor(want[f"blocks.{i}"][1]).long()  # [T, index heads, k], -1 padded
            theirs = torch.zeros(*theirs.shape[:2], mine.shape[-1] + 1, dtype=torch.bool).scatter_(-1, theirs % (mine.shape[-1] + 1), True)
            print(f"blocks.{i} rows that differ: {int((theirs[..., :-1].transpose(0, 1) != mine).any(-1).sum())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
