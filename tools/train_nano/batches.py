"""Batches of token ids with loss weights, made by worker processes.

Worker w of a run draws from random.Random(TRAIN_SEED + w), and batches are taken from the
workers in turn, so a run's data depends only on the number of workers.
"""

import random

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from . import special_tokens as st
from .chat import MODES, Renderer, forced
from .data.mixture import DEVELOPERS, MODE_WEIGHTS, TRAIN_SEED, long_turn, short_turn

SHORT_LENGTH, LONG_LENGTHS = 512, (1024, 2048, 3072)
OTHER = 0.1  # loss weight of tokens that the model will not have to write


class Packer:
    """Conversations of at most `length` tokens, padded at the right."""

    def __init__(self, tokenizer):
        self.encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        self.renderer, self.openings = Renderer(), {}
        self.newline = self.encode("\n")

    def _opening(self, mode, developer):
        if (mode, developer) not in self.openings:
            self.openings[mode, developer] = self.encode(self.renderer.opening(mode, developer))
        return self.openings[mode, developer]

    def _turn(self, turn, mode):
        """Marks cut the text for the tokenizer, so the parts may be encoded apart."""
        turn = forced(turn, mode)
        return self.encode(self.renderer.question(turn)), self.encode(self.renderer.reply(turn, mode))

    def conversation(self, rng, length, first=None):
        """ids, weights (lists). `first`: a turn generator for the first turn; then short turns until full."""
        mode = rng.choices(MODES, MODE_WEIGHTS)[0]
        ids = list(self._opening(mode, rng.choice(DEVELOPERS)))
        weights = [OTHER] * len(ids)
        while True:
            question, reply = self._turn(first(rng) if first else short_turn(rng), mode)
            if len(ids) + len(question) + len(reply) + 1 > length:
                if first:  # a document that came out too long: try a shorter one
                    continue
                return ids, weights
            first = None
            ids += question + reply + self.newline
            weights += [OTHER] * len(question) + [1.0] * len(reply) + [OTHER]

    def batch(self, rng, rows, length, long):
        ids = np.full((rows, length + 1), st.PAD, np.int64)
        weights = np.zeros((rows, length + 1), np.float32)
        for i in range(rows):
            first = (lambda r: long_turn(r, int(length * r.uniform(0.4, 1.0)))) if long else None
            a, w = self.conversation(rng, length + 1, first)
            ids[i, : len(a)], weights[i, : len(a)] = a, w
        return torch.from_numpy(ids), torch.from_numpy(weights)


class Stream(IterableDataset):
    """Endless batches; every `long_every`-th is long. All hold about `tokens` tokens (long ones a `long_share`)."""

    def __init__(self, tokenizer_file, tokens, long_every, long_share=0.375):
        self.file, self.tokens, self.long_every, self.long_share = tokenizer_file, tokens, long_every, long_share

    def __iter__(self):
        from tokenizers import Tokenizer

        info = torch.utils.data.get_worker_info()
        worker = info.id if info else 0
        rng, packer, n = random.Random(TRAIN_SEED + worker), Packer(Tokenizer.from_file(self.file)), worker
        while True:
            n += 1
            if n % self.long_every == 0:
                length = rng.choice(LONG_LENGTHS)
                yield packer.batch(rng, max(1, int(self.tokens * self.long_share) // length), length, True)
            else:
                yield packer.batch(rng, self.tokens // SHORT_LENGTH, SHORT_LENGTH, False)


def loader(tokenizer_file, tokens, long_every, workers):
    return iter(DataLoader(Stream(tokenizer_file, tokens, long_every), batch_size=None, num_workers=workers,
                           prefetch_factor=4 if workers else None, pin_memory=torch.cuda.is_available()))
