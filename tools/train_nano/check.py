"""Self-checks of the training code that need no GPU: python3 -m train_nano.check"""

import numpy as np
import torch

from formats import codecs

from . import export, fake_quant
from .config import NANO, Shape
from .eagle3 import Draft, DraftShape, shapes
from .model import Nano, hub_weights, load_hub_weights
from .untrained import weights


def fake_quantisation_equals_codecs():
    rng = np.random.default_rng(1)
    w = (rng.standard_normal((64, 256)) * np.exp2(rng.integers(-9, 5, (64, 1)))).astype(np.float32)
    w[3, 32:64] = 0
    w[5] = 0
    w[7, :8] = [0.25, 0.75, 1.25, 2.5, 3.5, 5.0, 6.5, 7.9]  # ties and the range that saturates
    t = torch.tensor(w)
    assert (fake_quant.mxfp4(t).numpy() == codecs.from_mxfp4(*codecs.to_mxfp4(w))).all()
    assert (fake_quant.fp8(t).numpy() == codecs.from_fp8_per_channel(*codecs.to_fp8_per_channel(w))).all()
    assert (fake_quant.bf16(t).numpy() == codecs.from_bf16(codecs.to_bf16(w))).all()


def names_round_trip():
    model, w = Nano(NANO), weights()
    load_hub_weights(model, w)
    back = hub_weights(model)
    assert back.keys() == w.keys() == export.shapes(NANO).keys()
    assert all((back[k] == w[k]).all() for k in w)


def quantised_model_equals_its_checkpoint():
    plain, exported = Nano(NANO, torch.float32), Nano(NANO, torch.float32)
    load_hub_weights(plain, weights())
    load_hub_weights(exported, export.decode(export.encode(hub_weights(plain))))
    ids = torch.randint(0, NANO.vocab, (1, 700), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        plain.quantise(True)
        a, b = plain(ids), exported(ids)
    assert torch.equal(a, b), (a - b).abs().max()


def sparse_equals_causal_when_all_blocks_fit():
    """With as many top blocks as there are blocks, the sparse path is plain causal attention."""
    s = Shape(block=16, top_blocks=4)
    model = Nano(s, torch.float32)
    ids = torch.randint(0, s.vocab, (1, 100), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        sparse = model(ids)
        for a in model.sparse_attentions():
            a.select = False
        full = model(ids)
    assert torch.allclose(sparse[:, :64], full[:, :64], atol=1e-5)
    assert not torch.allclose(sparse[:, 64:], full[:, 64:], atol=1e-5)
    assert all(int(a.blocks[0, :, 99].sum(-1).max()) == 4 for a in model.sparse_attentions())


def _draft_step(w, s, token, hidden, at, cache):
    """One slot of the draft as an engine computes it: appends to `cache`, returns z."""
    norm = lambda x, name: x / (x.pow(2).mean() + s.eps).sqrt() * w[name + ".weight"]
    x = torch.cat((norm(w["embed_tokens.weight"][token], "layers.0.input_layernorm"), norm(hidden, "layers.0.hidden_norm")))
    half = s.head_dim // 2
    angle = at * s.theta ** (-torch.arange(half) / half)

    def turn(y):
        a, b = y[..., :half], y[..., half:]
        return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)

    project = lambda name, heads: (w[f"layers.0.self_attn.{name}.weight"] @ x).view(heads, s.head_dim)
    cache.append((turn(project("k_proj", s.kv_heads)), project("v_proj", s.kv_heads)))
    group, out = s.heads // s.kv_heads, []
    for head, q in enumerate(turn(project("q_proj", s.heads))):
        p = torch.stack([q @ k[head // group] for k, _ in cache]).mul(s.head_dim**-0.5).softmax(0)
        out.append(sum(share * v[head // group] for share, (_, v) in zip(p, cache)))
    r = hidden + w["layers.0.self_attn.o_proj.weight"] @ torch.cat(out)
    n, mlp = norm(r, "layers.0.post_attention_layernorm"), "layers.0.mlp."
    gate = w[mlp + "gate_proj.weight"] @ n
    m = w[mlp + "down_proj.weight"] @ (gate * torch.sigmoid(gate) * (w[mlp + "up_proj.weight"] @ n))
    return norm(r + m, "norm")


@torch.no_grad()
def unrolled_draft_equals_slot_by_slot():
    s = DraftShape(hidden=32, heads=4, kv_heads=2, head_dim=16, width=48, vocab=50)
    draft = Draft(s, torch.float32)
    w = {name: draft.weight(name) * (1 + 0.3 * torch.randn(shape)) for name, shape in shapes(s).items()}
    for name, value in w.items():
        draft.weight(name).copy_(value)
    slots, depths = 11, 3
    tokens, hidden = torch.randint(0, 50, (1, slots)), torch.randn(1, slots, 32)
    z = draft.unroll(tokens, hidden, depths)
    for start in range(slots - depths + 1):
        cache = []
        for at in range(start + 1):  # the target's rows
            state = _draft_step(w, s, tokens[0, at], hidden[0, at], at, cache)
        for depth in range(depths):
            assert torch.allclose(state, z[depth][0, start + depth], atol=2e-5), (start, depth)
            if depth + 1 < depths:
                at = start + depth + 1
                state = _draft_step(w, s, tokens[0, at], state, at, cache)


if __name__ == "__main__":
    torch.manual_seed(0)
    for f in (unrolled_draft_equals_slot_by_slot, fake_quantisation_equals_codecs, names_round_trip, quantised_model_equals_its_checkpoint,
              sparse_equals_causal_when_all_blocks_fit):
        f()
        print("ok", f.__name__)
