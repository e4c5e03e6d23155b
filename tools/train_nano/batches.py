"""Batches of token ids with loss weights, made by worker processes.

Worker w of a run draws from random.Random(TRAIN_SEED + first + w), and batches are taken from the
workers in turn, so a run's data depends only on `first` and the number of workers.
"""

import random

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from . import special_tokens as st
from .chat import MODES, Renderer, forced
from .data.mixture import DEVELOPERS, MODE_WEIGHTS, TRAIN_SEED, long_turns, offered_tools, turn_with

SHORT_LENGTH, LONG_LENGTHS = 512, (768, 1024, 1536, 2048, 3072)
OTHER = 0.1  # loss weight of tokens that the model will not have to write
TEXT = 0.01  # the same of the question that carries a long text


class Packer:
    """Conversations of at most `length` tokens, padded at the right."""

    def __init__(self, tokenizer):
        self.encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
        self.renderer, self.openings = Renderer(), {}
        self.newline = self.encode("\n")

    def _opening(self, *key):
        if key not in self.openings:
            self.openings[key] = self.encode(self.renderer.opening(*key))
        return self.openings[key]

    def _turn(self, turn, mode):
        """[(ids, whether the model writes them)]. Marks cut the text for the tokenizer: parts may be encoded apart."""
        turn, r = forced(turn, mode), self.renderer
        parts = [(r.question(turn), False), (r.reply(turn, mode), True)]
        if turn.call:
            parts += [(r.result(turn.call), False), (r.after(turn.call), True)]
        return [(self.encode(text), said) for text, said in parts] + [(self.newline, False)]

    def conversation(self, rng, length, turns=()):
        """ids, weights (lists): the given turns as far as they fit, then drawn ones until full."""
        mode = rng.choices(MODES, MODE_WEIGHTS)[0]
        offered = None if turns else offered_tools(rng)
        ids = list(self._opening(mode, rng.choice(DEVELOPERS), offered))
        if len(ids) > 0.65 * length:  # the offered tools would leave no room to call them
            return self.conversation(rng, length, turns)
        weights, other = [OTHER] * len(ids), TEXT if turns else OTHER
        todo = list(turns)
        while True:
            parts = self._turn(todo.pop(0) if todo else turn_with(rng, offered), mode)
            if len(ids) + sum(len(p) for p, _ in parts) > length:
                return ids, weights
            for part, said in parts:
                ids += part
                weights += [1.0 if said else other] * len(part)
                other = OTHER

    def document(self, rng, length):
        """A conversation about a text that takes between 45 % and 92 % of `length`."""
        while True:
            ids, weights = self.conversation(rng, length, long_turns(rng, int(length * rng.uniform(0.45, 0.92))))
            if TEXT in weights:  # else the text came out too long
                return ids, weights

    def batch(self, rng, rows, length, long):
        """One in six long rows is a chat of many short turns, the others are about a text."""
        ids = np.full((rows, length + 1), st.PAD, np.int64)
        weights = np.zeros((rows, length + 1), np.float32)
        for i in range(rows):
            make = self.document if long and rng.random() < 5 / 6 else self.conversation
            a, w = make(rng, length + 1)
            ids[i, : len(a)], weights[i, : len(a)] = a, w
        return torch.from_numpy(ids), torch.from_numpy(weights)


class Stream(IterableDataset):
    """Endless (short batch, long batch), each of `tokens` tokens; the long one's length is drawn."""

    def __init__(self, tokenizer_file, tokens, first=0):
        self.file, self.tokens, self.first = tokenizer_file, tokens, first

    def __iter__(self):
        from tokenizers import Tokenizer

        info = torch.utils.data.get_worker_info()
        rng = random.Random(TRAIN_SEED + self.first + (info.id if info else 0))
        packer = Packer(Tokenizer.from_file(self.file))
        while True:
            length = rng.choice(LONG_LENGTHS)
            yield (packer.batch(rng, max(1, self.tokens // SHORT_LENGTH), SHORT_LENGTH, False),
                   packer.batch(rng, max(1, self.tokens // length), length, True))


def loader(tokenizer_file, tokens, workers, first=0):
    return iter(DataLoader(Stream(tokenizer_file, tokens, first), batch_size=None, num_workers=workers,
                           prefetch_factor=4 if workers else None, pin_memory=torch.cuda.is_available()))
