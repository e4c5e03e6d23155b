"""The shape of nano and its config.json."""

import json
from dataclasses import dataclass, field

from . import special_tokens as st


@dataclass(frozen=True)
class Shape:
    hidden: int = 256
    layers: int = 8
    dense_layers: int = 3  # leading layers with full attention and a dense MLP
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 128
    index_heads: int = 4
    index_dim: int = 128
    rotary: int = 64
    theta: float = 5_000_000.0
    block: int = 128  # keys per selected block
    top_blocks: int = 4
    local_blocks: int = 1
    experts: int = 16
    top_experts: int = 4
    expert_width: int = 256
    shared_width: int = 256
    dense_width: int = 512
    vocab: int = st.VOCAB
    max_position: int = 1_048_576
    eps: float = 1e-6
    routed_scale: float = 2.0
    alpha: float = 1.702
    limit: float = 7.0
    pattern: tuple = field(init=False)  # 0 dense, 1 sparse

    def __post_init__(self):
        object.__setattr__(self, "pattern", tuple(int(i >= self.dense_layers) for i in range(self.layers)))


NANO = Shape()


def text_config(s: Shape) -> dict:
    pattern = list(s.pattern)
    return {
        "hidden_size": s.hidden, "num_hidden_layers": s.layers, "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim, "vocab_size": s.vocab,
        "max_position_embeddings": s.max_position, "rms_norm_eps": s.eps, "use_gemma_norm": True,
        "use_qk_norm": True, "qk_norm_type": "per_head", "attention_output_gate": False,
        "rope_theta": s.theta, "rotary_dim": s.rotary, "partial_rotary_factor": s.rotary / s.head_dim,
        "hidden_act": "swigluoai", "swiglu_alpha": s.alpha, "swiglu_limit": s.limit,
        "intermediate_size": s.expert_width, "dense_intermediate_size": s.dense_width,
        "shared_intermediate_size": s.shared_width, "num_local_experts": s.experts,
        "num_experts_per_tok": s.top_experts, "n_shared_experts": 1, "moe_layer_freq": pattern,
        "scoring_func": "sigmoid", "use_routing_bias": True, "routed_scaling_factor": s.routed_scale,
        "tie_word_embeddings": False, "num_mtp_modules": 0, "num_nextn_predict_layers": 0,
        "bos_token_id": st.TURN, "eos_token_id": st.EOS,
        "sparse_attention_config": {
            "use_sparse_attention": True, "sparse_attention_freq": pattern,
            "sparse_num_index_heads": s.index_heads, "sparse_index_dim": s.index_dim,
            "sparse_topk_blocks": s.top_blocks, "sparse_block_size": s.block, "sparse_score_type": "max",
            "sparse_init_block": 0, "sparse_local_block": s.local_blocks, "sparse_disable_index_value": pattern,
        },
        "torch_dtype": "bfloat16",
    }


def _fp4(dynamic: bool) -> dict:
    return {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "ch_axis": -1, "is_dynamic": dynamic,
            "scale_format": "e8m0", "scale_type": "float", "symmetric": None, "round_method": "half_even",
            "observer_cls": "PerBlockMXObserver"}


def _fp8(per_token: bool) -> dict:
    return {"dtype": "fp8_e4m3", "qscheme": "per_channel", "group_size": None, "ch_axis": 1 if per_token else 0,
            "is_dynamic": per_token, "scale_format": None, "scale_type": "float", "symmetric": True,
            "round_method": "half_even", "observer_cls": "PerChannelMinMaxObserver"}


def quantization_config() -> dict:
    """MXFP4 unless a pattern says otherwise; a match in layer_quant_config goes before exclude.

    The input_tensors entries tell what the scheme allows; they do not ask an engine to quantise activations.
    """
    return {
        "quant_method": "quark",
        "global_quant_config": {"weight": _fp4(False), "input_tensors": _fp4(True),
                                "output_tensors": None, "bias": None},
        "layer_quant_config": {"*self_attn*": {"weight": _fp8(False), "input_tensors": _fp8(True),
                                               "output_tensors": None, "bias": None}},
        "exclude": ["*lm_head", "*mlp.gate_proj", "*mlp.up_proj", "*mlp.down_proj",
                    "*block_sparse_moe.gate", "*embed_tokens*"],
        "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized",
                   "weight_merge_groups": None},
    }


def config_json(s: Shape) -> str:
    root = {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "model_type": "minimax_m3_vl",
        "image_token_index": st.ORDINARY + 25,
        "video_token_index": st.ORDINARY + 26,
        "text_config": text_config(s),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "quantization_config": quantization_config(),
    }
    return json.dumps(root, indent=2) + "\n"
