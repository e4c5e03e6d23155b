"""Makes small random MiniMax-M3 checkpoints with transformers' outputs for them.

    python3 -m oracle.make_case OUT_DIR [CASE ...]

Each case folder holds config.json, model.safetensors and expected.safetensors, with the
names of tests/data/oracle. Random weights are scaled so that every layer changes the
residual stream, and every scale group or row gets its own magnitude.
"""

import json
import pathlib
import sys
from dataclasses import dataclass, replace

import numpy as np

from formats import codecs, container
from train_nano import config as nano_config
from train_nano.config import Shape
from train_nano.export import full_name, shapes

from . import reference

SMALL = Shape(hidden=64, layers=3, dense_layers=1, heads=4, kv_heads=2, head_dim=64, index_heads=2, index_dim=64,
              rotary=32, block=32, top_blocks=3, experts=8, top_experts=2, expert_width=32, shared_width=32,
              dense_width=64, vocab=256, max_position=65536)


@dataclass(frozen=True)
class Case:
    shape: Shape
    tokens: int
    seed: int
    scheme: str  # bf16, mxfp8, mixed: MXFP4 experts and FP8 per-channel attention
    rows: int = 20


CASES = {
    # two forced local blocks among three, three of twelve experts, hidden 48
    "local2": Case(replace(SMALL, hidden=48, vocab=128, experts=12, top_experts=3, local_blocks=2), 300, 101, "bf16"),
    # every text linear in MXFP8 with weight_scale_inv; head 128; one KV head for four query heads
    "mxfp8": Case(replace(SMALL, kv_heads=1, index_heads=1, head_dim=128, index_dim=128, rotary=64, block=64,
                          shared_width=64, top_blocks=2), 330, 102, "mxfp8"),
    # the formats of nano; two dense layers; a context that ends one token into its ninth block
    "mixed": Case(replace(SMALL, layers=4, dense_layers=2, block=16, top_blocks=4, expert_width=64), 129, 103, "mixed"),
}


def format_of(name, scheme):
    if "block_sparse_moe.gate" in name or name.endswith("e_score_correction_bias"):
        return "F32"
    linear = name.endswith(("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight"))
    if scheme == "mxfp8" and linear:
        return "MXFP8"
    if scheme == "mixed" and linear:
        return "MXFP4" if "experts." in name else "FP8" if "self_attn." in name else "BF16"
    return "BF16"


def random_weight(rng, name, shape, kind):
    w = rng.standard_normal(shape)
    if name.endswith("norm.weight"):
        w *= 0.2
    elif name.endswith("e_score_correction_bias"):
        w *= 0.1
    elif "embed_tokens" not in name:
        w *= 1.5 / np.sqrt(shape[-1])
    if kind in ("MXFP4", "MXFP8"):
        w = w.reshape(shape[0], -1, 32) * np.exp2(rng.integers(-3, 3, (shape[0], shape[1] // 32, 1)))
    elif kind == "FP8":
        w *= np.exp2(rng.uniform(-2, 2, (shape[0], 1)))
    return w.reshape(shape).astype(np.float32)


def encode(name, w, kind):
    """Stored tensors of one weight, and the float32 values they decode to."""
    at = full_name(name)
    if kind == "F32":
        return {at: ("F32", w)}, w
    if kind == "BF16":
        bits = codecs.to_bf16(w)
        return {at: ("BF16", bits)}, codecs.from_bf16(bits)
    if kind == "MXFP4":
        packed, scale = codecs.to_mxfp4(w)
        return {at: ("U8", packed), at + "_scale": ("U8", scale)}, codecs.from_mxfp4(packed, scale)
    if kind == "MXFP8":
        code, scale = codecs.to_mxfp8(w)
        return {at: ("F8_E4M3", code), at + "_scale_inv": ("U8", scale)}, codecs.from_mxfp8(code, scale)
    code, scale = codecs.to_fp8_per_channel(w)
    return {at: ("F8_E4M3", code), at + "_scale": ("F32", scale)}, codecs.from_fp8_per_channel(code, scale)


def config_of(case):
    config = json.loads(nano_config.config_json(case.shape))
    for key in ("image_token_index", "video_token_index"):
        del config[key]
    config["text_config"] |= {"bos_token_id": 1, "eos_token_id": 2}
    if case.scheme == "bf16":
        del config["quantization_config"]
    elif case.scheme == "mxfp8":
        config["quantization_config"] = {
            "quant_method": "mxfp8", "activation_scheme": "dynamic", "weight_block_size": [1, 32], "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "ignored_layers": ["*lm_head", "*embed_tokens", "*block_sparse_moe.gate", "*norm"]}
    return config


def make(folder, case):
    rng, stored, values = np.random.default_rng(case.seed), {}, {}
    for name, shape in shapes(case.shape).items():
        kind = format_of(name, case.scheme)
        tensors, values[full_name(name)] = encode(name, random_weight(rng, name, shape, kind), kind)
        stored |= tensors
    config = config_of(case)
    ids = rng.integers(0, case.shape.vocab, case.tokens)
    rows = np.linspace(0, case.tokens - 1, case.rows).round().astype(int)
    want = reference.expected(reference.build(config, values), ids.tolist(), rows)
    folder.mkdir(parents=True, exist_ok=True)
    container.write(folder / "model.safetensors", stored, {"format": "pt"})
    container.write(folder / "expected.safetensors", want)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    print(folder.name, sum(f.stat().st_size for f in folder.iterdir()), "bytes; smallest greedy gap",
          want["greedy_gap"][1].min(), "hidden norms",
          [round(float(np.linalg.norm(v[1])), 1) for k, v in sorted(want.items()) if k.startswith("hidden")])


if __name__ == "__main__":
    for chosen in sys.argv[2:] or CASES:
        make(pathlib.Path(sys.argv[1]) / chosen, CASES[chosen])
