#!/usr/bin/env python3
"""Compares our tokenizer with the `tokenizers` package, ids and decoded text, on generated texts.

    python tools/tokenizer_compare.py --dump build/cpu/tests/text/text_tokenizer_dump \
        [--megabytes 20] [--seed 1] [--only NAME] [--tokenizer FILE ...]

--dump is the test binary that encodes a file of texts with our code. Exit code 0 when all is equal,
1 at the first difference (printed), 77 when `tokenizers` is not installed.
Broken UTF-8 is given to `tokenizers` as Python's errors="replace" makes it: that is our rule.
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time

try:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from tokenizers import Regex as TokenizersRegex
except ImportError:
    print("tokenizers is not installed", file=sys.stderr)
    sys.exit(77)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tokenizer_texts import Texts  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+TAIL*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
ZOO = [
    AddedToken("]!p~[", special=True, normalized=False),
    AddedToken("]~b]", special=True, normalized=False),
    AddedToken("[e~[", special=True, normalized=False),
    AddedToken("]<]minimax[>[", special=False, normalized=False),
    AddedToken("<think>", special=False, normalized=False),
    AddedToken("</think>", special=False, normalized=True),
    AddedToken("<tool_call>", special=False, normalized=False),
    AddedToken("<tool", special=False, normalized=False),
    AddedToken("<left>", special=True, normalized=False, lstrip=True),
    AddedToken("<right>", special=True, normalized=False, rstrip=True),
    AddedToken("<both>", special=False, normalized=True, lstrip=True, rstrip=True),
    AddedToken("word", special=False, normalized=False, single_word=True),
    AddedToken("éa", special=False, normalized=True, single_word=True),
    AddedToken("]<]start of image[>[", special=False, normalized=False),
    AddedToken("  ", special=False, normalized=True),
    AddedToken("日本", special=True, normalized=False, single_word=True, rstrip=True),
]


def byte_level(size, split, texts, normalizer=None, ignore_merges=False, added=ZOO, unk=None):
    """A byte-level BPE of `size` tokens trained on `texts`; `split` are pre-tokenizers."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    last = [] if split and isinstance(split[-1], pre_tokenizers.ByteLevel) else [
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split + last)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(added)
    return tokenizer.to_str()


def isolated(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(TokenizersRegex(pattern), behavior, invert)


def legacy_merges(text):
    """The same file with merges as "a b"."""
    data = json.loads(text)
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    return json.dumps(data, ensure_ascii=False)


def without_symbols(text):
    """Some byte symbols have no token: they become <unk>, fused."""
    data = json.loads(text)
    model = data["model"]
    gone = {"Ģ", "ģ", "!", "q"}
    kept = [t for t in sorted(model["vocab"], key=model["vocab"].get) if not gone & set(t)]
    model["vocab"] = {t: i for i, t in enumerate(["<unk>"] + kept)}
    model["merges"] = [m for m in model["merges"] if not gone & set(m[0] + m[1])]
    model["unk_token"], model["fuse_unk"] = "<unk>", True
    for i, token in enumerate(data["added_tokens"]):
        token["id"] = len(model["vocab"]) + i
    return json.dumps(data, ensure_ascii=False)


def byte_fallback(texts):
    """A BPE over characters, the rest as <0xNN>, with look-alikes of byte tokens that are text."""
    characters = sorted(set("".join(texts)))[:300]
    vocab = {f"<0x{b:02X}>": b for b in range(256)}
    for token in characters + ["<0x-1>", "<0xGG>", "<0x100>"]:
        vocab.setdefault(token, len(vocab))
    merges = []
    for a, b in [("t", "h"), ("th", "e"), (" ", "the"), ("i", "n"), ("o", "r"), (" ", " "), ("  ", "  ")]:
        if a in vocab and b in vocab and a + b not in vocab:
            merges.append([a, b])
            vocab[a + b] = len(vocab)
    return json.dumps({
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": len(vocab), "content": "<s>", "single_word": False, "lstrip": False,
                          "rstrip": False, "normalized": False, "special": True}],
        "normalizer": None, "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": True,
                  "ignore_merges": False, "vocab": vocab, "merges": merges}}, ensure_ascii=False)


