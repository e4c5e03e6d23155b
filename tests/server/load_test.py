"""Many streams at once, a part of them cancelled or reset: no wrong answer, no leak, bounded memory.

    load_test.py BINARY [--streams 256] [--seconds 300] [--seed 1] [--json FILE] [serve's flags ...]

Every prompt is first answered alone; under load each finished answer must be those very tokens, and an
answer that was cut off must be a prefix of them. The clients speak HTTP over plain sockets: a client
library would need more of the machine than the server.
"""
import argparse
import asyncio
import json
import os
import pathlib
import random
import socket
import struct
import sys
import time

from harness import Server

NAMES = ("Tom", "Anna", "Ben", "Mia", "Leo", "Ida", "Max", "Eva")
THINGS = ("apples", "books", "coins", "pens", "cards", "shells")
PART_CUT = 0.1  # of all streams: half of those close, half reset the connection


def prompts(count, rng):
    """Requests with short and long prompts, greedy and sampled with a seed."""
    made = []
    for i in range(count):
        name, other = rng.sample(NAMES, 2)
        thing = rng.choice(THINGS)
        text = (f"{name} has {rng.randint(2, 90)} {thing}. {other} gives {name} "
                f"{rng.randint(2, 90)} more {thing}. How many {thing} does {name} have?")
        if i % 8 == 7:  # beyond one block of 128 tokens
            text = "Note: " + " ".join(f"{rng.choice(NAMES)} likes {rng.choice(THINGS)}."
                                       for _ in range(40)) + " " + text
        body = {"model": "nano", "messages": [{"role": "user", "content": text}],
                "max_tokens": rng.choice((12, 24, 40)), "stream": True,
                "stream_options": {"include_usage": True}}
        body.update({"temperature": 0} if i % 2 == 0 else {"temperature": 0.8, "seed": i})
        made.append(json.dumps(body).encode())
    return made


class Cut(Exception):
    pass


async def stream(port, body, cut_after=None, reset=False, gaps=None):
    """(text, finish reason) of one chat stream; Cut with the text so far once `cut_after` chunks
    have come. `gaps` takes the seconds between chunks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    text, finish, chunks, last = "", None, 0, None
    try:
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                     b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
                     + body)
        status = await reader.readline()
        if b" 200 " not in status:
            raise AssertionError(f"{status!r} {await reader.read()!r}")
        async for line in reader:
            if not line.startswith(b"data: {"):
                if line.startswith(b"data: [DONE]"):
                    return text, finish
                continue
            choices = json.loads(line[6:])["choices"]
            if not choices:
                continue
            now = time.monotonic()
            if gaps is not None and last is not None:
                gaps.append(now - last)
            last = now
            delta = choices[0]["delta"]
            text += (delta.get("reasoning_content") or "") + "|" * bool(delta.get("tool_calls"))
            text += delta.get("content") or ""
            finish = choices[0]["finish_reason"] or finish
            chunks += 1
            if cut_after is not None and chunks >= cut_after:
                if reset:
                    sock = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raise Cut(text)
        raise AssertionError("the stream ended without [DONE]")
    finally:
        writer.close()


def resident(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


class Load:
    def __init__(self, server, bodies, options):
        self.server, self.bodies, self.options = server, bodies, options
        self.rng = random.Random(options.seed)
        self.expected = {}
        self.finished = self.cut = 0
        self.wrong, self.gaps, self.memory = [], [], []

    async def alone(self):
        for i, body in enumerate(self.bodies):
            self.expected[i] = await stream(self.server.port, body)

    async def client(self, until):
        while time.monotonic() < until:
            i = self.rng.randrange(len(self.bodies))
            cut = self.rng.randint(1, 10) if self.rng.random() < PART_CUT else None
            try:
                got = await stream(self.server.port, self.bodies[i], cut, self.rng.random() < 0.5,
                                   self.gaps)
                self.finished += 1
                if got != self.expected[i]:
                    self.wrong.append((i, self.expected[i], got))
            except Cut as so_far:
                self.cut += 1
                if not self.expected[i][0].startswith(str(so_far)):
                    self.wrong.append((i, self.expected[i], str(so_far)))
            except (AssertionError, OSError) as error:
                self.wrong.append((i, self.expected[i], repr(error)))
            if len(self.wrong) > 5:
                return

    async def watch(self, until):
        while time.monotonic() < until:
            self.memory.append(resident(self.server.process.pid))
            await asyncio.sleep(1)

    async def run(self):
        await self.alone()
        until = time.monotonic() + self.options.seconds
        await asyncio.gather(self.watch(until),
                             *(self.client(until) for _ in range(self.options.streams)))

    def report(self):
        gaps = sorted(self.gaps)
        at = lambda share: round(gaps[int(share * (len(gaps) - 1))] * 1e3, 1) if gaps else None
        # Caches and queues have their size once all streams have run for a while.
        settled = self.memory[len(self.memory) // 3:]
        growth = max(settled) / settled[0] - 1 if settled else 0
        return {"streams": self.options.streams, "seconds": self.options.seconds,
                "processors": os.cpu_count(), "finished": self.finished, "cut": self.cut,
                "wrong": len(self.wrong), "inter_token_ms_p50": at(0.5),
                "inter_token_ms_p99": at(0.99),
                "generated_tokens": self.server.metric("vllm:generation_tokens_total"),
                "resident_mib": round(settled[-1] / 2**20, 1) if settled else None,
                "resident_growth": round(growth, 4),
                "blocks_left": self.server.metric("atom:kv_cache_blocks_used")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json")
    options, flags = parser.parse_known_args()
    server = Server("--max-num-seqs", str(options.streams), *flags, threads=0)
    load = Load(server, prompts(48, random.Random(options.seed)), options)
    asyncio.run(load.run())
    idle = server.wait_idle(30)
    result = load.report()
    code = server.stop()
    print(json.dumps(result))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(result, indent=1) + "\n")
    for i, want, got in load.wrong[:3]:
        print(f"prompt {i}: {want!r} expected, {got!r} came", file=sys.stderr)
    bad = [what for what, is_bad in (
        ("wrong answers", load.wrong), ("nothing finished", load.finished == 0),
        ("nothing was cut", load.cut == 0), ("blocks or requests are left", not idle),
        ("memory grew by more than 5 %", result["resident_growth"] > 0.05),
        (f"exit code {code}", code != 0)) if is_bad]
    print("; ".join(bad) or "ok")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
