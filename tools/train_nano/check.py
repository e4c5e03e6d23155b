"""Self-checks of the training code that need no GPU: python3 -m train_nano.check"""

import numpy as np
import torch

from formats import codecs

from . import export, fake_quant
from .config import NANO, Shape
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


if __name__ == "__main__":
    torch.manual_seed(0)
    for f in (fake_quantisation_equals_codecs, names_round_trip, quantised_model_equals_its_checkpoint,
              sparse_equals_causal_when_all_blocks_fit):
        f()
        print("ok", f.__name__)
