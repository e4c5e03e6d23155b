"""A server on a free port, and small ways to talk to it."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

import httpx

BINARY = sys.argv[1] if len(sys.argv) > 1 else "build/cpu/bin/monolayer"
# How much longer than usual everything may take: sanitizers, emulators.
PATIENCE = float(os.environ.get("MONOLAYER_TEST_PATIENCE", "1"))
QUESTION = "Tom has 12 apples. Anna gives Tom 7 more apples. How many apples does Tom have?"


class Server:
    def __init__(self, *flags, threads=1, files=None):
        command = [BINARY, "serve", "--host", "127.0.0.1", "--port", "0", "--threads", str(threads),
                   "--quiet", *flags]
        self.port = None
        if files is not None:  # soft and hard limit of open files
            command = ["prlimit", f"--nofile={files}", *command]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.log = []
        self.listening = threading.Event()
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.listening.wait(30 * PATIENCE)
        self.ready.wait(60 * PATIENCE)
        if self.port is None or self.process.poll() is not None:
            self.process.kill()
            raise RuntimeError("the server did not start: " + "".join(self.log))
        self.url = f"http://127.0.0.1:{self.port}"
        self.http = httpx.Client(base_url=self.url, timeout=60 * PATIENCE)

    def _read(self):
        for line in self.process.stderr:
            self.log.append(line)
            found = re.match(r"listening on http://.*:(\d+)", line)
            if found:
                self.port = int(found.group(1))
                self.listening.set()
            if line == "ready\n":
                self.ready.set()
        self.listening.set()
        self.ready.set()

    def stop(self, bound=30):
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(bound * PATIENCE)
        self.reader.join(5)
        self.process.stderr.close()
        return code

    def post(self, path, body, **kwargs):
        return self.http.post(path, json=body, **kwargs)

    def chat(self, content=QUESTION, **fields):
        body = {"model": "nano", "messages": [{"role": "user", "content": content}],
                "temperature": 0, "max_tokens": 40, **fields}
        return self.post("/v1/chat/completions", body)

    def complete(self, prompt="Hello", **fields):
        body = {"model": "nano", "prompt": prompt, "temperature": 0, "max_tokens": 8, **fields}
        return self.post("/v1/completions", body)

    def events(self, path, body):
        """The data of a stream's events, [DONE] as None."""
        events = []
        with self.http.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.status_code == 200, response.read()
            for line in response.iter_lines():
                if line.startswith("data: "):
                    data = line[len("data: "):]
                    events.append(None if data == "[DONE]" else json.loads(data))
        return events

    def chat_events(self, content=QUESTION, **fields):
        body = {"model": "nano", "messages": [{"role": "user", "content": content}],
                "temperature": 0, "max_tokens": 40, **fields}
        return self.events("/v1/chat/completions", body)

    def metric(self, name, label=""):
        for line in self.http.get("/metrics").text.splitlines():
            if line.startswith(name + "{") and label in line:
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(name + label)

    def wait_idle(self, seconds=20):
        end = time.monotonic() + seconds * PATIENCE
        while time.monotonic() < end:
            if (self.metric("atom:kv_cache_blocks_used") == 0
                    and self.metric("vllm:num_requests_running") == 0
                    and self.metric("vllm:num_requests_waiting") == 0):
                return True
            time.sleep(0.05)
        return False

    def raw(self, text, seconds=10):
        """Bytes over a socket of their own; everything that comes back."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as s:
            s.sendall(text.encode() if isinstance(text, str) else text)
            got = b""
            try:
                while piece := s.recv(65536):
                    got += piece
            except (TimeoutError, ConnectionResetError):
                pass
            return got


def joined(events):
    """What a chat stream says, field by field, as a message would hold it."""
    message = {"reasoning_content": "", "content": "", "tool_calls": []}
    finish = None
    for event in events:
        if event is None or not event["choices"]:
            continue
        choice = event["choices"][0]
        delta = choice["delta"]
        for field in ("reasoning_content", "content"):
            message[field] += delta.get(field) or ""
        for call in delta.get("tool_calls", []):
            if call["index"] == len(message["tool_calls"]):
                message["tool_calls"].append({"id": call["id"], "name": call["function"]["name"],
                                              "arguments": ""})
            message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
        finish = choice["finish_reason"] or finish
    return message, finish


class ServerTest(unittest.TestCase):
    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.FLAGS)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, f"exit code {code}: " + "".join(cls.server.log)

    def refused(self, response, status, *words):
        self.assertEqual(response.status_code, status, response.text)
        error = response.json()["error"]
        for word in words:
            self.assertIn(word, error["message"])
        return error


def main():
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[2:]])


sys.path.insert(0, str(pathlib.Path(__file__).parent))
