"""Decodes a tiny random model through libmonolayer and prints a checksum of all outputs.

Uses PyTorch tensors if PyTorch is there (or --numpy is not given), else NumPy arrays; both hand their
memory over through DLPack. The model is that of tests/package/tiny_model.h, so the checksum equals the
one that the C and C++ programs there print.
"""
import ctypes
import sys

import numpy as np

import monolayer as ml

LAYERS, FIRST, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INDEX_DIM = 2, 3, 64, 8, 4, 32, 32
EXPERTS, WIDTH, BLOCKS, STEPS = 4, 256, 8, 100

try:
    if "--numpy" in sys.argv:
        raise ImportError
    import torch

    def hand_over(array):
        """A PyTorch tensor over the array's memory; 16-bit ones hold bfloat16."""
        if array.dtype == np.uint16:
            return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(array)
except ImportError:
    torch = None

    def hand_over(array):
        return array


def hashes(number, count):
    with np.errstate(over="ignore"):
        z = np.arange(count, dtype=np.uint64)
        z += np.uint64((number * 0x100000000 + 0x9E3779B97F4A7C15) % 2**64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def bf16(number, count):
    value = (hashes(number, count) >> np.uint64(40)).astype(np.float32) / np.float32(16777216)
    value = (value - np.float32(0.5)) * np.float32(0.25)
    return (value.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


class Memory:
    """Aligned arrays, and the only references that keep them alive."""

    def __init__(self):
        self.kept = []

    def put(self, values, shape, dtype, layout=ml.ROWS):
        unit = values.dtype.itemsize
        raw = np.empty(values.size * unit + 64, np.uint8)
        start = -raw.ctypes.data % 64
        array = raw[start:start + values.size * unit].view(values.dtype).reshape(shape)
        array[...] = values.reshape(shape)
        source = hand_over(array)
        self.kept += [raw, source]
        view = ml.tensor(source, dtype, layout)
        assert view.data == array.ctypes.data, "copied"
        return view

    def values(self, number, *shape):
        return self.put(bf16(number, int(np.prod(shape))), shape, ml.BF16)

    def matrix(self, number, rows, cols):
        return ml.matrix(self.values(number, rows, cols))

    def table(self, number, rows, cols):
        n = (EXPERTS + 1) * rows * cols
        codes = (hashes(number, n // 2) >> np.uint64(24)).astype(np.uint8)
        scales = (np.uint64(120) + (hashes(number + 1, n // 32) >> np.uint64(60)) % np.uint64(3))
        return ml.matrix(self.put(codes, (EXPERTS + 1, rows, cols // 2), ml.E2M1X2),
                         self.put(scales.astype(np.uint8), (EXPERTS + 1, rows, cols // 32),
                                  ml.E8M0))


def layer(memory, i):
    n = 100 * (i + 1)
    spec = ml.make(ml.LayerSpec, layer_id=FIRST + i)
    sizes = {"input_norm": HIDDEN, "post_norm": HIDDEN, "q_norm": HEAD_DIM, "k_norm": HEAD_DIM,
             "index_q_norm": INDEX_DIM, "index_k_norm": INDEX_DIM}
    for at, (name, size) in enumerate(sizes.items()):
        setattr(spec, name, memory.values(n + at, size))
    shapes = {"q": (HEADS * HEAD_DIM, HIDDEN), "k": (KV_HEADS * HEAD_DIM, HIDDEN),
              "v": (KV_HEADS * HEAD_DIM, HIDDEN), "index_q": (KV_HEADS * INDEX_DIM, HIDDEN),
              "index_k": (INDEX_DIM, HIDDEN), "o": (HIDDEN, HEADS * HEAD_DIM),
              "router": (EXPERTS, HIDDEN)}
    for at, (name, shape) in enumerate(shapes.items()):
        setattr(spec, name, memory.matrix(n + 6 + at, *shape))
    spec.stacked.gate = memory.table(n + 20, WIDTH, HIDDEN)
    spec.stacked.up = memory.table(n + 22, WIDTH, HIDDEN)
    spec.stacked.down = memory.table(n + 24, HIDDEN, WIDTH)
    return spec


def cache(memory, i):
    spec = ml.make(ml.CacheSpec, layer_id=FIRST + i, k_scale=1, v_scale=1, index_scale=1,
                   max_context=BLOCKS * 128)
    shape = (BLOCKS, KV_HEADS, 128, HEAD_DIM)
    nan = np.full(int(np.prod(shape)), 0xFFFF, np.uint16)
    spec.k = memory.put(nan, shape, ml.BF16, ml.PAGES)
    spec.v = memory.put(nan, shape, ml.BF16, ml.PAGES)
    shape = (BLOCKS, 128, INDEX_DIM)
    spec.index = memory.put(nan[:int(np.prod(shape))], shape, ml.BF16, ml.PAGES)
    return spec


MODEL = dict(num_layers=FIRST + LAYERS, hidden_size=HIDDEN, num_heads=HEADS, num_kv_heads=KV_HEADS,
             index_heads=KV_HEADS, head_dim=HEAD_DIM, index_dim=INDEX_DIM, rotary_dim=16,
             block_size=128, topk_blocks=2, local_blocks=1, num_experts=EXPERTS,
             experts_per_token=2, expert_width=WIDTH, shared_width=WIDTH, max_positions=1024,
             rope_theta=10000, rms_eps=1e-6, routed_scale=2, swiglu_alpha=1.702, swiglu_limit=7,
             swiglu_beta=1)


def step_arrays(length, q):
    """Two requests that grow by q rows each; request r owns blocks 4r .. 4r + 3."""
    main = np.arange(8, dtype=np.int32).reshape(2, 4)
    index = main[::-1, ::-1].copy()
    positions = np.tile(np.arange(length, length + q, dtype=np.int64), 2)
    request = np.repeat(np.arange(2), q)
    at = (request, positions // 128)
    return dict(main_table=main, index_table=index,
                seq_lens=np.full(2, length + q, np.int32),
                main_slots=main[at].astype(np.int64) * 128 + positions % 128,
                index_slots=index[at].astype(np.int64) * 128 + positions % 128), positions


def fold(total, view):
    data = ctypes.string_at(view.data, view.shape[0] * view.shape[1] * 2)
    for byte in data:
        total = (total ^ byte) * 0x100000001B3 % 2**64
    return total


def main():
    library = ml.Library(next((a for a in sys.argv[1:] if not a.startswith("--")), None))
    memory = Memory()
    layers = [layer(memory, i) for i in range(LAYERS)]
    caches = [cache(memory, i) for i in range(LAYERS)]
    context = ml.make(ml.TpContext, tp_size=1, device_type=ml.CPU, worker_threads=2)
    total, length = 0xCBF29CE484222325, 0
    with ml.Mono(library, ml.make(ml.Model, **MODEL), layers, caches, context) as mono:
        for i in range(STEPS):
            q = 1 + i % 3
            arrays, positions = step_arrays(length, q)
            length += q
            mono.prepare_step(ml.make(
                ml.Step, token_count=2 * q, requests=2, query_len=q, table_width=4,
                index_table_width=4, **{name: a.ctypes.data for name, a in arrays.items()}))
            rows = Memory()  # the step's inputs
            hidden, residual = mono.forward_layers(
                FIRST, LAYERS, rows.values(1000 + i, 2 * q, HIDDEN),
                rows.values(5000 + i, 2 * q, HIDDEN), ml.tensor(hand_over(positions)))
            total = fold(fold(total, hidden), residual)
    print(f"tensors of {'torch' if torch else 'numpy'}", file=sys.stderr)
    print(f"checksum {total:016x}")


if __name__ == "__main__":
    main()
