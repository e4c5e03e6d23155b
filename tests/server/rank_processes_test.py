"""Tensor-parallel ranks as processes: the same answers, and the end of one is everybody's."""
import concurrent.futures
import os
import pathlib
import signal
import socket
import subprocess
import time
import unittest

import httpx
from harness import PATIENCE, BINARY, Server, main

FLAGS = ("--distributed-executor-backend", "mp")


def children(pid):
    return [int(p) for t in pathlib.Path(f"/proc/{pid}/task").iterdir()
            for p in (t / "children").read_text().split()]


def gone(pids, seconds=10):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        alive = [p for p in pids if pathlib.Path(f"/proc/{p}").exists()
                 and "Z" not in pathlib.Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1][:3]]
        if not alive:
            return True
        time.sleep(0.05)
    return False


class RankProcesses(unittest.TestCase):
    def answers(self, *flags):
        server = Server(*flags)
        ranks = children(server.process.pid)
        try:
            info = server.http.get("/server_info").json()["effective"]
            return ranks, info, [
                server.chat(max_tokens=24).json()["choices"],
                server.complete(list(range(200, 420)), max_tokens=12, temperature=1.0, seed=3,
                                ignore_eos=True).json()["choices"]]
        finally:
            self.assertEqual(server.stop(), 0)
            self.assertTrue(gone(ranks))

    def test_13_same_answers_as_one_rank(self):
        _, _, expected = self.answers()
        for size, path in (("2", "native"), ("2", "mono"), ("4", "mono")):
            ranks, info, got = self.answers("--tensor-parallel-size", size, "--path", path, *FLAGS)
            self.assertEqual(len(ranks), int(size) - 1)
            self.assertEqual(info["ranks"], "processes")
            self.assertEqual(got, expected, (size, path))

    def ended(self, server):
        code = server.process.wait(20)
        server.reader.join(5)
        server.process.stderr.close()
        server.http.close()
        self.assertEqual(code, 2)
        self.assertNotIn("destroyed without close", "".join(server.log))
        errors = [line for line in server.log if "error" in line]
        self.assertEqual(len(errors), 1, server.log)
        self.assertRegex(errors[0], r"rank \d")

    def test_02_a_killed_rank_ends_an_idle_server_with_one_line(self):
        server = Server("--tensor-parallel-size", "4", *FLAGS)
        ranks = children(server.process.pid)
        self.assertEqual(server.chat(max_tokens=3).status_code, 200)
        os.kill(ranks[1], signal.SIGKILL)
        try:
            for _ in range(50):
                if server.http.get("/health").status_code == 503:
                    break
                time.sleep(0.02)
        except httpx.HTTPError:
            pass  # it was faster
        self.ended(server)
        self.assertTrue(gone(ranks))

    def test_02_a_killed_rank_ends_running_answers(self):
        server = Server("--tensor-parallel-size", "2", "--path", "mono", *FLAGS)
        ranks = children(server.process.pid)

        def ask(_):
            try:
                return server.complete(max_tokens=3000, ignore_eos=True).status_code
            except httpx.HTTPError:
                return 0

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(ask, i) for i in range(4)]
            time.sleep(1)
            os.kill(ranks[0], signal.SIGKILL)
            for one in asked:
                self.assertIn(one.result(30), (0, 500))
        self.ended(server)
        self.assertTrue(gone(ranks))

    def test_19_term_while_a_rank_does_not_answer_is_no_sudden_end(self):
        for delay in (0.5, 10.5):  # while its answer is waited for, and while the ranks are ended
            server = Server("--tensor-parallel-size", "2", "--shutdown-timeout", "1", *FLAGS)
            ranks = children(server.process.pid)
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                os.kill(ranks[0], signal.SIGSTOP)
                body = b'{"model": "nano", "prompt": "a", "max_tokens": 3000, "stream": true}'
                client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                               str(len(body)).encode() + b"\r\n\r\n" + body)
                start = time.monotonic()
                time.sleep(delay)
                server.process.send_signal(signal.SIGTERM)
                time.sleep(1)
                server.process.send_signal(signal.SIGTERM)
                code = server.process.wait(30 * PATIENCE)
            self.assertLess(time.monotonic() - start, 30 * PATIENCE)
            server.reader.join(5)
            server.process.stderr.close()
            server.http.close()
            self.assertIn(code, (0, 2), (delay, server.log))
            self.assertLessEqual(len([l for l in server.log if "error" in l]), 1, server.log)
            self.assertTrue(gone(ranks))

    def test_19_ranks_end_with_a_killed_server(self):
        server = Server("--tensor-parallel-size", "2", *FLAGS)
        ranks = children(server.process.pid)
        server.process.kill()
        server.process.wait(10)
        server.reader.join(5)
        server.process.stderr.close()
        server.http.close()
        self.assertTrue(gone(ranks))

    def test_an_early_refusal_does_not_wait_for_ranks(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            start = time.monotonic()
            run = subprocess.run(
                [BINARY, "serve", "--host", "127.0.0.1", "--port", str(taken.getsockname()[1]),
                 "--quiet", "--threads", "1", "--tensor-parallel-size", "4", *FLAGS],
                capture_output=True, text=True, timeout=60 * PATIENCE)
            self.assertLess(time.monotonic() - start, 4)
        self.assertEqual(run.returncode, 2)
        self.assertEqual(len(run.stderr.splitlines()), 1, run.stderr)
        self.assertIn("127.0.0.1", run.stderr)


if __name__ == "__main__":
    main()
