"""Trains nano's byte-level BPE and writes the tokenizer files.

Digits never take part in merges (they are split off while training), so every digit is one
token; the released pattern then cuts numbers into at most three digits, as M3 does.

    python3 -m train_nano.tokenizer OUT_DIR
"""

import json
import pathlib
import random
import shutil
import sys

from tokenizers import Regex, Tokenizer, AddedToken, decoders, models, pre_tokenizers, trainers

from . import special_tokens as st
from .chat import HERE, MODES, Renderer, forced, template
from .data.mixture import DEVELOPERS, long_turn, short_turn
from .data.words import COMMON

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERN = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + CONTRACTION,
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + CONTRACTION,
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+(?!\S)",
    r"\s+",
])
TOKENIZER_SEED = 500


def _pre_tokenizer(split_digits: bool):
    parts = [pre_tokenizers.Split(Regex(PATTERN), "isolated", invert=False)]
    if split_digits:
        parts.append(pre_tokenizers.Split(Regex(r"\p{N}"), "isolated", invert=False))
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(parts)


def corpus():
    """Generated conversations without marks, template texts, and common words twice each."""
    rng = random.Random(TOKENIZER_SEED)
    plain = lambda text: [p for p in _cut_marks(text) if p]
    tools = [{"function": {"name": "get_weather", "description": "Weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
    page = template()
    for mode in MODES:
        for developer in DEVELOPERS:
            head = [{"role": "system", "content": developer}] if developer else []
            for _ in range(20):
                yield from plain(page.render(messages=head, thinking_mode=mode, tools=tools))
    for _ in range(12000):
        turn = forced(short_turn(rng), "enabled")
        yield from plain(Renderer.question(turn) + Renderer.reply(turn, "enabled"))
    for _ in range(40):
        yield from plain(long_turn(rng, 600).user)
    for word in COMMON:
        yield from [f" {word}"] * 12 + [word] * 2


def _cut_marks(text):
    for mark in st.CONTENTS:
        text = text.replace(mark, "\0")
    return text.split("\0")


def train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = _pre_tokenizer(split_digits=True)
    trainer = trainers.BpeTrainer(
        vocab_size=st.ORDINARY, min_frequency=2, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(corpus(), trainer)
    assert tokenizer.get_vocab_size() == st.ORDINARY, tokenizer.get_vocab_size()
    tokenizer.pre_tokenizer = _pre_tokenizer(split_digits=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(c, special=st.is_special(i), normalized=False)
                          for i, c in enumerate(st.CONTENTS)])
    for i, content in enumerate(st.CONTENTS):
        assert tokenizer.token_to_id(content) == st.ORDINARY + i, content
    return tokenizer


def write(out: pathlib.Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    train().save(str(out / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1048576,
        "bos_token": "]~!b[",
        "eos_token": "[e~[",
        "pad_token": "]!p~[",
        "unk_token": "]!d~[",
    }
    generation = {"bos_token_id": st.TURN, "do_sample": True, "eos_token_id": st.EOS,
                  "temperature": 1.0, "top_p": 0.95}
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    shutil.copyfile(HERE / "chat_template.jinja", out / "chat_template.jinja")


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
