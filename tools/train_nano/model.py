"""The whole text model, and its weights under the hub's names."""

import torch
import torch.nn.functional as F
from torch import nn

from .attention import Attention
from .experts import DenseMLP, MoE
from .layers import GemmaNorm, Weight, rotary_table


class Layer(nn.Module):
    def __init__(self, s, sparse):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = GemmaNorm(s.hidden, s.eps), GemmaNorm(s.hidden, s.eps)
        self.self_attn = Attention(s, sparse)
        self.mlp = MoE(s) if sparse else DenseMLP(s)

    def forward(self, r, table, compute):
        r = r + self.self_attn(self.input_layernorm(r, compute), table)
        return r + self.mlp(self.post_attention_layernorm(r, compute))


class Nano(nn.Module):
    """Token ids [B, T] to hidden states; `logits` applies the head to chosen rows.

    The residual stream is float32 here; an engine may keep it in BF16.
    """

    def __init__(self, s, compute=torch.bfloat16):
        super().__init__()
        self.s, self.compute = s, compute
        self.embed_tokens = Weight(s.vocab, s.hidden, std=0.1, kind="BF16")
        self.lm_head = Weight(s.vocab, s.hidden, std=0.02, kind="BF16")
        self.layers = nn.ModuleList(Layer(s, bool(p)) for p in s.pattern)
        self.norm = GemmaNorm(s.hidden, s.eps)

    def forward(self, ids, trace=None):
        """Final normed hidden states [B, T, hidden]; `trace` collects the input of each layer and that."""
        table = rotary_table(torch.arange(ids.shape[1], device=ids.device), self.s.rotary, self.s.theta)
        r = F.embedding(ids, self.embed_tokens(torch.float32))
        for layer in self.layers:
            if trace is not None:
                trace.append(r)
            r = layer(r, table, self.compute)
        y = self.norm(r, self.compute)
        if trace is not None:
            trace.append(y)
        return y

    def logits(self, y):
        return F.linear(y, self.lm_head(self.compute)).float()

    def quantise(self, on: bool):
        for m in self.modules():
            if isinstance(m, Weight):
                m.quantise = on

    def sparse_attentions(self):
        return [layer.self_attn for layer in self.layers if layer.self_attn.sparse]

    def experts(self):
        return [layer.mlp for layer in self.layers if isinstance(layer.mlp, MoE)]


def hub_weights(model: Nano) -> dict:
    """Name as in export.shapes -> float32 numpy array of the master weights."""
    out = {}
    for name, value in model.state_dict().items():
        name = name.replace(".master", "").replace("norm.weight", "norm")
        if name.endswith(".load"):
            continue
        array = value.detach().float().cpu().numpy()
        layer, _, part = name.partition(".mlp.")
        if part in ("gate", "up", "down"):
            moe, short = layer + ".block_sparse_moe.", {"gate": "w1", "up": "w3", "down": "w2"}[part]
            for e in range(model.s.experts):
                out[f"{moe}experts.{e}.{short}.weight"] = array[e]
            out[f"{moe}shared_experts.{part}_proj.weight"] = array[-1]
        elif part == "router":
            out[layer + ".block_sparse_moe.gate.weight"] = array
        elif part == "bias":
            out[layer + ".block_sparse_moe.e_score_correction_bias"] = array
        elif name == "lm_head":
            out["language_model.lm_head.weight"] = array
        else:
            out[name + ".weight"] = array
    return out


def load_hub_weights(model: Nano, weights: dict) -> None:
    """Inverse of `hub_weights`, in place; also takes names with the hub's prefix."""
    weights = {k.removeprefix("language_model.model."): v for k, v in weights.items()}
    state = model.state_dict()
    for name, value in state.items():
        key = name.replace(".master", "").replace("norm.weight", "norm")
        layer, _, part = key.partition(".mlp.")
        moe = layer + ".block_sparse_moe."
        if part == "load":
            continue
        if part in ("gate", "up", "down"):
            short = {"gate": "w1", "up": "w3", "down": "w2"}[part]
            parts = [weights[f"{moe}experts.{e}.{short}.weight"] for e in range(model.s.experts)]
            array = torch.stack([torch.tensor(p) for p in parts + [weights[f"{moe}shared_experts.{part}_proj.weight"]]])
        elif part == "router":
            array = torch.tensor(weights[moe + "gate.weight"])
        elif part == "bias":
            array = torch.tensor(weights[moe + "e_score_correction_bias"])
        else:
            array = torch.tensor(weights["language_model.lm_head.weight" if key == "lm_head" else key + ".weight"])
        value.copy_(array)
