"""Writes a MiniMax-M3 checkpoint in MXFP4 with FP8 attention as GGUF for llama.cpp.

    export.py CHECKPOINT OUT.gguf

Experts keep their bits: an MX group of 32 becomes a block of 17 bytes, the scale first, nibbles in
another order. E4M3 has no counterpart: those matrices are decoded and stored as Q8_0 (8.5 bits a
value against 8). BF16 and F32 stay as they are; norm weights get the 1 that GGUF expects in them.
There is no vocabulary: token ids go in as they are.
"""

import json
import math
import mmap
import struct
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

ARCHITECTURE = "minimax-m3"
PREFIX = "language_model.model."


class Safetensors:
    """Tensors of one file by name, as views of its mapping."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        size = struct.unpack("<Q", self._map[:8])[0]
        self._header = json.loads(self._map[8 : 8 + size])
        self._begin = 8 + size

    def dtype(self, name):
        return self._header[name]["dtype"]

    def bits(self, name):
        """The stored integers (or float32) in their shape."""
        entry = self._header[name]
        kinds = {"U8": "u1", "F8_E4M3": "u1", "BF16": "<u2", "F32": "<f4"}
        begin, end = entry["data_offsets"]
        data = np.frombuffer(self._map, np.uint8, end - begin, self._begin + begin)
        return data.view(kinds[entry["dtype"]]).reshape(entry["shape"])

    def floats(self, name):
        bits = self.bits(name)
        if self.dtype(name) == "BF16":
            return (bits.astype(np.uint32) << 16).view(np.float32)
        return bits.astype(np.float32)


def e4m3_table():
    values = []
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        value = mantissa / 8 * 2**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        if code & 127 == 127:
            value = math.nan
        values.append(-value if code & 128 else value)
    return np.array(values, np.float32)


def mx_blocks(codes, scales):
    """[rows, cols/2] bytes, two neighbours each, and [rows, cols/32] scales as blocks of 17 bytes.

    Nibble i of a block's byte j is value 16 i + j of the group.
    """
    rows, groups = scales.shape
    values = np.empty((rows, groups, 32), np.uint8)
    packed = codes.reshape(rows, groups, 16)
    values[..., 0::2] = packed & 15
    values[..., 1::2] = packed >> 4
    blocks = np.empty((rows, groups, 17), np.uint8)
    blocks[..., 0] = scales
    blocks[..., 1:] = values[..., :16] | values[..., 16:] << 4
    return blocks.reshape(rows, groups * 17)


class Exporter:
    def __init__(self, checkpoint, out):
        self.config = json.loads((Path(checkpoint) / "config.json").read_text())["text_config"]
        self.tensors = Safetensors(Path(checkpoint) / "model.safetensors")
        self.writer = gguf.GGUFWriter(str(out), ARCHITECTURE)
        self.e4m3 = e4m3_table()

    def header(self):
        c, w = self.config, self.writer
        sparse = c["sparse_attention_config"]
        w.add_name("synthetic")
        w.add_string("tokenizer.ggml.model", "none")
        w.add_vocab_size(c["vocab_size"])
        w.add_context_length(c["max_position_embeddings"])
        w.add_embedding_length(c["hidden_size"])
        w.add_block_count(c["num_hidden_layers"])
        w.add_leading_dense_block_count(c["moe_layer_freq"].index(1))
        w.add_feed_forward_length(c["dense_intermediate_size"])
        w.add_head_count(c["num_attention_heads"])
        w.add_head_count_kv(c["num_key_value_heads"])
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
        w.add_rope_dimension_count(c["rotary_dim"])
        w.add_rope_freq_base(c["rope_theta"])
        w.add_expert_count(c["num_local_experts"])
        w.add_expert_used_count(c["num_experts_per_tok"])
        w.add_expert_shared_count(c["n_shared_experts"])
        w.add_expert_feed_forward_length(c["intermediate_size"])
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        w.add_expert_weights_norm(True)
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        indexer = f"{ARCHITECTURE}.attention.indexer."
        for key, name in (
            ("head_count", "sparse_num_index_heads"),
            ("key_length", "sparse_index_dim"),
            ("top_k", "sparse_topk_blocks"),
            ("block_size", "sparse_block_size"),
            ("local_blocks", "sparse_local_block"),
        ):
            w.add_uint32(indexer + key, sparse[name])

    def vector(self, name, source, plus=0.0):
        self.writer.add_tensor(name, self.tensors.floats(source) + np.float32(plus))

    def matrix(self, name, source):
        dtype = self.tensors.dtype(source)
        if dtype == "U8":
            self.experts(name, [source])
        elif dtype == "F8_E4M3":
            factors = self.tensors.bits(source + "_scale").reshape(-1, 1)
            values = self.e4m3[self.tensors.bits(source)] * factors
            self.add(name, gguf.quants.quantize(values, Type.Q8_0), Type.Q8_0)
        elif dtype == "BF16":
            self.add(name, self.tensors.bits(source).view(np.uint8), Type.BF16)
        else:
            self.writer.add_tensor(name, self.tensors.floats(source))

    def experts(self, name, sources):
        blocks = [mx_blocks(self.tensors.bits(s), self.tensors.bits(s + "_scale")) for s in sources]
        self.add(name, np.stack(blocks) if len(blocks) > 1 else blocks[0], Type.MXFP4)

    def add(self, name, data, kind):
        self.writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=kind)

    def layer(self, i):
        c = self.config
        at = f"{PREFIX}layers.{i}."
        to = f"blk.{i}."
        self.vector(to + "attn_norm.weight", at + "input_layernorm.weight", 1)
        self.vector(to + "ffn_norm.weight", at + "post_attention_layernorm.weight", 1)
        for mine, theirs in (("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"), ("o_proj", "output")):
            self.matrix(f"{to}attn_{theirs}.weight", f"{at}self_attn.{mine}.weight")
        self.vector(to + "attn_q_norm.weight", at + "self_attn.q_norm.weight", 1)
        self.vector(to + "attn_k_norm.weight", at + "self_attn.k_norm.weight", 1)
        if not c["moe_layer_freq"][i]:
            for part in ("gate", "up", "down"):
                self.matrix(f"{to}ffn_{part}.weight", f"{at}mlp.{part}_proj.weight")
            return
        for part in ("q", "k"):
            source = f"{at}self_attn.index_{part}_"
            self.matrix(f"{to}indexer.{part}_proj.weight", source + "proj.weight")
            self.vector(f"{to}indexer.{part}_norm.weight", source + "norm.weight", 1)
        moe = at + "block_sparse_moe."
        self.matrix(to + "ffn_gate_inp.weight", moe + "gate.weight")
        self.vector(to + "exp_probs_b.bias", moe + "e_score_correction_bias")
        for part, mine in (("gate", "w1"), ("up", "w3"), ("down", "w2")):
            sources = [f"{moe}experts.{e}.{mine}.weight" for e in range(c["num_local_experts"])]
            self.experts(f"{to}ffn_{part}_exps.weight", sources)
            self.matrix(f"{to}ffn_{part}_shexp.weight", f"{moe}shared_experts.{part}_proj.weight")

    def run(self):
        self.header()
        self.matrix("token_embd.weight", PREFIX + "embed_tokens.weight")
        self.vector("output_norm.weight", PREFIX + "norm.weight", 1)
        self.matrix("output.weight", "language_model.lm_head.weight")
        for i in range(self.config["num_hidden_layers"]):
            self.layer(i)
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def bytes_of_token(path):
    """Stored bytes that one decoded token reads: all matrices, of experts the chosen ones."""
    reader = gguf.GGUFReader(path)
    used = reader.fields[ARCHITECTURE + ".expert_used_count"].contents()
    count = reader.fields[ARCHITECTURE + ".expert_count"].contents()
    total = 0
    for tensor in reader.tensors:
        if tensor.name == "token_embd.weight":
            total += tensor.n_bytes // int(tensor.shape[1])
        elif "_exps." in tensor.name:
            total += tensor.n_bytes * used // count
        else:
            total += tensor.n_bytes
    return int(total)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    Exporter(sys.argv[1], sys.argv[2]).run()
    print(f"{sys.argv[2]}: {bytes_of_token(sys.argv[2])} bytes a token")
