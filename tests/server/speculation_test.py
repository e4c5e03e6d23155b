"""Serving with a draft: the same answers, the figures, and what is marked or refused."""
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest

from harness import BINARY, Server, ServerTest, joined, main

ASSETS = pathlib.Path(__file__).resolve().parents[2] / "assets"
TRAINED = ASSETS / "nano_eagle3"
WORK = tempfile.mkdtemp()


def draft():
    """The trained draft of the embedded model where it is there, else a random one."""
    if (TRAINED / "config.json").exists():
        return str(TRAINED)
    folder = os.path.join(WORK, "draft")
    if not os.path.exists(folder):
        subprocess.run([BINARY, "synth", "--draft-for", "nano", "--out", folder, "--quiet"],
                       check=True)
    return folder


def config(**more):
    return json.dumps({"method": "eagle3", "model": draft(), **more})


class Answers(ServerTest):
    FLAGS = ("--speculative-config", config(num_speculative_tokens=3))

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.plain = Server("--num-speculative-tokens", "0")

    @classmethod
    def tearDownClass(cls):
        assert cls.plain.stop() == 0
        super().tearDownClass()

    def both(self, ask):
        mine, theirs = ask(self.server), ask(self.plain)
        self.assertEqual(mine.status_code, 200, mine.text)
        a, b = mine.json(), theirs.json()
        self.assertEqual(a["choices"], b["choices"])
        for field in ("completion_tokens", "completion_tokens_details"):
            self.assertEqual(a["usage"].get(field), b["usage"].get(field))
        return a

    def test_same_answers_as_without_a_draft(self):
        for fields in ({}, {"temperature": 1.0, "seed": 7}, {"temperature": 2.0, "seed": 8, "n": 3},
                       {"logprobs": True, "top_logprobs": 3}, {"presence_penalty": 1.5},
                       {"min_tokens": 30, "max_tokens": 45}, {"logit_bias": {"17": 5}},
                       {"chat_template_kwargs": {"thinking_mode": "enabled"}}):
            self.both(lambda s: s.chat(**{"max_tokens": 40, **fields}))
        for prompt in ("Hello", list(range(100, 500)), "日本 🙂 é"):
            for _ in range(2):
                self.both(lambda s: s.complete(prompt, max_tokens=12, ignore_eos=True))

    def test_03_stop_inside_an_accepted_run(self):
        full = self.plain.complete("1 + 1 =", max_tokens=24, ignore_eos=True).json()
        text = full["choices"][0]["text"]
        for begin in range(1, 9, 2):
            stop = text[begin:begin + 3]
            cut = self.both(lambda s: s.complete("1 + 1 =", max_tokens=24, ignore_eos=True, stop=stop))
            self.assertEqual(cut["choices"][0]["text"], text[:text.index(stop)])
            self.assertEqual(cut["choices"][0]["finish_reason"], "stop")

    def test_04_exactly_n_tokens(self):
        for n in range(1, 12):
            whole = self.server.chat(ignore_eos=True, max_tokens=n).json()
            self.assertEqual(whole["usage"]["completion_tokens"], n)
            self.assertEqual(whole["choices"][0]["finish_reason"], "length")

    def test_streams_join_to_the_reply(self):
        for thinking in ("enabled", "disabled"):
            fields = {"chat_template_kwargs": {"thinking_mode": thinking}}
            whole = self.server.chat(**fields).json()["choices"][0]
            message, finish = joined(self.server.chat_events(**fields))
            self.assertEqual(message["content"] or None, whole["message"]["content"] or None)
            self.assertEqual(finish, whole["finish_reason"])

    def test_fault_C20_inferencex_1736_acceptance_by_position_is_exported_in_both_families(self):
        self.server.chat(max_tokens=30, ignore_eos=True)
        text = self.server.http.get("/metrics").text
        for name in ("vllm:spec_decode_num_drafts_total", "vllm:spec_decode_num_draft_tokens_total",
                     "vllm:spec_decode_num_accepted_tokens_total", "atom:mtp_draft_tokens_total",
                     "atom:mtp_accepted_tokens_total", "atom:mtp_acceptance_rate",
                     "atom:mtp_average_tokens_per_forward"):
            self.server.metric(name)
        for position in range(3):
            self.assertIn(f'position="{position}"', text)
        for accepted in range(4):
            self.assertIn(f'accepted_tokens="{accepted}"', text)
        stats = self.server.http.get("/debug/mtp_stats").json()
        self.assertEqual(stats["num_speculative_tokens"], 3)
        self.assertEqual(sum(stats["accepted_per_position"]), stats["accepted_tokens"])
        self.assertEqual(sum(stats["steps_by_accepted_tokens"]), stats["steps"])
        self.assertEqual(stats["failures"], 0)
        self.assertNotIn("spec_decode", self.plain.http.get("/metrics").text)

    def test_fault_C22_inferencex_2816_effective_configuration_shows_what_arrived(self):
        effective = self.server.http.get("/server_info").json()["effective"]
        self.assertEqual(effective["speculative_tokens"], 3)
        self.assertEqual(effective["draft_model"], draft())
        self.assertFalse(effective["synthetic_acceptance"])
        self.assertGreater(effective["draft_cache_bytes"], 0)

    def test_fault_C21_vllm_40756_mixed_load_with_cancels(self):
        """A shortened soak: long and short prompts with shared prefixes, a third cancelled."""
        prompts = [list(range(100, 100 + n)) for n in (40, 129, 300, 900, 1500)]
        expected = [self.plain.complete(p, max_tokens=16, ignore_eos=True).json()["choices"]
                    for p in prompts]
        end = time.monotonic() + float(os.environ.get("SOAK_SECONDS", "8"))

        def client(number):
            wrong = 0
            for turn in range(10_000):
                if time.monotonic() > end:
                    return wrong
                i = (number + turn) % len(prompts)
                body = {"model": "nano", "prompt": prompts[i], "temperature": 0, "max_tokens": 16,
                        "ignore_eos": True}
                if turn % 3 == 2:
                    with self.server.http.stream("POST", "/v1/completions",
                                                 json={**body, "stream": True}) as response:
                        next(response.iter_lines())
                    continue
                got = self.server.post("/v1/completions", body).json()
                wrong += got["choices"] != expected[i]
            return wrong

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            self.assertEqual(sum(pool.map(client, range(6))), 0)
        self.assertTrue(self.server.wait_idle())
        self.assertEqual(self.server.http.get("/debug/mtp_stats").json()["failures"], 0)


