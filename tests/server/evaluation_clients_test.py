"""lm-eval and aiperf, as PyPI ships them, on small generated tasks.

    evaluation_clients_test.py BINARY MODEL_DIR

MODEL_DIR holds the tokenizer that lm-eval cuts its own requests with. Both run as programs of the
environment that runs this file, offline.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

from harness import ServerTest

MODEL = pathlib.Path(sys.argv.pop(2)).resolve() if len(sys.argv) > 2 else None
PROGRAMS = pathlib.Path(sys.executable).parent
SAMPLES = int(os.environ.get("EVALUATION_SAMPLES", "24"))

# A dataset of this folder; the answer is what the model says without reasoning.
CHOICES = """task: choices
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: multiple_choice
doc_to_text: prompt
doc_to_choice: answers
doc_to_target: right
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
WRITTEN = """task: written
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: generate_until
doc_to_text: question
doc_to_target: number
generation_kwargs: {until: ["<never>"], max_gen_toks: 200, do_sample: false, temperature: 0}
filter_list:
  - name: last
    filter: [{function: regex, regex_pattern: "(-?[0-9]+)", group_select: -1}, {function: take_first}]
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


def problems(count):
    rng = random.Random(20261130)
    for _ in range(count):
        first, second = rng.sample(("Tom", "Anna", "Ben", "Mia"), 2)
        thing = rng.choice(("apples", "books", "coins"))
        a, b = rng.randint(2, 40), rng.randint(2, 40)
        yield (f"{first} has {a} {thing}. {second} gives {first} {b} more {thing}. "
               f"How many {thing} does {first} have?", a + b, thing)


def run(command, folder, **more):
    env = {**os.environ, "OPENAI_API_KEY": "x", "HF_HOME": str(folder / "hf"),
           "TOKENIZERS_PARALLELISM": "false", **more}
    done = subprocess.run(command, cwd=folder, env=env, timeout=240 + 5 * SAMPLES, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        raise AssertionError(" ".join(map(str, command)) + "\n" + done.stdout[-4000:])
    return done.stdout


class EvaluationClients(ServerTest):
    FLAGS = ("--num-gpu-blocks-override", "256")

    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.scratch.name)

    def tearDown(self):
        self.scratch.cleanup()

    def lm_eval(self, kind, path, task, yaml, records, *extra):
        data = self.folder / f"{task}.jsonl"
        data.write_text("".join(json.dumps(record) + "\n" for record in records))
        (self.folder / f"{task}.yaml").write_text(yaml % data)
        run([PROGRAMS / "lm_eval", "run", "--model", kind, "--model_args",
             f"model=nano,base_url={self.server.url}{path},num_concurrent=4,max_length=2048,"
             f"tokenizer={MODEL}", "--tasks", task, "--include_path", self.folder,
             "--output_path", self.folder / "out", "--log_samples", *extra], self.folder,
            HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
        results = next((self.folder / "out").rglob("results_*.json"))
        samples = next((self.folder / "out").rglob(f"samples_{task}_*.jsonl"))
        return (json.loads(results.read_text())["results"][task],
                [json.loads(line) for line in samples.read_text().splitlines()])

    def chat_tokens(self, question):
        asked = {"model": "nano", "messages": [{"role": "user", "content": question}],
                 "chat_template_kwargs": {"thinking_mode": "disabled"}}
        return self.server.post("/tokenize", asked).json()["tokens"]

    def test_lm_eval_log_likelihoods(self):
        records = []
        for question, answer, thing in problems(SAMPLES):
            tokens = self.chat_tokens(question)
            text = self.server.post("/detokenize", {"model": "nano", "tokens": tokens}).json()
            answers = [f"The answer is {n} {thing}." for n in (answer, answer + 1, answer + 10)]
            records.append({"prompt": text["prompt"], "answers": answers, "right": 0})
        result, samples = self.lm_eval("local-completions", "/v1/completions", "choices", CHOICES,
                                       records)
        self.assertEqual(len(samples), SAMPLES)
        print(f"lm-eval local-completions: acc {result['acc,none']:.3f} of {SAMPLES}", flush=True)
        self.assertGreaterEqual(result["acc,none"], 0.75)
        # Its sums are those of our own request for the same tokens.
        sample = samples[0]
        prompt = records[0]["prompt"]
        for answer, (got, _) in zip(records[0]["answers"], sample["filtered_resps"]):
            tokens = [self.server.post("/tokenize", {"model": "nano", "prompt": text,
                                                     "add_special_tokens": False}).json()["tokens"]
                      for text in (prompt, prompt + answer)]
            echoed = self.server.complete(tokens[1], max_tokens=1, echo=True, logprobs=1).json()
            logprobs = echoed["choices"][0]["logprobs"]["token_logprobs"]
            own = sum(logprobs[len(tokens[0]):len(tokens[1])])
            self.assertAlmostEqual(float(got), own, places=3)

    def test_lm_eval_chat(self):
        records = [{"question": question, "number": str(answer)}
                   for question, answer, _ in problems(SAMPLES)]
        result, samples = self.lm_eval("local-chat-completions", "/v1/chat/completions", "written",
                                       WRITTEN, records, "--apply_chat_template")
        self.assertEqual(len(samples), SAMPLES)
        score = result["exact_match,last"]
        print(f"lm-eval local-chat-completions: exact match {score:.3f} of {SAMPLES}", flush=True)
        self.assertGreaterEqual(score, 0.75)

    def test_aiperf_profile(self):
        before = self.server.metric("vllm:generation_tokens_total")
        run([PROGRAMS / "aiperf", "profile", "--model", "nano", "--url", self.server.url,
             "--endpoint-type", "chat", "--streaming", "--tokenizer", MODEL, "--concurrency", "4",
             "--request-count", str(SAMPLES), "--synthetic-input-tokens-mean", "60",
             "--output-tokens-mean", "16", "--use-server-token-count", "--random-seed", "7",
             "--server-metrics", self.server.url + "/metrics", "--ui", "none",
             "--artifact-dir", self.folder / "aiperf"], self.folder)
        report = json.loads(next((self.folder / "aiperf").rglob("profile_export_aiperf.json"))
                            .read_text())
        self.assertEqual(int(report["request_count"]["avg"]), SAMPLES)
        counted = self.server.metric("vllm:generation_tokens_total") - before
        print(f"aiperf: {SAMPLES} requests, time to first token "
              f"{report['time_to_first_token']['p50']:.1f} ms (p50), "
              f"{report['output_token_throughput']['avg']:.1f} tokens/s", flush=True)
        self.assertGreater(counted, SAMPLES)
        scraped = next((self.folder / "aiperf").rglob("server_metrics*.json")).read_text()
        self.assertIn("vllm:generation_tokens", scraped)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v", *sys.argv[2:]])
