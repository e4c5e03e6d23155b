"""`bench serve` against servers that stall, close kept connections or never let it in."""
import json
import resource
import socket
import subprocess
import threading
import time
import unittest

from harness import PATIENCE, BINARY, main

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = {"choices": [{"text": "a"}]}
USAGE = {"choices": [], "usage": {"completion_tokens": 2, "prompt_tokens": 3}}


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(value):
    text = value if isinstance(value, str) else json.dumps(value)
    return chunk(f"data: {text}\n\n".encode())


ANSWER = HEAD + event(TOKEN) + event(TOKEN) + event(USAGE) + event("[DONE]") + chunk(b"")


class Scripted:
    """Calls `behave(connection, number)` on a thread of its own for each connection."""

    def __init__(self, behave):
        self.behave = behave
        self.connections = 0
        self.held = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(target=self._accept, daemon=True)
        self.thread.start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections += 1
            self.held.append(connection)
            threading.Thread(target=self._serve, args=(connection, self.connections),
                             daemon=True).start()

    def _serve(self, connection, number):
        try:
            self.behave(connection, number)
        except OSError:
            pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for connection in self.held:
            connection.close()


def read_request(connection):
    """Whether a whole one came."""
    got = b""
    while b"\r\n\r\n" not in got:
        piece = connection.recv(65536)
        if not piece:
            return False
        got += piece
    head, body = got.split(b"\r\n\r\n", 1)
    length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n")
                  if line.lower().startswith(b"content-length:"))
    while len(body) < length:
        piece = connection.recv(65536)
        if not piece:
            return False
        body += piece
    return True


def bench(port, *flags, prompt=3, timeout=30, **more):
    started = time.monotonic()
    run = subprocess.run([BINARY, "bench", "serve", "--port", str(port), "--json",
                          "--prompt-tokens", str(prompt), "--output-tokens", "2", *flags],
                         capture_output=True, text=True, timeout=timeout * PATIENCE, **more)
    report = json.loads(run.stdout) if run.stdout else None
    return run, report, time.monotonic() - started


class Nonsense(unittest.TestCase):
    def failing(self, *events):
        def behave(connection, number):
            if read_request(connection):
                connection.sendall(HEAD + b"".join(events) + chunk(b""))
        with Scripted(behave) as server:
            run, report, _ = bench(server.port, "--requests", "1", "--concurrency", "1")
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertEqual((report["completed"], report["failed"]), (0, 1))
        return report["errors"][0]

    def test_a_stream_without_a_choice(self):
        self.assertIn("no choice", self.failing(event("[DONE]")))

    def test_counts_that_are_none(self):
        for count in ('-5', '1e300', '"x"', 'null'):
            usage = '{"choices": [], "usage": {"completion_tokens": %s}}' % count
            self.assertIn("no counts", self.failing(event(TOKEN), event(usage), event("[DONE]")))

    def test_nobody_listens(self):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            run, _, _ = bench(unused.getsockname()[1], "--requests", "1")
        self.assertEqual(run.returncode, 2)
        self.assertNotIn("boost", run.stderr)


class Stalls(unittest.TestCase):
    LIMIT = ("--timeout", "0.5", "--requests", "3", "--concurrency", "2")

    def all_fail(self, behave, **more):
        with Scripted(behave) as server:
            run, report, seconds = bench(server.port, *self.LIMIT, **more)
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertEqual((report["completed"], report["failed"]), (0, 3))
        for error in report["errors"]:
            self.assertIn("500 ms", error)
        self.assertGreater(seconds, 0.9)  # two streams: two requests one after the other

    def test_no_answer(self):
        self.all_fail(lambda connection, number: read_request(connection))

    def test_an_answer_that_stops(self):
        def behave(connection, number):
            if read_request(connection):
                connection.sendall(HEAD + event(TOKEN))
        self.all_fail(behave)

    def test_a_request_nobody_reads(self):
        self.all_fail(lambda connection, number: None, prompt=3_000_000)

    def test_a_connection_nobody_takes(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            port = listener.getsockname()[1]
            others = [socket.socket() for _ in range(4)]  # until the queue is full
            for other in others:
                other.setblocking(False)
                other.connect_ex(("127.0.0.1", port))
            time.sleep(0.1)
            run, report, _ = bench(port, *self.LIMIT)
            for other in others:
                other.close()
        self.assertEqual(run.returncode, 2)
        self.assertIsNone(report)
        self.assertIn(f"127.0.0.1:{port}", run.stderr)
        self.assertIn("500 ms", run.stderr)

    def test_a_slow_answer_that_moves_is_no_failure(self):
        def behave(connection, number):
            while read_request(connection):
                for piece in (HEAD, event(TOKEN), event(TOKEN), event(USAGE), event("[DONE]"),
                              chunk(b"")):
                    time.sleep(0.25)
                    connection.sendall(piece)
        with Scripted(behave) as server:
            run, report, _ = bench(server.port, "--timeout", "1", "--requests", "2",
                                   "--concurrency", "1")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual((report["completed"], report["failed"]), (2, 0))
        self.assertEqual(report["output_tokens"], 4)


class KeptConnections(unittest.TestCase):
    def test_one_that_the_server_closed_meanwhile_is_replaced(self):
        def behave(connection, number):
            if read_request(connection):
                connection.sendall(ANSWER)
            connection.close()
        with Scripted(behave) as server:
            run, report, _ = bench(server.port, "--requests", "6", "--concurrency", "1")
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertEqual((report["completed"], report["failed"]), (6, 0))
            self.assertEqual(report["output_tokens"], 12)
            self.assertEqual(server.connections, 7)  # with the first look whether one is there

    def test_one_that_still_works_is_used_again(self):
        def behave(connection, number):
            while read_request(connection):
                connection.sendall(ANSWER)
        with Scripted(behave) as server:
            _, report, _ = bench(server.port, "--requests", "6", "--concurrency", "1")
            self.assertEqual(report["completed"], 6)
            self.assertEqual(server.connections, 2)

    def test_a_new_one_is_not_tried_twice(self):
        def behave(connection, number):
            read_request(connection)
            connection.close()
        with Scripted(behave) as server:
            run, report, _ = bench(server.port, "--requests", "4", "--concurrency", "1")
            self.assertEqual(run.returncode, 2)
            self.assertEqual(report["failed"], 4)
            self.assertEqual(server.connections, 5)

    def test_an_answer_that_breaks_off_is_not_asked_for_again(self):
        def behave(connection, number):
            if read_request(connection):
                connection.sendall(ANSWER)
            if read_request(connection):
                connection.sendall(HEAD[:9])
            connection.close()
        with Scripted(behave) as server:
            _, report, _ = bench(server.port, "--requests", "2", "--concurrency", "1")
            self.assertEqual((report["completed"], report["failed"]), (1, 1))
            self.assertEqual(server.connections, 2)


class Threads(unittest.TestCase):
    def test_too_many_streams_are_an_error(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_STACK, (256 << 20, resource.RLIM_INFINITY))
            resource.setrlimit(resource.RLIMIT_AS, (4 << 30, resource.RLIM_INFINITY))
        if subprocess.run([BINARY, "--version"], capture_output=True, preexec_fn=limit).returncode:
            self.skipTest("the program does not run in 4 GiB of addresses")
        with Scripted(lambda connection, number: None) as server:
            run, report, _ = bench(server.port, "--requests", "1000", "--concurrency", "1000",
                                   preexec_fn=limit)
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertIsNone(report)
        self.assertIn("--concurrency: is 1000, but only", run.stderr)


if __name__ == "__main__":
    main()