class Paths(ServerTest):
    def test_paths_ranks_caches_and_guesses_agree(self):
        def ask(server):
            try:
                return [server.chat(max_tokens=24).json()["choices"],
                        server.complete(list(range(200, 420)), max_tokens=12, temperature=1.0,
                                        seed=3, ignore_eos=True).json()["choices"]]
            finally:
                self.assertEqual(server.stop(), 0)
        for dtype in ("bf16", "fp8"):
            expected = ask(Server("--kv-cache-dtype", dtype))
            for flags in (("--path", "mono", "--num-speculative-tokens", "7"),
                          ("--tensor-parallel-size", "2", "--num-speculative-tokens", "3"),
                          ("--path", "mono", "--tensor-parallel-size", "2",
                           "--num-speculative-tokens", "2"),
                          ("--path", "mono", "--tensor-parallel-size", "2",
                           "--distributed-executor-backend", "mp",
                           "--num-speculative-tokens", "3")):
                server = Server("--kv-cache-dtype", dtype, "--method", "eagle3", "--draft-model",
                                draft(), *flags)
                self.assertEqual(ask(server), expected, flags)


class Marked(ServerTest):
    FLAGS = ("--method", "eagle3", "--draft-model", draft(), "--num-speculative-tokens", "3",
             "--spec-decode-acceptance-length", "2.78")

    def test_16_synthetic_acceptance_is_marked_and_kept_from_evaluations(self):
        answer = self.server.complete(max_tokens=200, ignore_eos=True)
        self.assertEqual(answer.json()["usage"]["completion_tokens"], 200)
        self.assertTrue(answer.headers["x-monolayer-synthetic-acceptance"].startswith("2.78"))
        self.assertIn("SYNTHETIC", "".join(self.server.log))
        effective = self.server.http.get("/server_info").json()["effective"]
        self.assertTrue(effective["synthetic_acceptance"])
        self.assertEqual(effective["rejection_sample_method"], "synthetic")
        self.assertEqual(self.server.metric("monolayer:spec_decode_synthetic"), 1)
        mean = self.server.metric("atom:mtp_average_tokens_per_forward")
        self.assertLess(abs(mean - 2.78), 0.25)
        self.refused(self.server.complete(logprobs=1), 400, "synthetic")
        self.refused(self.server.complete(echo=True, logprobs=1, max_tokens=1), 400, "synthetic")
        self.refused(self.server.chat(logprobs=True), 400, "synthetic")


class Off(ServerTest):
    """Zero tokens load nothing, whatever else is named."""
    FLAGS = ("--method", "eagle3", "--draft-model", "/no/such/draft",
             "--num-speculative-tokens", "0")

    def test_16_fault_C22_inferencex_2816_zero_loads_no_draft(self):
        effective = self.server.http.get("/server_info").json()["effective"]
        self.assertEqual(effective["speculative_tokens"], 0)
        self.assertEqual(effective["draft_cache_bytes"], 0)
        self.assertEqual(effective["draft_model"], "")
        self.assertEqual(self.server.chat().status_code, 200)


class MadeUpDrafts(unittest.TestCase):
    def test_a_draft_does_not_replace_its_target(self):
        with tempfile.TemporaryDirectory() as folder:
            target = pathlib.Path(folder) / "nano"
            shutil.copytree(ASSETS / "nano", target)
            before = (target / "config.json").read_bytes()
            run = subprocess.run([BINARY, "synth", "--quiet", "--draft-for", target, "--out", target,
                                  "--force"], capture_output=True, text=True)
            self.assertEqual(run.returncode, 2)
            self.assertIn("--out", run.stderr)
            self.assertEqual((target / "config.json").read_bytes(), before)


if __name__ == "__main__":
    try:
        main()
    finally:
        shutil.rmtree(WORK, ignore_errors=True)
