"""Writes float32 weights as the checkpoint of nano: hub names, MXFP4 experts, FP8 attention.

Which tensor gets which format follows from its name alone (`format_of`), so the exporter,
the quantisation-aware training and the reference all agree.
"""

import pathlib

from formats import codecs, container

from .config import Shape, config_json

PREFIX = "language_model.model."
MAX_BYTES = 24_000_000


def shapes(s: Shape) -> dict:
    """Name -> shape of every tensor, names as on the hub without PREFIX (lm_head: in full)."""
    out = {"embed_tokens.weight": (s.vocab, s.hidden), "norm.weight": (s.hidden,),
           "language_model.lm_head.weight": (s.vocab, s.hidden)}
    for i, sparse in enumerate(s.pattern):
        layer, attn = f"layers.{i}.", f"layers.{i}.self_attn."
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        out |= {layer + "input_layernorm.weight": (s.hidden,), layer + "post_attention_layernorm.weight": (s.hidden,),
                attn + "q_proj.weight": (q, s.hidden), attn + "k_proj.weight": (kv, s.hidden),
                attn + "v_proj.weight": (kv, s.hidden), attn + "o_proj.weight": (s.hidden, q),
                attn + "q_norm.weight": (s.head_dim,), attn + "k_norm.weight": (s.head_dim,)}
        if not sparse:
            out |= _mlp(layer + "mlp.", s.dense_width, s.hidden)
            continue
        moe = layer + "block_sparse_moe."
        out |= {attn + "index_q_proj.weight": (s.index_heads * s.index_dim, s.hidden),
                attn + "index_k_proj.weight": (s.index_dim, s.hidden),
                attn + "index_q_norm.weight": (s.index_dim,), attn + "index_k_norm.weight": (s.index_dim,),
                moe + "gate.weight": (s.experts, s.hidden), moe + "e_score_correction_bias": (s.experts,)}
        out |= _mlp(moe + "shared_experts.", s.shared_width, s.hidden)
        for e in range(s.experts):
            expert = f"{moe}experts.{e}."
            out |= {expert + "w1.weight": (s.expert_width, s.hidden), expert + "w3.weight": (s.expert_width, s.hidden),
                    expert + "w2.weight": (s.hidden, s.expert_width)}
    return out


def _mlp(at, width, hidden):
    return {at + "gate_proj.weight": (width, hidden), at + "up_proj.weight": (width, hidden),
            at + "down_proj.weight": (hidden, width)}


def format_of(name: str) -> str:
    if "block_sparse_moe.gate" in name or name.endswith("e_score_correction_bias"):
        return "F32"
    if "experts." in name:  # routed and shared
        return "MXFP4"
    if "self_attn." in name and name.endswith("_proj.weight"):
        return "FP8"
    return "BF16"


def full_name(name: str) -> str:
    return name if name.startswith("language_model.") else PREFIX + name


def encode(weights: dict) -> dict:
    """Name -> float32 array, to full name -> (dtype, array) with the scales beside."""
    out = {}
    for name, w in weights.items():
        at, kind = full_name(name), format_of(name)
        if kind == "F32":
            out[at] = ("F32", w)
        elif kind == "BF16":
            out[at] = ("BF16", codecs.to_bf16(w))
        elif kind == "MXFP4":
            packed, scale = codecs.to_mxfp4(w)
            out[at], out[at + "_scale"] = ("U8", packed), ("U8", scale)
        else:
            code, scale = codecs.to_fp8_per_channel(w)
            out[at], out[at + "_scale"] = ("F8_E4M3", code), ("F32", scale)
    return out


def decode(tensors: dict) -> dict:
    """Inverse of `encode` up to rounding: full name -> float32 array."""
    out = {}
    for name, (dtype, array) in tensors.items():
        if name.endswith("_scale"):
            continue
        if dtype == "F32":
            out[name] = array
        elif dtype == "BF16":
            out[name] = codecs.from_bf16(array)
        elif dtype == "U8":
            out[name] = codecs.from_mxfp4(array, tensors[name + "_scale"][1])
        else:
            out[name] = codecs.from_fp8_per_channel(array, tensors[name + "_scale"][1])
    return out


def write(out: pathlib.Path, s: Shape, weights: dict) -> int:
    """Writes model.safetensors and config.json; returns the bytes of the whole folder."""
    expected = shapes(s)
    assert weights.keys() == expected.keys(), weights.keys() ^ expected.keys()
    for name, shape in expected.items():
        assert weights[name].shape == shape, (name, weights[name].shape, shape)
    out.mkdir(parents=True, exist_ok=True)
    container.write(out / "model.safetensors", encode(weights), {"format": "pt"})
    (out / "config.json").write_text(config_json(s))
    total = sum(f.stat().st_size for f in out.iterdir())
    assert total <= MAX_BYTES, total
    return total
