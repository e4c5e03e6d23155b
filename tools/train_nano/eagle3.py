"""The EAGLE3 draft of nano: one decoder layer on the target's hidden states, unrolled as it will run.

Slot q holds token q + 1 and predicts token q + 2. At depth 0 its hidden input is combined from
the target's residual streams at row q; at depth j it is the draft's own output of depth j - 1 at
slot q - 1. A draft of several tokens that starts at target row p uses slots p, p + 1, ... with
depths 0, 1, ...: so depth j at slot q attends to depth-0 entries up to slot q - j, which come from
target rows, and to one entry of each of the depths 1 to j.
"""

import json
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from formats import codecs, container

from . import special_tokens as st


@dataclass(frozen=True)
class DraftShape:
    hidden: int = 256
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 128
    width: int = 512
    vocab: int = st.VOCAB
    theta: float = 5_000_000.0
    eps: float = 1e-6
    aux: tuple = (2, 5, 7)  # target layers whose input is used


DRAFT = DraftShape()


def config_json(s: DraftShape, max_position: int) -> str:
    return json.dumps({
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": s.hidden,
        "num_hidden_layers": 1, "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim, "intermediate_size": s.width, "hidden_act": "silu", "vocab_size": s.vocab,
        "draft_vocab_size": s.vocab, "rms_norm_eps": s.eps, "rope_theta": s.theta,
        "max_position_embeddings": max_position, "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": False, "fc_norm": True, "norm_output": True,
        "eagle_aux_hidden_state_layer_ids": list(s.aux), "torch_dtype": "bfloat16",
    }, indent=2) + "\n"


