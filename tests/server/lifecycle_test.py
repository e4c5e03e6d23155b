"""Clients that go away, and the end of the server."""
import concurrent.futures
import json
import os
import pathlib
import resource
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
import unittest

from harness import BINARY, PATIENCE, Server, ServerTest, main


def holds(server, connections):
    """Whether the server comes to hold that many: connecting does not wait for it to accept."""
    end = time.monotonic() + 20 * PATIENCE
    while server.metric("monolayer:http_connections") < connections and time.monotonic() < end:
        time.sleep(0.05)
    return server.metric("monolayer:http_connections") >= connections


def request(body, path="/v1/completions"):
    data = json.dumps({"model": "nano", "ignore_eos": True, **body}).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n").encode() + data


def leave(port, data, seconds, reset):
    s = socket.create_connection(("127.0.0.1", port))
    s.sendall(data)
    time.sleep(seconds)
    if reset:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


class Gone(ServerTest):
    FLAGS = ("--num-gpu-blocks-override", "64", "--max-num-seqs", "8")

    def test_11_fault_F40_rapidmlx_1759_clients_that_leave_free_their_blocks(self):
        long_prompt = list(range(10, 1500))
        threads = []
        for i in range(40):
            body = {"prompt": long_prompt if i % 5 == 0 else [i + 5] * 40, "max_tokens": 4000,
                    "stream": i % 2 == 0}
            delay = (0, 0.001, 0.05, 0.5)[i % 4]
            threads.append(threading.Thread(
                target=leave, args=(self.server.port, request(body), delay, i % 3 == 0)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertTrue(self.server.wait_idle(), "blocks or slots are still held")
        reply = self.server.complete(max_tokens=3)
        self.assertEqual(reply.status_code, 200)
        self.assertEqual(self.server.http.get("/health").status_code, 200)

    def test_20_idle_connections_and_a_slow_reader_do_not_slow_others(self):
        # As many as the limit of this process allows.
        own = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (own[1], own[1]))
        count = 4096 if own[1] == resource.RLIM_INFINITY else min(4096, own[1] - 512)
        idle = [socket.create_connection(("127.0.0.1", self.server.port)) for _ in range(count)]
        self.assertTrue(holds(self.server, count))
        slow = socket.create_connection(("127.0.0.1", self.server.port))
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall(request({"prompt": "a", "max_tokens": 2000, "stream": True}))
        start = time.monotonic()
        for _ in range(5):
            self.assertEqual(self.server.complete(max_tokens=5).status_code, 200)
        self.assertLess(time.monotonic() - start, 30)
        slow.close()
        for each in idle:
            each.close()
        self.assertTrue(self.server.wait_idle())

    def test_requests_that_come_early_are_answered_in_order(self):
        get = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=10) as s:
            s.sendall(request({"prompt": "a", "max_tokens": 3}) + get)
            got = b""
            while got.count(b"HTTP/1.1 200") < 2:
                piece = s.recv(65536)
                self.assertTrue(piece)
                got += piece
        self.assertLess(got.index(b"text_completion"), got.index(b'"version"'))


class FewFiles(unittest.TestCase):
    def test_20_a_connection_too_many_is_closed_and_the_others_are_served(self):
        server = Server(files="300:300")
        idle = []
        try:
            for _ in range(400):
                idle.append(socket.create_connection(("127.0.0.1", server.port)))
            for each in idle:
                each.settimeout(10 * PATIENCE)
            closed = sum(each.recv(1) == b"" for each in idle[250:])
            self.assertEqual(closed, 150)
            for each in idle[1:]:
                each.close()
            self.assertEqual(server.complete(max_tokens=3).status_code, 200)
            idle[0].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            self.assertIn(b"200", idle[0].recv(100))
        finally:
            for each in idle:
                each.close()
            self.assertEqual(server.stop(), 0)


    def test_20_a_small_soft_limit_is_raised(self):
        server = Server(files="300:2000")
        try:
            idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(600)]
            self.assertTrue(holds(server, 600))
            for each in idle:
                each.close()
        finally:
            self.assertEqual(server.stop(), 0)


class Changed(unittest.TestCase):
    def test_a_model_file_cut_while_serving_is_an_error_not_zeros(self):
        source = pathlib.Path(__file__).resolve().parents[2] / "assets" / "nano"
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "nano"
            shutil.copytree(source, copy)
            server = Server("--model", str(copy), "--served-model-name", "nano")
            try:
                self.assertEqual(server.complete(max_tokens=3).status_code, 200)
                weights = copy / "model.safetensors"
                os.truncate(weights, weights.stat().st_size - 1)
                reply = server.complete(max_tokens=3)
                self.assertGreaterEqual(reply.status_code, 500)
                self.assertIn("model.safetensors", reply.text)
            finally:
                server.stop()


class End(unittest.TestCase):
    def test_19_term_under_load_answers_what_runs_and_leaves(self):
        server = Server("--num-gpu-blocks-override", "32", "--shutdown-timeout", "20")
        results = []

        def ask():
            results.append(server.complete([7] * 50, max_tokens=60, ignore_eos=True).json())

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        while server.metric("vllm:num_requests_running") < 1:
            time.sleep(0.01)
        server.process.terminate()
        time.sleep(0.1)
        for thread in threads:
            thread.join()
        for result in results:
            if "error" not in result:
                self.assertEqual(result["usage"]["completion_tokens"], 60)
        self.assertTrue(any("error" not in result for result in results))
        self.assertEqual(server.stop(), 0)

    def test_19_the_rest_is_aborted_when_the_grace_is_over(self):
        server = Server("--num-gpu-blocks-override", "64", "--shutdown-timeout", "0")
        result = {}

        def ask():
            result.update(server.complete([7] * 50, max_tokens=8000, ignore_eos=True).json())

        thread = threading.Thread(target=ask)
        thread.start()
        while server.metric("vllm:num_requests_running") < 1:
            time.sleep(0.01)
        start = time.monotonic()
        server.process.terminate()
        thread.join()
        self.assertEqual(result["choices"][0]["finish_reason"], "abort")
        self.assertEqual(server.stop(), 0)
        self.assertLess(time.monotonic() - start, 20)