def suites(size, extra):
    """(name, share of the text, function giving a tokenizer.json's text)."""
    texts = [t.decode("utf-8", "replace") for t in Texts(99).stream(min(4_000_000, size // 8 + 200_000))]
    big = 20_000 if size >= 10_000_000 else 3_000
    o200k = [isolated(O200K.replace("TAIL", r"[\r\n]"))]
    slash = [isolated(O200K.replace("TAIL", r"[\r\n/]"))]
    gpt2 = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    nano = os.path.join(ROOT, "assets/nano/tokenizer.json")
    files = ([nano] if os.path.exists(nano) else []) + extra
    for path in files:
        yield path, 4, lambda path=path: open(path, encoding="utf-8").read()
    yield "o200k", 3, lambda: byte_level(big, o200k, texts)
    yield "o200k-slash", 2, lambda: legacy_merges(byte_level(1000, slash, texts))
    yield "gpt2", 2, lambda: byte_level(2000, gpt2, texts)
    yield "cl100k", 2, lambda: byte_level(2000, [isolated(CL100K)], texts)
    yield "nfc", 1, lambda: byte_level(1000, o200k, texts, normalizer=normalizers.NFC())
    yield "ignore-merges", 1, lambda: byte_level(1000, slash, texts, ignore_merges=True)
    yield "unk", 1, lambda: without_symbols(byte_level(700, o200k, texts))
    yield "byte-fallback", 1, lambda: byte_fallback(texts)
    yield "digits", 0.5, lambda: byte_level(
        700, [pre_tokenizers.Digits(individual_digits=True), isolated(CL100K)], texts)
    yield "digit-runs", 0.5, lambda: byte_level(700, [pre_tokenizers.Digits(), *gpt2], texts)
    yield "lines", 0.5, lambda: byte_level(700, [isolated(r"^.{1,20}$|(?<=\d)[^\s\d]{2}"), *gpt2], texts)
    yield "words", 0.5, lambda: byte_level(700, [isolated(r"\w+|[^\w\s]+"), isolated(r"[\p{Han}\p{Hiragana}\p{Katakana}]+|(?>x+)y|\W")], texts)
    for behavior in ["removed", "merged_with_previous", "merged_with_next", "contiguous", "isolated"]:
        for invert in [False, True]:
            for pattern in [TokenizersRegex(r"\s|x*"), TokenizersRegex(r"\p{P}"), " the"]:
                split = [pre_tokenizers.Split(pattern, behavior, invert)]
                name = f"{behavior}{'-inverted' if invert else ''}-{'text' if pattern == ' the' else 'regex'}"
                yield name, 0.1, lambda split=split: byte_level(400, split, texts)


def read_records(path, count):
    data = open(path, "rb").read()
    at = 0
    for _ in range(count):
        (n,) = struct.unpack_from("<I", data, at)
        ids = struct.unpack_from(f"<{n}i", data, at + 4)
        at += 4 + 4 * n
        decoded = []
        for _ in range(2):
            (n,) = struct.unpack_from("<I", data, at)
            decoded.append(data[at + 4 : at + 4 + n])
            at += 4 + n
        yield list(ids), *decoded
    assert at == len(data), "the dump is longer than expected"


def run_dump(dump, tokenizer, mode, records, work):
    source, result = os.path.join(work, "texts"), os.path.join(work, "ids")
    with open(source, "wb") as file:
        for record in records:
            file.write(struct.pack("<I", len(record)) + record)
    subprocess.run([dump, tokenizer, mode, source, result], check=True)
    return read_records(result, len(records))


class Difference(Exception):
    pass


def check(what, text, ours, theirs):
    if ours == theirs:
        return
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    raise Difference(f"{what} differ at {at}: ours {ours[max(0, at - 3):at + 8]!r}, theirs "
                     f"{theirs[max(0, at - 3):at + 8]!r}, text of {len(text)} bytes: {text[:100]!r}")


def compare(name, source, texts, dump, work, rng):
    """Ids and decoded text of `texts`, with and without added tokens, and of random ids."""
    path = os.path.join(work, "tokenizer.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(source)
    data = json.loads(source)
    added = {t["content"] for t in data.get("added_tokens", [])}
    full = Tokenizer.from_str(source)
    data["added_tokens"] = []
    bare = Tokenizer.from_str(json.dumps(data, ensure_ascii=False))
    decoded_texts = [t.decode("utf-8", "replace") for t in texts]
    for mode, theirs in [("special", full), ("plain", bare)]:
        encodings = theirs.encode_batch(decoded_texts, add_special_tokens=False)
        their_ids = [e.ids for e in encodings]
        whole = theirs.decode_batch(their_ids, skip_special_tokens=False)
        skipped = theirs.decode_batch(their_ids, skip_special_tokens=True)
        for i, (ids, decoded, decoded_skipped) in enumerate(run_dump(dump, path, mode, texts, work)):
            check(f"{name} {mode}: ids", texts[i], ids, their_ids[i])
            check(f"{name} {mode}: decoded texts", texts[i], decoded, whole[i].encode())
            check(f"{name} {mode}: decoded texts without special tokens", texts[i], decoded_skipped,
                  skipped[i].encode())
            plain = mode == "plain" and data["normalizer"] is None and data["model"]["unk_token"] is None
            if plain and "removed" not in name and decoded != decoded_texts[i].encode():
                raise Difference(f"{name}: no round trip of {texts[i][:2000]!r}")
    size = max([*data["model"]["vocab"].values(), 0]) + len(added) + 20
    random_ids = [[rng.randrange(size) for _ in range(rng.choice([1, 2, 5, 50]))] for _ in range(2000)]
    records = [struct.pack(f"<{len(ids)}i", *ids) for ids in random_ids]
    for ids, (_, decoded, decoded_skipped) in zip(random_ids, run_dump(dump, path, "ids", records, work)):
        check(f"{name}: decoded ids", b"", decoded, full.decode(ids, skip_special_tokens=False).encode())
        check(f"{name}: decoded ids without special tokens", b"", decoded_skipped,
              full.decode(ids, skip_special_tokens=True).encode())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dump", required=True)
    parser.add_argument("--megabytes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", help="suites whose name contains this")
    parser.add_argument("--tokenizer", action="append", default=[], help="further tokenizer.json files")
    args = parser.parse_args()
    size = int(args.megabytes * 1e6)
    chosen = [s for s in suites(size, args.tokenizer) if not args.only or args.only in s[0]]
    shares = sum(share for _, share, _ in chosen)
    total = 0
    with tempfile.TemporaryDirectory() as work:
        for i, (name, share, make) in enumerate(chosen):
            start = time.time()
            source = make()
            tokens = [t["content"] for t in json.loads(source).get("added_tokens", [])]
            texts = Texts(args.seed * 1000 + i, tokens)
            batch = list(texts.stream(size * share / shares)) + list(texts.runs(20_000 if size < 10_000_000 else 100_000) if share >= 2 else [])
            batch.append("".join(chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF).encode() if share >= 2 else b"")
            try:
                compare(name, source, batch, args.dump, work, texts.rng)
            except Difference as difference:
                print(f"DIFFERENT {difference}")
                return 1
            count = sum(map(len, batch))
            total += count
            print(f"equal: {name}, {len(batch)} texts, {count / 1e6:.1f} MB, {time.time() - start:.1f} s", flush=True)
    print(f"all equal: {len(chosen)} tokenizers, {total / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