def shapes(s: DraftShape) -> dict:
    q, kv, h = s.heads * s.head_dim, s.kv_heads * s.head_dim, s.hidden
    out = {"embed_tokens.weight": (s.vocab, h), "fc.weight": (h, 3 * h), "norm.weight": (h,), "lm_head.weight": (s.vocab, h)}
    out |= {f"fc_norm.{i}.weight": (h,) for i in range(3)}
    out |= {f"layers.0.{n}.weight": (h,) for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm")}
    out |= {"layers.0.self_attn.q_proj.weight": (q, 2 * h), "layers.0.self_attn.k_proj.weight": (kv, 2 * h),
            "layers.0.self_attn.v_proj.weight": (kv, 2 * h), "layers.0.self_attn.o_proj.weight": (h, q),
            "layers.0.mlp.gate_proj.weight": (s.width, h), "layers.0.mlp.up_proj.weight": (s.width, h),
            "layers.0.mlp.down_proj.weight": (h, s.width)}
    return out


class Draft(nn.Module):
    def __init__(self, s=DRAFT, compute=torch.bfloat16):
        super().__init__()
        self.s, self.compute = s, compute
        self.w = nn.ParameterDict()
        for name, shape in shapes(s).items():
            value = torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * shape[-1] ** -0.5
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                value *= 0.2
            self.w[name.replace(".", "/")] = nn.Parameter(value)

    def weight(self, name):
        return self.w[name.replace(".", "/")]

    @torch.no_grad()
    def start_from(self, target):
        """The target's embedding, head and final norm; the hidden input starts as the last residual stream."""
        self.weight("embed_tokens.weight").copy_(target.embed_tokens.master)
        self.weight("lm_head.weight").copy_(target.lm_head.master)
        self.weight("norm.weight").copy_(1 + target.norm.weight.master)
        fc = self.weight("fc.weight")
        fc.mul_(0.1)[:, 2 * self.s.hidden :] += torch.eye(self.s.hidden, device=fc.device)

    def _linear(self, x, name):
        return F.linear(x.to(self.compute), self.weight(name + ".weight").to(self.compute))

    def _norm(self, x, name):
        return F.rms_norm(x.float(), x.shape[-1:], self.weight(name + ".weight"), self.s.eps)

    def combine(self, aux):
        """aux: three [B, T, hidden]; returns the hidden input of depth 0."""
        return self._linear(torch.cat([self._norm(a, f"fc_norm.{i}") for i, a in enumerate(aux)], -1), "fc")

    def _heads(self, x, name, count, table):
        y = self._linear(x, name).unflatten(-1, (count, -1)).transpose(1, 2)
        if table is None:
            return y
        a, b = y.float().chunk(2, -1)
        cos, sin = table
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(self.compute)

    def unroll(self, tokens, hidden, depths):
        """tokens [B, T] of the slots, hidden [B, T, hidden] of depth 0; z of each depth, [B, T, hidden]."""
        s, t, device = self.s, tokens.shape[1], tokens.device
        half = torch.arange(s.head_dim // 2, device=device, dtype=torch.float32)
        angle = torch.arange(t, device=device)[:, None].float() * s.theta ** (-2 * half / s.head_dim)
        table = angle.cos(), angle.sin()
        embedded = self._norm(F.embedding(tokens, self.weight("embed_tokens.weight")), "layers.0.input_layernorm")
        keys, values, out = [], [], []
        for depth in range(depths):
            x = torch.cat((embedded, self._norm(hidden, "layers.0.hidden_norm")), -1)
            q = self._heads(x, "layers.0.self_attn.q_proj", s.heads, table)
            keys.append(self._heads(x, "layers.0.self_attn.k_proj", s.kv_heads, table))
            values.append(self._heads(x, "layers.0.self_attn.v_proj", s.kv_heads, None))
            o = self._attend(q, keys, values, depth)
            r = hidden.float() + self._linear(o.transpose(1, 2).flatten(2), "layers.0.self_attn.o_proj").float()
            n = self._norm(r, "layers.0.post_attention_layernorm")
            m = F.silu(self._linear(n, "layers.0.mlp.gate_proj").float()) * self._linear(n, "layers.0.mlp.up_proj").float()
            z = self._norm(r + self._linear(m, "layers.0.mlp.down_proj").float(), "norm").to(self.compute)
            out.append(z)
            hidden = _shift(z, 1)
        return out

    def _attend(self, q, keys, values, depth):
        s, t = self.s, q.shape[2]
        k, v = (torch.stack([x.repeat_interleave(s.heads // s.kv_heads, 1) for x in xs]) for xs in (keys, values))
        if depth == 0:
            return F.scaled_dot_product_attention(q, k[0], v[0], is_causal=True)
        at = torch.arange(t, device=q.device)
        score = (q @ k[0].transpose(-1, -2)).float().masked_fill(at > at[:, None] - depth, -torch.inf)
        own = [(q.float() * _shift(k[i], depth - i, 2).float()).sum(-1, keepdim=True) for i in range(1, depth + 1)]
        p = (torch.cat([score] + own, -1) * s.head_dim**-0.5).softmax(-1)
        o = (p[..., :t].to(self.compute) @ v[0]).float()
        for i in range(1, depth + 1):
            o = o + p[..., t + i - 1, None] * _shift(v[i], depth - i, 2).float()
        return o.to(self.compute)

    def logits(self, z):
        return self._linear(z, "lm_head").float()

    def save(self, folder, max_position):
        """model.safetensors in BF16 and config.json; returns the bytes of both."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {n: ("BF16", codecs.to_bf16(self.weight(n).detach().float().cpu().numpy())) for n in shapes(self.s)}
        container.write(folder / "model.safetensors", tensors, {"format": "pt"})
        (folder / "config.json").write_text(config_json(self.s, max_position))
        return sum((folder / n).stat().st_size for n in ("model.safetensors", "config.json"))

    @torch.no_grad()
    def load(self, folder):
        for name, (_, bits) in container.read(folder / "model.safetensors").items():
            self.weight(name).copy_(torch.tensor(codecs.from_bf16(bits)))


def _shift(x, n, axis=1):
    """x moved n slots to the right, zeros from the left."""
    if n == 0:
        return x
    zeros = torch.zeros_like(x.narrow(axis, 0, n))
    return torch.cat((zeros, x.narrow(axis, 0, x.shape[axis] - n)), axis)


@torch.no_grad()
def target_states(target, ids, aux):
    """The residual streams entering the layers `aux`, in BF16, and the final hidden states, of ids [B, T]."""
    trace = []
    y = target(ids, trace)
    return [trace[i].bfloat16() for i in aux], y
