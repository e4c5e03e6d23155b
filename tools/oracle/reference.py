"""Runs transformers' MiniMax-M3 on decoded checkpoint values: float32, eager attention.

transformers' own loader is not used, so that quantised checkpoints in any layout of ours
can be run; the mapping of names below is the whole of what it would do.
"""

import numpy as np
import torch

PREFIX = "language_model.model."


def build(config: dict, weights: dict):
    """config: parsed config.json (nested); weights: full hub name -> float32 array, already dequantised."""
    try:
        from transformers.models.minimax_m3_vl.configuration_minimax_m3_vl import MiniMaxM3VLTextConfig
        from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as m3
    except ImportError as error:
        raise SystemExit(f"this transformers has no MiniMax-M3 (need 5.17.0): {error}")
    text = {k: v for k, v in config["text_config"].items() if k not in ("architectures", "model_type")}
    text.pop("torch_dtype", None)
    parsed = MiniMaxM3VLTextConfig(**text)
    parsed._attn_implementation = "eager"
    model = m3.MiniMaxM3VLForCausalLM(parsed).float().eval()
    state = _hf_names(weights, parsed.num_local_experts)
    missing = model.load_state_dict({k: torch.tensor(v) for k, v in state.items()}, strict=False)
    assert not missing.missing_keys and not missing.unexpected_keys, missing
    return model


def _hf_names(weights, experts):
    out = {}
    for name, w in weights.items():
        if ".experts." in name:
            continue
        name = name.replace("language_model.lm_head", "lm_head").replace("language_model.model.", "model.")
        name = name.replace(".block_sparse_moe.e_score", ".mlp.gate.e_score").replace(".block_sparse_moe.", ".mlp.")
        for part in ("q_proj", "k_proj", "q_norm", "k_norm"):
            name = name.replace(f".self_attn.index_{part}.", f".self_attn.indexer.{part}.")
        out[name] = w
    for name in [n for n in out if n.endswith("gate_proj.weight")]:
        out[name.replace("gate_proj", "gate_up_proj")] = np.concatenate(
            [out.pop(name), out.pop(name.replace("gate_proj", "up_proj"))])
    for first in [n for n in weights if n.endswith(".experts.0.w1.weight")]:
        at = first.removesuffix("0.w1.weight")
        get = lambda e, part: weights[f"{at}{e}.{part}.weight"]
        to = at.replace(PREFIX, "model.").replace(".block_sparse_moe.", ".mlp.")
        out[to + "gate_up_proj"] = np.stack(
            [np.concatenate([get(e, "w1"), get(e, "w3")]) for e in range(experts)])
        out[to + "down_proj"] = np.stack([get(e, "w2") for e in range(experts)])
    return out


@torch.no_grad()
def expected(model, ids, rows, greedy_steps=48) -> dict:
    """The tensors of an expected.safetensors, as (dtype, array); names as in tests/data/oracle/README.md."""
    blocks, inputs, hooks = {}, [], []
    for i, layer in enumerate(model.model.layers):
        hooks.append(layer.register_forward_pre_hook(
            lambda m, args, kwargs: inputs.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True))
        if layer.self_attn.indexer is not None:
            hooks.append(layer.self_attn.indexer.register_forward_hook(
                lambda m, args, out, i=i: blocks.__setitem__(i, out[0].transpose(0, 1))))
    final = []
    hooks.append(model.model.norm.register_forward_hook(lambda m, args, out: final.append(out)))
    logits = model(input_ids=torch.tensor(ids)[None], use_cache=False).logits[0]
    for h in hooks:
        h.remove()
    out = {"input_ids": ("I32", np.asarray(ids, np.int32)), "rows": ("I32", np.asarray(rows, np.int32)),
           "logits": ("F32", logits[rows].numpy())}
    for i, h in enumerate(inputs + final):
        out[f"hidden.{i}"] = ("F32", h[0][rows].numpy())
    for i, b in blocks.items():
        out[f"blocks.{i}"] = ("I32", b.numpy().astype(np.int32))
    if greedy_steps:
        tokens, gaps = greedy(model, ids[: len(ids) // 2], greedy_steps)
        out["greedy"], out["greedy_gap"] = ("I32", np.asarray(tokens, np.int32)), ("F32", np.asarray(gaps, np.float32))
    return out


@torch.no_grad()
def greedy(model, ids, steps):
    """Greedy continuation by full recomputation, and the margin of the best over the second logit at each step."""
    ids, gaps = list(ids), []
    start = len(ids)
    for _ in range(steps):
        best = model(input_ids=torch.tensor(ids)[None], use_cache=False).logits[0, -1].topk(2)
        ids.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
    return ids[start:], gaps


def relative(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))
