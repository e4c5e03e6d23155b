"""`bench serve` against a server, and the log of the requests it made."""
import json
import os
import shutil
import subprocess
import tempfile
import time
import xml.etree.ElementTree

from harness import PATIENCE, BINARY, Server, ServerTest, main

WORK = tempfile.mkdtemp()
LOG = os.path.join(WORK, "requests.jsonl")


class LoadClient(ServerTest):
    FLAGS = ("--request-log", LOG, "--disable-uvicorn-access-log")

    def bench(self, *flags):
        run = subprocess.run([BINARY, "bench", "serve", "--port", str(self.server.port), *flags],
                             capture_output=True, text=True, timeout=120 * PATIENCE)
        return run.returncode, run.stdout, run.stderr

    def lines(self, least):
        for _ in range(100):
            with open(LOG) as file:
                lines = [json.loads(line) for line in file]
            if len(lines) >= least:
                return lines
            time.sleep(0.05)
        self.fail(f"{len(lines)} lines, at least {least} expected")

    def test_closed_and_open_loop_count_every_token(self):
        for loop, flags in (("closed", ("--concurrency", "4")),
                            ("open", ("--rate", "50", "--concurrency", "12"))):
            svg = os.path.join(WORK, loop + ".svg")
            code, out, err = self.bench("--requests", "12", "--prompt-tokens", "140",
                                        "--output-tokens", "9", "--json", "--svg", svg, *flags)
            self.assertEqual(code, 0, err)
            report = json.loads(out)
            self.assertEqual(report["loop"], loop)
            self.assertEqual((report["completed"], report["failed"]), (12, 0))
            self.assertEqual(report["output_tokens"], 12 * 9)
            for name in ("ttft_seconds", "itl_seconds", "tpot_seconds", "e2e_seconds"):
                p = report[name]
                self.assertGreater(p["count"], 0)
                self.assertLessEqual(p["p50"], p["p90"])
                self.assertLessEqual(p["p90"], p["p99"])
                self.assertLessEqual(p["p99"], p["max"])
            self.assertGreater(report["e2e_seconds"]["p50"], report["ttft_seconds"]["p50"])
            self.assertEqual(xml.etree.ElementTree.parse(svg).getroot().tag.split("}")[1], "svg")

    def test_failures_are_counted_and_named(self):
        code, out, err = self.bench("--requests", "3", "--served-model-name", "other", "--json")
        self.assertEqual(code, 2)
        self.assertEqual(json.loads(out)["failed"], 3)
        self.assertIn("404", json.loads(out)["errors"][0])
        self.assertIn("monolayer: error", err)
        code, out, err = self.bench("--requests", "3", "--served-model-name", "other")
        self.assertEqual((code, out), (2, ""), "no table of zeros")
        self.assertEqual(err.count("\n"), 1, err)
        run = subprocess.run([BINARY, "bench", "serve", "--port", "1"], capture_output=True,
                             text=True, timeout=60 * PATIENCE)
        self.assertEqual(run.returncode, 2)
        self.assertIn("127.0.0.1:1", run.stderr)

    def test_the_log_holds_one_line_a_request(self):
        before = len(self.lines(0))
        self.server.chat(max_tokens=7, ignore_eos=True)
        self.server.http.post("/v1/completions", headers={"x-request-id": "r\"1"},
                              json={"model": "nano", "prompt": "Hi", "max_tokens": 3, "n": 2,
                                    "ignore_eos": True})
        self.server.complete(model="other")
        with self.server.http.stream("POST", "/v1/completions", json={
                "model": "nano", "prompt": "Hi", "max_tokens": 3000, "ignore_eos": True,
                "stream": True}) as response:
            next(response.iter_lines())
        chat, two, wrong, left = self.lines(before + 4)[before:before + 4]
        self.assertEqual((chat["method"], chat["path"], chat["status"]),
                         ("POST", "/v1/chat/completions", 200))
        self.assertEqual((chat["completion_tokens"], chat["finish_reason"]), (7, "length"))
        self.assertLess(chat["first_token_seconds"], chat["seconds"])
        self.assertEqual((two["request_id"], two["completion_tokens"], two["finish_reason"]),
                         ('r"1', 6, "length,length"))
        self.assertEqual(wrong["status"], 404)
        self.assertNotIn("completion_tokens", wrong)
        self.assertEqual((left["status"], left["finish_reason"], left["stream"]),
                         (499, "abort", True))

    def test_a_request_id_is_no_counts(self):
        before = len(self.lines(0))
        with self.server.http.stream("POST", "/v1/completions", headers={
                "x-request-id": "prompt_tokens"}, json={
                "model": "nano", "prompt": "Hi", "max_tokens": 3000, "ignore_eos": True,
                "stream": True}) as response:
            next(response.iter_lines())
        left = self.lines(before + 1)[before]
        self.assertEqual((left["request_id"], left["status"]), ("prompt_tokens", 499))
        self.assertEqual((left["finish_reason"], left["stream"]), ("abort", True))
        self.assertGreater(left["prompt_tokens"], 0)


class Unwritable(ServerTest):
    @classmethod
    def setUpClass(cls):
        pass

    @classmethod
    def tearDownClass(cls):
        pass

    def test_a_log_that_cannot_be_opened_is_refused_at_start(self):
        run = subprocess.run([BINARY, "serve", "--port", "0", "--request-log", "/no/such/file"],
                             capture_output=True, text=True, timeout=60 * PATIENCE)
        self.assertEqual(run.returncode, 2)
        self.assertIn("/no/such/file", run.stderr)

    def test_a_log_that_takes_nothing_is_one_warning_and_serving_goes_on(self):
        server = Server("--request-log", "/dev/full")
        try:
            for _ in range(3):
                self.assertEqual(server.complete(max_tokens=2).status_code, 200)
                time.sleep(0.1)
        finally:
            self.assertEqual(server.stop(), 0)
        warnings = [line for line in server.log if "warning" in line]
        self.assertEqual(len(warnings), 1, server.log)
        self.assertIn("/dev/full", warnings[0])
        self.assertEqual([line for line in server.log if "error" in line], [])


if __name__ == "__main__":
    try:
        main()
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
