"""Held-out questions through HTTP: native and fused, with the router as stored (F32) and in BF16.

    accuracy.py BINARY MODEL_DIR QUESTIONS.jsonl [--limit N] [--json FILE] [serve's flags ...]

QUESTIONS is what `python3 -m train_nano.eval_set` writes (tools/). With the same router both paths must
give the same answers, to the character; errors, truncations and replies without content are counted.
"""
import argparse
import concurrent.futures
import json
import math
import pathlib
import shutil
import struct
import sys
import tempfile
import time

from harness import Server

AT_ONCE = 16  # rows of a fused step


def round_to_bf16(word):
    """The upper half of a float32's bits, rounded to nearest even."""
    return (word + 0x7FFF + (word >> 16 & 1)) >> 16 & 0xFFFF


def with_bf16_router(source, target):
    """A copy of a one-file checkpoint whose router weights are BF16."""
    shutil.copytree(source, target)
    data = (source / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header, out, body = json.loads(data[8:8 + size]), {}, bytearray()
    changed = 0
    tensors = [(name, entry) for name, entry in header.items() if name != "__metadata__"]
    for name, entry in sorted(tensors, key=lambda item: item[1]["data_offsets"]):
        begin, end = (8 + size + at for at in entry["data_offsets"])
        raw = data[begin:end]
        if name.endswith("block_sparse_moe.gate.weight") and entry["dtype"] == "F32":
            words = struct.unpack(f"<{len(raw) // 4}I", raw)
            raw = struct.pack(f"<{len(words)}H", *map(round_to_bf16, words))
            entry = {**entry, "dtype": "BF16"}
            changed += 1
        out[name] = {**entry, "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    if changed == 0:
        raise SystemExit(f"{source}: no router weights in F32")
    text = json.dumps(out).encode()
    text += b" " * (-len(text) % 8)
    (target / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)


def wilson(hits, trials):
    z, p = 1.959964, hits / trials
    middle = p + z * z / (2 * trials)
    half = z * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    return [round((middle + s * half) / (1 + z * z / trials), 4) for s in (-1, 1)]


def ask(server, item):
    body = {"model": "nano", "messages": item["messages"], "temperature": 0,
            "max_tokens": item["max_tokens"],
            "chat_template_kwargs": {"thinking_mode": item.get("thinking", "adaptive")}}
    reply = server.post("/v1/chat/completions", body, timeout=600)
    if reply.status_code != 200:
        return "error", reply.text
    choice = reply.json()["choices"][0]
    message = choice["message"]
    answer = [message.get("reasoning_content"), message.get("content")]
    if choice["finish_reason"] == "length":
        return "truncated", answer
    if not message.get("content"):
        return "unparsed", answer
    return ("exact" if message["content"] == item["answer"] else "wrong"), answer


def run(model, path, items, flags):
    server = Server("--model", str(model), "--served-model-name", "nano", "--path", path,
                    "--max-num-seqs", str(AT_ONCE), *flags, threads=0)
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda item: ask(server, item), items))
    seconds = time.monotonic() - begin
    fused = server.metric("monolayer:fused_steps_total") if path != "native" else 0
    if server.stop() != 0:
        raise SystemExit("the server failed: " + "".join(server.log[-5:]))
    counts = {kind: sum(got == kind for got, _ in results)
              for kind in ("exact", "wrong", "truncated", "unparsed", "error")}
    return results, {**counts, "asked": len(items), "share": round(counts["exact"] / len(items), 4),
                     "wilson_95": wilson(counts["exact"], len(items)),
                     "fused_steps": int(fused), "seconds": round(seconds, 1)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("questions", type=pathlib.Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--json")
    options, flags = parser.parse_known_args()
    items = [json.loads(line) for line in options.questions.read_text().splitlines()]
    items = [item for item in items if "answer" in item and "tools" not in item][:options.limit]
    report, bad = {}, []
    with tempfile.TemporaryDirectory() as scratch:
        routers = {"f32": options.model, "bf16": pathlib.Path(scratch) / "bf16"}
        with_bf16_router(options.model, routers["bf16"])
        for router, model in routers.items():
            answers = {}
            for path in ("native", "auto"):
                answers[path], result = run(model, path, items, flags)
                report[f"{router} router, {path}"] = result
                print(f"{router} router, {path}: {json.dumps(result)}", flush=True)
                bad += [f"{router}, {path}: {result['error']} errors"] * (result["error"] > 0)
                if path == "auto" and result["fused_steps"] == 0:
                    bad.append(f"{router}: no step was fused")
            apart = sum(a != b for a, b in zip(answers["native"], answers["auto"]))
            if apart:
                bad.append(f"{router}: {apart} answers differ between the paths")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    print("; ".join(bad) or "ok")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
