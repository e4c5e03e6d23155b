"""One run of llama.cpp: decodes token ids one at a time and prints the times as JSON.

    peer.py MODEL.gguf THREADS CONTEXT STEPS [LOGITS.npy]

CONTEXT ids are read first, in one batch; of those after them the first warms up, STEPS are timed.
With LOGITS.npy nothing is timed: all ids are decoded one at a time and every row's logits written.
"""

import ctypes
import json
import sys
import time

import llama_cpp as api
import numpy as np


def token_ids(count, vocabulary):
    """The ids that `monolayer bench step` draws."""
    ids, state = [], 1
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        ids.append((state >> 33) % vocabulary)
    return ids


class Peer:
    def __init__(self, path, threads, slots):
        self._log = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self._log, None)
        api.llama_backend_init()
        options = api.llama_model_default_params()
        options.use_mmap = True
        self.model = api.llama_model_load_from_file(path.encode(), options)
        if not self.model:
            sys.exit(f"{path}: not loaded")
        options = api.llama_context_default_params()
        options.n_ctx = slots
        options.n_batch = options.n_ubatch = 512
        options.n_threads = options.n_threads_batch = threads
        options.flash_attn_type = 1  # block-sparse attention needs it
        self.context = api.llama_init_from_model(self.model, options)
        if not self.context:
            sys.exit(f"{path}: no context")
        self.vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))

    def step(self, ids):
        tokens = (api.llama_token * len(ids))(*ids)
        if api.llama_decode(self.context, api.llama_batch_get_one(tokens, len(ids))) != 0:
            sys.exit("llama_decode failed")

    def logits(self):
        row = api.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(row, (self.vocabulary,)).copy()


def main():
    path, threads, context, steps = sys.argv[1], *map(int, sys.argv[2:5])
    peer = Peer(path, threads, (context + steps + 256) // 256 * 256)
    ids = token_ids(context + steps + 1, peer.vocabulary)
    if len(sys.argv) > 5:
        rows = []
        for token in ids:
            peer.step([token])
            rows.append(peer.logits())
        np.save(sys.argv[5], np.stack(rows))
        return
    peer.step(ids[steps + 1 :])
    peer.logits()  # waits for the batch
    seconds = []
    for token in ids[: steps + 1]:
        start = time.perf_counter()
        peer.step([token])
        peer.logits()
        seconds.append(time.perf_counter() - start)
    del seconds[0]
    system = ctypes.string_at(api.llama_print_system_info()).decode()
    print(json.dumps({"seconds": seconds, "system": system}))


if __name__ == "__main__":
    main()