NANO = pathlib.Path(__file__).resolve().parents[2] / "assets" / "nano"


class Start(unittest.TestCase):
    def run_with(self, change, *flags):
        """What serve says on a changed copy of the embedded model that it refuses."""
        with tempfile.TemporaryDirectory() as scratch:
            model = pathlib.Path(scratch) / "model"
            shutil.copytree(NANO, model)
            change(model)
            return subprocess.run(
                [BINARY, "serve", "--model", str(model), "--port", "0", "--threads", "1", "--quiet",
                 *flags], capture_output=True, text=True, timeout=60 * PATIENCE)

    def test_ready_within_three_seconds(self):
        tries = []
        for _ in range(3):  # other work may take the processors meanwhile
            start = time.monotonic()
            server = Server()
            tries.append(time.monotonic() - start)
            status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
            resident = int(status.split("VmRSS:")[1].split()[0]) // 1024
            self.assertEqual(server.stop(), 0)
            if tries[-1] < 3 * PATIENCE:
                break
        print(f"ready after {tries[-1]:.2f} s, {resident} MiB resident")
        self.assertLess(min(tries), 3 * PATIENCE)

    def test_weights_that_do_not_load_are_one_line(self):
        def rename(model):
            file = model / "model.safetensors"
            data = file.read_bytes()
            end = 8 + int.from_bytes(data[:8], "little")
            self.assertIn(b'model.norm.weight"', data[:end])
            file.write_bytes(data[:end].replace(b'model.norm.weight"', b'model.morn.weight"') +
                             data[end:])

        run = self.run_with(rename)
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertEqual(len(run.stderr.splitlines()), 1, run.stderr)
        self.assertIn("model.norm.weight", run.stderr)

    def test_more_blocks_than_the_longest_context_are_cut_and_said_so(self):
        server = Server("--num-gpu-blocks-override", "100000000", "--kv-cache-dtype", "fp8")
        try:
            blocks = server.http.get("/server_info").json()["effective"]["num_gpu_blocks"]
            self.assertLess(blocks, 100000000)
        finally:
            self.assertEqual(server.stop(), 0)
        said = [line for line in server.log if "--num-gpu-blocks-override" in line
                and "configuration" not in line]
        self.assertEqual(len(said), 1, server.log)
        self.assertIn(str(blocks), said[0])

    def test_a_chat_template_that_writes_nothing_is_named(self):
        with tempfile.TemporaryDirectory() as scratch:
            model = pathlib.Path(scratch) / "model"
            shutil.copytree(NANO, model)
            (model / "chat_template.jinja").write_text("")
            server = Server("--model", str(model), "--served-model-name", "nano")
            try:
                reply = server.chat()
                self.assertEqual(reply.status_code, 400)
                self.assertIn("chat template writes nothing", reply.json()["error"]["message"])
                self.assertEqual(server.complete().status_code, 200)
            finally:
                self.assertEqual(server.stop(), 0)


class Overload(unittest.TestCase):
    def test_a_full_queue_is_503_and_says_when_to_come_again(self):
        server = Server("--max-num-seqs", "1", "--max-num-waiting", "2")
        try:
            def ask(_):
                return server.complete(max_tokens=200, ignore_eos=True)
            with concurrent.futures.ThreadPoolExecutor(12) as pool:
                replies = list(pool.map(ask, range(12)))
            served = [r for r in replies if r.status_code == 200]
            refused = [r for r in replies if r.status_code == 503]
            self.assertEqual(len(served) + len(refused), 12)
            self.assertGreaterEqual(len(served), 2)
            self.assertTrue(refused)
            for reply in refused:
                self.assertGreater(int(reply.headers["Retry-After"]), 0)
                self.assertIn("at most 2", reply.json()["error"]["message"])
            for reply in served:
                self.assertEqual(reply.json()["usage"]["completion_tokens"], 200)
            self.assertEqual(server.complete().status_code, 200)
        finally:
            self.assertEqual(server.stop(), 0)


class ChangedModel(unittest.TestCase):
    def test_02_a_model_file_that_changes_ends_readiness(self):
        with tempfile.TemporaryDirectory() as scratch:
            model = pathlib.Path(scratch) / "model"
            shutil.copytree(pathlib.Path(__file__).resolve().parents[2] / "assets/nano", model)
            server = Server("--model", str(model), "--served-model-name", "nano")
            try:
                self.assertEqual(server.complete().status_code, 200)
                os.utime(model / "model.safetensors")
                self.assertEqual(server.complete().status_code, 500)
                for path in ("/health", "/ready"):
                    self.assertEqual(server.http.get(path).status_code, 503)
                self.assertEqual(server.complete().status_code, 503)
            finally:
                self.assertEqual(server.stop(), 0)
            said = [line for line in server.log if "error" in line]
            self.assertEqual(len(said), 1, said)
            self.assertIn("model.safetensors", said[0])


if __name__ == "__main__":
    main()
