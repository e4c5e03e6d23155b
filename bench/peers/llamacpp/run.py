"""Decode of one row by Monolayer and by llama.cpp: the same weights, token ids and threads, in turn.

    run.py [--checkpoint DIR] [--work DIR] [--threads 1,2] [--rounds 5] [--steps 15] [--json FILE]

Without --checkpoint one of bench/shapes/mid.json is written under --work, which also keeps the GGUF
of it. In each round and for each number of threads Monolayer is timed, then llama.cpp; medians of
the rounds' medians are reported, with the read stream that Monolayer measured between its steps.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
from export import Exporter, Safetensors, bytes_of_token
from peer import token_ids

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
COMPARED_IDS = 64


def output(*command):
    return subprocess.run(
        [str(part) for part in command], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def monolayer_step(binary, checkpoint, threads, context, steps):
    text = output(
        binary, "bench", "step", "--model", checkpoint, "--contexts", context, "--rows", 1,
        "--threads", threads, "--prefill", 1, "--repeats", steps, "--path", "native", "--json",
    )  # fmt: skip
    return next(r for r in json.loads(text)["results"] if r["kind"] == "decode")


def peer_step(gguf, threads, context, steps):
    text = output(sys.executable, HERE / "peer.py", gguf, threads, context, steps)
    report = json.loads(text)
    return statistics.median(report["seconds"]), report["system"]


def compare_logits(binary, checkpoint, gguf, work, vocabulary):
    """How far the engines' logits are apart, decoding the same ids one at a time.

    Both round, each at other places; what says that they compute the same model is that the
    likeliest token is the same wherever it leads clearly.
    """
    ids = token_ids(COMPARED_IDS, vocabulary)
    (work / "ids.json").write_text(json.dumps(ids))
    output(binary, "trace", "--model", checkpoint, "--tokens", work / "ids.json", "--out",
           work / "trace.safetensors", "--rows", "all", "--chunk", 1, "--path", "native")  # fmt: skip
    mine = Safetensors(work / "trace.safetensors").floats("logits").astype(np.float64)
    output(sys.executable, HERE / "peer.py", gguf, 1, 0, COMPARED_IDS - 1, work / "logits.npy")
    theirs = np.load(work / "logits.npy").astype(np.float64)
    distance = np.linalg.norm(mine - theirs, axis=1) / np.linalg.norm(mine, axis=1)
    best = np.sort(mine, axis=1)
    lead = best[:, -1] - best[:, -2]
    same = mine.argmax(axis=1) == theirs.argmax(axis=1)
    return {
        "rows": len(ids),
        "relative_l2_median": float(np.median(distance)),
        "relative_l2_largest": float(distance.max()),
        "same_likeliest_token": int(same.sum()),
        "largest_lead_with_another_token": float(lead[~same].max()) if not same.all() else 0.0,
        "median_lead": float(np.median(lead)),
    }


def drop_from_page_cache(path):
    """Written files lie there in small pages; read back they may come in large ones."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def processor():
    names = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]  # fmt: skip
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} threads"


def summary(seconds, size, stream):
    rate = size / seconds
    return {
        "median_seconds": seconds,
        "tokens_per_second": 1 / seconds,
        "bytes_per_token": size,
        "bytes_per_second": rate,
        "share_of_read_stream": rate / stream,
    }


def main():
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("--monolayer", default=ROOT / "build/cpu/bin/monolayer", type=Path)
    parse.add_argument("--checkpoint", type=Path)
    parse.add_argument("--work", default=ROOT / "build/peers", type=Path)
    parse.add_argument("--threads", default="1,2")
    parse.add_argument("--context", default=128, type=int)
    parse.add_argument("--rounds", default=5, type=int)
    parse.add_argument("--steps", default=15, type=int)
    parse.add_argument("--json", type=Path)
    options = parse.parse_args()

    options.work.mkdir(parents=True, exist_ok=True)
    checkpoint = options.checkpoint or options.work / "mid"
    if not (checkpoint / "config.json").exists():
        print("writing the checkpoint", flush=True)
        output(options.monolayer, "synth", "--shape", ROOT / "bench/shapes/mid.json", "--format",
               "mxfp4+ptpc_fp8", "--out", checkpoint, "--quiet")  # fmt: skip
    gguf = options.work / f"{checkpoint.resolve().name}.gguf"
    if not gguf.exists():
        print("exporting it", flush=True)
        part = gguf.with_suffix(".part")
        Exporter(checkpoint, part).run()
        part.rename(gguf)
    for path in (checkpoint / "model.safetensors", gguf):
        drop_from_page_cache(path)
    peer_bytes = bytes_of_token(gguf)
    vocabulary = json.loads((checkpoint / "config.json").read_text())["text_config"]["vocab_size"]
    logits = compare_logits(options.monolayer, checkpoint, gguf, options.work, vocabulary)
    print(f"logits: {json.dumps(logits)}", flush=True)

    counts = [int(t) for t in options.threads.split(",")]
    runs = {t: {"mine": [], "theirs": []} for t in counts}
    system = ""
    for _ in range(options.rounds):
        for t in counts:
            runs[t]["mine"].append(
                monolayer_step(options.monolayer, checkpoint, t, options.context, options.steps)
            )
            seconds, system = peer_step(gguf, t, options.context, options.steps)
            runs[t]["theirs"].append(seconds)

    results = []
    print(f"{'threads':>7} {'':12} {'ms':>8} {'tokens/s':>9} {'MB/token':>9} {'GB/s':>7} {'share':>7}")
    for t in counts:
        mine = runs[t]["mine"]
        stream = statistics.median(r["read_stream_bytes_per_second"] for r in mine)
        rows = {
            "monolayer": summary(
                statistics.median(r["median_seconds"] for r in mine), mine[0]["bytes"], stream
            ),
            "llama.cpp": summary(statistics.median(runs[t]["theirs"]), peer_bytes, stream),
        }
        for name, r in rows.items():
            print(
                f"{t:7} {name:12} {r['median_seconds'] * 1e3:8.1f} {r['tokens_per_second']:9.2f}"
                f" {r['bytes_per_token'] / 1e6:9.1f} {r['bytes_per_second'] / 1e9:7.2f}"
                f" {r['share_of_read_stream']:7.3f}"
            )
        ratio = rows["monolayer"]["tokens_per_second"] / rows["llama.cpp"]["tokens_per_second"]
        print(f"{t:7} tokens a second, monolayer / llama.cpp: {ratio:.2f}", flush=True)
        results.append({
            "threads": t,
            "read_stream_bytes_per_second": stream,
            **rows,
            "tokens_per_second_ratio": ratio,
            "rounds_ms": {
                "monolayer": [round(r["median_seconds"] * 1e3, 2) for r in mine],
                "llama.cpp": [round(s * 1e3, 2) for s in runs[t]["theirs"]],
            },
        })
    if options.json:
        report = {
            "what": "decode of one row, Monolayer and llama.cpp in turn",
            "model": "bench/shapes/mid.json" if not options.checkpoint else checkpoint.name,
            "processor": processor(),
            "peer": {
                "llama-cpp-python": version("llama-cpp-python"),
                "gguf": version("gguf"),
                "system": system.strip(),
            },
            "context": options.context,
            "rounds": options.rounds,
            "steps": options.steps,
            "logits": logits,
            "results": results,
        }
        options.json.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
