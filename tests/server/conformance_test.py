"""The conformance list of the server, by number, and faults seen in other servers."""
import concurrent.futures
import json
import unittest

from harness import QUESTION, Server, ServerTest, joined, main

TOOLS = [{"type": "function", "function": {
    "name": "write_file", "description": "Writes a file",
    "parameters": {"type": "object", "properties": {
        "path": {"type": "string"}, "content": {"type": "string"}, "mode": {"type": "integer"}},
        "required": ["path"]}}}]
MARKS = ("<mm:think>", "</mm:think>", "]<]minimax[>[")


class Conformance(ServerTest):
    FLAGS = ("--num-gpu-blocks-override", "64", "--max-num-seqs", "32")

    def test_01_models_and_wrong_name(self):
        models = self.server.http.get("/v1/models").json()
        self.assertEqual(models["data"][0]["id"], "nano")
        self.assertEqual(models["data"][0]["max_model_len"], 64 * 128)
        error = self.refused(self.server.chat(model="gpt-9"), 404, "model", "gpt-9")
        self.assertEqual(error["code"], "model_not_found")
        self.assertEqual(self.server.chat(model="nano/").status_code, 200)

    def test_02_health(self):
        self.assertEqual(self.server.http.get("/health").status_code, 200)
        self.assertEqual(self.server.http.get("/ready").status_code, 200)

    def test_03_stop_as_string_and_list_over_a_token_border(self):
        full = self.server.complete("1 + 1 =", max_tokens=12, ignore_eos=True).json()
        text = full["choices"][0]["text"]
        stop = text[2:5]
        for form in (stop, ["never to be seen", stop]):
            cut = self.server.complete("1 + 1 =", max_tokens=12, ignore_eos=True, stop=form).json()
            self.assertEqual(cut["choices"][0]["text"], text[:text.index(stop)])
            self.assertEqual(cut["choices"][0]["finish_reason"], "stop")
            events = self.server.events("/v1/completions", {
                "model": "nano", "prompt": "1 + 1 =", "temperature": 0, "max_tokens": 12,
                "ignore_eos": True, "stop": form})
            streamed = "".join(e["choices"][0]["text"] for e in events if e)
            self.assertEqual(streamed, text[:text.index(stop)])

    def test_04_ignore_eos_gives_exactly_n_tokens(self):
        for n in (1, 7, 33):
            whole = self.server.chat(ignore_eos=True, max_tokens=n).json()
            self.assertEqual(whole["usage"]["completion_tokens"], n)
            self.assertEqual(whole["choices"][0]["finish_reason"], "length")
            events = self.server.chat_events(ignore_eos=True, max_tokens=n,
                                             stream_options={"include_usage": True})
            self.assertEqual(events[-2]["usage"]["completion_tokens"], n)
            self.assertEqual(joined(events)[1], "length")

    def test_05_min_tokens_holds_the_end_off(self):
        short = self.server.chat().json()
        self.assertEqual(short["choices"][0]["finish_reason"], "stop")
        least = short["usage"]["completion_tokens"] + 8
        longer = self.server.chat(min_tokens=least, max_tokens=least + 20).json()
        self.assertGreaterEqual(longer["usage"]["completion_tokens"], least)

    def test_05_a_seed_repeats_alone_and_among_32(self):
        ask = lambda seed: self.server.chat(  # noqa: E731
            temperature=5.0, seed=seed, max_tokens=12, ignore_eos=True).json()["choices"]
        alone = ask(42)
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(ask, [42 if i == 17 else i for i in range(32)]))
        self.assertEqual(answers[17], alone)
        self.assertGreater(len({json.dumps(a) for a in answers}), 4)

    def test_06_second_identical_prompt_is_a_hit(self):
        prompt = list(range(100, 500))
        first = self.server.complete(prompt, max_tokens=4, ignore_eos=True).json()
        second = self.server.complete(prompt, max_tokens=4, ignore_eos=True).json()
        self.assertEqual(second["usage"]["prompt_tokens_details"]["cached_tokens"], 384)
        self.assertEqual(first["choices"], second["choices"])
        salted = self.server.complete(prompt, max_tokens=4, ignore_eos=True, cache_salt="x").json()
        self.assertEqual(salted["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_07_token_prompt_equals_text_prompt(self):
        text = "Two and two make"
        ids = self.server.post("/tokenize", {"prompt": text}).json()["tokens"]
        self.assertEqual(self.server.post("/detokenize", {"tokens": ids}).json()["prompt"], text)
        a = self.server.complete(text).json()["choices"]
        b = self.server.complete(ids).json()["choices"]
        c = self.server.complete([ids, ids]).json()["choices"]
        self.assertEqual(a, b)
        self.assertEqual([x["text"] for x in c], [a[0]["text"]] * 2)
        self.assertEqual([x["index"] for x in c], [0, 1])

    def test_07_echo_logprobs_are_those_of_step_by_step_runs(self):
        ids = self.server.post("/tokenize", {"prompt": QUESTION}).json()["tokens"][:12]
        echoed = self.server.complete(ids, echo=True, logprobs=1, max_tokens=0).json()
        logprobs = echoed["choices"][0]["logprobs"]
        self.assertEqual(len(logprobs["tokens"]), 12)
        self.assertIsNone(logprobs["token_logprobs"][0])
        for i in range(1, 12):
            step = self.server.complete(ids[:i], logprobs=20, max_tokens=1).json()
            top = step["choices"][0]["logprobs"]["top_logprobs"][0]
            token = logprobs["tokens"][i]
            if token in top:
                self.assertAlmostEqual(top[token], logprobs["token_logprobs"][i], places=3)

    def test_08_no_marker_in_content_in_any_mode(self):
        for mode in ("enabled", "disabled", "adaptive"):
            for tools in (None, TOOLS):
                fields = {"chat_template_kwargs": {"thinking_mode": mode}}
                if tools:
                    fields["tools"] = tools
                whole = self.server.chat(**fields).json()["choices"][0]
                message, finish = joined(self.server.chat_events(**fields))
                self.assertEqual(message["content"], whole["message"]["content"] or "")
                self.assertEqual(message["reasoning_content"],
                                 whole["message"].get("reasoning_content", ""))
                self.assertEqual(finish, whole["finish_reason"])
                for mark in MARKS:
                    self.assertNotIn(mark, message["content"])
                if mode == "disabled":
                    self.assertEqual(message["reasoning_content"], "")

    def test_08_a_question_is_answered_after_reasoning(self):
        message = self.server.chat().json()["choices"][0]["message"]
        self.assertIn("19", message["content"])
        self.assertIn("19", message["reasoning_content"])

    def test_09_tool_choice_named_gives_valid_json_in_both_modes(self):
        fields = {"tools": TOOLS, "max_tokens": 30,
                  "tool_choice": {"type": "function", "function": {"name": "write_file"}}}
        whole = self.server.chat("Write a file", **fields).json()["choices"][0]
        call = whole["message"]["tool_calls"][0]["function"]
        self.assertEqual(call["name"], "write_file")
        json.loads(call["arguments"])
        message, finish = joined(self.server.chat_events("Write a file", **fields))
        self.assertEqual(message["tool_calls"][0]["arguments"], call["arguments"])
        self.assertEqual(finish, whole["finish_reason"])

    def test_09_tool_choice_none_emits_no_call(self):
        message = self.server.chat(tools=TOOLS, tool_choice="none").json()["choices"][0]["message"]
        self.assertNotIn("tool_calls", message)

    def test_09_tool_choice_required(self):
        events = self.server.chat_events("Write", tools=TOOLS, tool_choice="required",
                                         max_tokens=20)
        message, _ = joined(events)
        for call in message["tool_calls"]:
            json.loads(call["arguments"])

    def test_10_fault_F38_ferrox_124_emoji_and_cjk_stream_like_one_decode(self):
        text = "ďábelské 🙂 日本 👨‍👩‍👧"
        ids = self.server.post("/tokenize", {"prompt": text}).json()["tokens"]
        self.assertEqual(self.server.post("/detokenize", {"tokens": ids}).json()["prompt"], text)
        # One token after another, forced by bias, is what a model that says this text would give.
        events = self.server.events("/v1/completions", {
            "model": "nano", "prompt": ids, "echo": True, "temperature": 0, "max_tokens": 6,
            "ignore_eos": True})
        streamed = "".join(e["choices"][0]["text"] for e in events if e)
        self.assertTrue(streamed.startswith(text))
        whole = self.server.complete(ids, echo=True, max_tokens=6, ignore_eos=True).json()
        self.assertEqual(streamed, whole["choices"][0]["text"])

    def test_18_metrics_of_both_families_only_grow(self):
        text = self.server.http.get("/metrics").text
        for name in ("vllm:prompt_tokens_total", "vllm:prefix_cache_hits_total",
                     "vllm:kv_cache_usage_perc", "vllm:time_to_first_token_seconds_bucket",
                     "atom:kv_cache_usage_ratio", "atom:prefix_cache_full_tokens_total",
                     "vllm:request_success_total"):
            self.assertIn(name + "{", text)
        before = self.server.metric("vllm:generation_tokens_total")
        self.server.complete(max_tokens=5, ignore_eos=True)
        self.assertTrue(self.server.wait_idle())
        self.assertEqual(self.server.metric("vllm:generation_tokens_total"), before + 5)
        self.assertEqual(self.server.http.head("/metrics").status_code, 200)


class Fused(ServerTest):
    def test_18_steps_by_path(self):
        rows = ("monolayer:native_steps_by_reason_total", 'reason="rows"')
        before = [self.server.metric(f"monolayer:{path}_steps_total") for path in ("native", "fused")]
        by_rule = self.server.metric(*rows)
        self.server.complete([7] * 100, max_tokens=6, ignore_eos=True)
        self.assertTrue(self.server.wait_idle())
        after = [self.server.metric(f"monolayer:{path}_steps_total") for path in ("native", "fused")]
        self.assertEqual(after[0] - before[0], 1)  # the prompt, more than 16 rows
        self.assertEqual(after[1] - before[1], 5)
        self.assertEqual(self.server.metric(*rows) - by_rule, 1)


class TinyPool(ServerTest):
    FLAGS = ("--num-gpu-blocks-override", "10")

    def test_12_preemption_in_a_tiny_pool(self):
        prompts = [[i + 3] * 100 for i in range(10)]
        ask = lambda p: self.server.complete(  # noqa: E731
            p, max_tokens=160, ignore_eos=True).json()["choices"][0]["text"]
        with concurrent.futures.ThreadPoolExecutor(10) as pool:
            together = list(pool.map(ask, prompts))
        self.assertGreater(self.server.metric("vllm:num_preemptions_total"), 0)
        for i in (0, 4, 9):
            self.assertEqual(ask(prompts[i]), together[i])
        self.assertTrue(self.server.wait_idle())


class Paths(unittest.TestCase):
    """The same answers whatever computes them."""

    def test_13_paths_ranks_caching_and_chunks_agree(self):
        answers = []
        for flags in ((), ("--path", "mono"), ("--tensor-parallel-size", "2"),
                      ("--no-enable-prefix-caching", "--max-num-batched-tokens", "192")):
            server = Server("--num-gpu-blocks-override", "16", *flags)
            try:
                replies = [server.chat(max_tokens=20).json()["choices"][0]["message"]
                           for _ in range(2)]
                sampled = server.chat(temperature=2.0, seed=5, max_tokens=10, ignore_eos=True)
                answers.append((*replies, sampled.json()["choices"][0]["message"]))
            finally:
                self.assertEqual(server.stop(), 0)
        for other in answers[1:]:
            self.assertEqual(other, answers[0])


class Faults(ServerTest):
    FLAGS = ("--num-gpu-blocks-override", "16")

    def test_fault_E30_vllm_46042_joined_stream_equals_reply(self):
        fields = {"chat_template_kwargs": {"thinking_mode": "enabled"}}
        whole = self.server.chat(**fields).json()["choices"][0]["message"]
        message, _ = joined(self.server.chat_events(**fields))
        self.assertEqual(message["content"], whole["content"] or "")
        self.assertEqual(message["reasoning_content"], whole.get("reasoning_content", ""))

    def test_fault_E33_sglang_23071_id_and_name_come_once_and_first(self):
        turns = [{"role": "user", "content": "Write a file"}]
        for i in range(6):
            turns += [{"role": "assistant", "content": None, "tool_calls": [
                {"id": f"c{i}", "type": "function", "function": {
                    "name": "write_file", "arguments": json.dumps({"path": "a", "content": "b"})}}]},
                      {"role": "tool", "tool_call_id": f"c{i}", "content": "done"}]
        events = self.server.chat_events(messages=turns + [{"role": "user", "content": "Again"}],
                                         tools=TOOLS, tool_choice="required", max_tokens=40)
        calls = [call for e in events if e and e["choices"]
                 for call in e["choices"][0]["delta"].get("tool_calls", [])]
        self.assertTrue(calls)
        seen = set()
        for call in calls:
            if call["index"] in seen:
                self.assertFalse(call.get("id"))
                self.assertFalse(call["function"].get("name"))
                continue
            self.assertEqual(call["index"], len(seen))
            self.assertTrue(call["id"] and call["function"]["name"])
            seen.add(call["index"])
        message, _ = joined(events)
        for call in message["tool_calls"]:
            json.loads(call["arguments"])

    def test_fault_E34_llamacpp_24523_truncated_call(self):
        for n in (1, 2, 5):
            reply = self.server.chat("Write", tools=TOOLS, max_tokens=n, tool_choice={
                "type": "function", "function": {"name": "write_file"}})
            self.assertEqual(reply.status_code, 200)
            choice = reply.json()["choices"][0]
            self.assertIn(choice["finish_reason"], ("length", "tool_calls"))
            json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])
            for mark in MARKS:
                self.assertNotIn(mark, choice["message"]["content"] or "")

    def test_fault_E35_cherrystudio_16431_client_spellings(self):
        ok = [
            {"thinking": {"type": "enabled"}}, {"thinking": {"type": "disabled"}},
            {"reasoning_effort": "high"}, {"reasoning_effort": "none"},
            {"messages": [{"role": "developer", "content": "Be brief."},
                          {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
            {"messages": [{"role": "user", "content": "Hi"},
                          {"role": "assistant", "content": None, "tool_calls": [
                              {"id": "1", "type": "function",
                               "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
                          {"role": "tool", "tool_call_id": "1", "content": "done"}]},
            {"messages": [{"role": "user", "content": "Hi"},
                          {"role": "assistant", "content": None, "tool_calls": [
                              {"id": "1", "type": "function",
                               "function": {"name": "f", "arguments": "not json"}}]},
                          {"role": "user", "content": "in between"},
                          {"role": "tool", "tool_call_id": "1", "content": "done"}]},
            {"some_field_of_a_client": 1, "user": "me", "metadata": {}, "service_tier": "auto"},
            {"temperature": 0, "top_p": 1, "seed": 1234, "stop": ["a", "b", "c", "d"]},
        ]
        for fields in ok:
            reply = self.server.chat(**{"max_tokens": 2, **fields})
            self.assertEqual(reply.status_code, 200, (fields, reply.text))
        bad = [
            ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
            ({"thinking": {"type": "sometimes"}}, "thinking.type"),
            ({"reasoning_effort": "huge"}, "reasoning_effort"),
            ({"messages": [{"role": "user", "content": [
                {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}]}]},
             "messages[0].content[0].type"),
            ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
            ({"messages": [{"role": "judge", "content": "x"}]}, "messages[0].role"),
            ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
            ({"messages": []}, "messages"),
        ]
        for fields, path in bad:
            error = self.refused(self.server.chat(**fields), 400, path)
            self.assertEqual(error["param"], path)
            self.assertEqual(error["type"], "invalid_request_error")

    def test_fault_F36_llamacpp_15444_usage_chunk(self):
        for n in (1, 3):
            for path, body in (("/v1/chat/completions",
                                {"messages": [{"role": "user", "content": "Hi"}]}),
                               ("/v1/completions", {"prompt": "Hi"})):
                events = self.server.events(path, {
                    "model": "nano", "max_tokens": 3, "n": n, "ignore_eos": True,
                    "stream_options": {"include_usage": True}, **body})
                self.assertIsNone(events[-1])
                self.assertEqual(events[-2]["choices"], [])
                self.assertEqual(events[-2]["usage"]["completion_tokens"], 3 * n)
                for event in events[:-2]:
                    self.assertEqual(len(event["choices"]), 1)
                    self.assertIsNone(event["usage"])

    def test_fault_F37_sglang_3912_finish_reason_comes_once_with_an_empty_delta(self):
        events = self.server.chat_events(max_tokens=5)
        reasons = [e["choices"][0]["finish_reason"] for e in events if e]
        self.assertEqual(reasons[-1], "length")
        self.assertTrue(all(r is None for r in reasons[:-1]))
        self.assertEqual(events[-2]["choices"][0]["delta"], {})
        self.assertEqual(events[0]["choices"][0]["delta"]["role"], "assistant")

    def test_fault_F39_vllm_45636_stops(self):
        self.refused(self.server.chat(stop=""), 400, "stop", "empty")
        self.refused(self.server.chat(stop=["a", ""]), 400, "stop[1]")
        self.refused(self.server.chat(stop=["a"] * 17), 400, "stop", "at most 16")
        reply = self.server.chat(stop=["[e~["], ignore_eos=True, max_tokens=60).json()
        self.assertEqual(reply["choices"][0]["finish_reason"], "stop")

    def test_fault_F41_cve_2026_21869_no_cache_parameter_is_ignored_in_silence(self):
        for value in (-1, 0, 2**62):
            self.refused(self.server.chat(n_discard=value), 400, "n_discard")

    def test_bounds_are_named(self):
        for fields, words in [
            ({"temperature": -1}, ("temperature", "[0, 100]")),
            ({"top_p": 0}, ("top_p", "(0, 1]")),
            ({"top_k": -2}, ("top_k", "-1")),
            ({"n": 0}, ("n", "1 to 32")), ({"n": 33}, ("n", "1 to 32")),
            ({"logprobs": True, "top_logprobs": 21}, ("top_logprobs", "0 to 20")),
            ({"max_tokens": 0}, ("max_tokens", "at least 1")),
            ({"max_tokens": "5"}, ("max_tokens", "integer")),
            ({"max_tokens": 100000}, ("100000", "2048")),
            ({"logit_bias": {"99999": 1}}, ("logit_bias.99999", "2047")),
            ({"presence_penalty": 3}, ("presence_penalty", "[-2, 2]")),
            ({"stream": "yes"}, ("stream", "true or false")),
            ({"min_tokens": 50}, ("min_tokens", "max_tokens (40)")),
        ]:
            self.refused(self.server.chat(**fields), 400, *words)
        post = lambda text: self.server.http.post(  # noqa: E731
            "/v1/completions", content=text)
        self.refused(post("{"), 400, "body", "is not JSON at byte 2")
        self.refused(post('{"n": 1e999}'), 400, "body", "number overflow")
        for text in ("{", '{"n": 1e999}', '{"a": "\\ud800"}'):
            self.assertNotIn("json.exception", post(text).text)
        self.refused(post("[1]"), 400, "body", "object")
        self.refused(post("[" * 100000 + "]" * 100000), 400, "100000 levels", "64")
        self.refused(self.server.complete([]), 400, "prompt", "empty")
        self.refused(self.server.complete([1, 99999]), 400, "prompt[1]", "2047")
        self.refused(self.server.complete([1, "x"]), 400, "prompt[1]")
        self.refused(self.server.http.get("/v1/nothing"), 404, "/v1/nothing")
        self.refused(self.server.http.get("/v1/completions"), 405)

    def test_http_limits(self):
        length = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n"
        self.assertIn(b" 413 ", self.server.raw(length).split(b"\r\n")[0])
        big = "GET /health HTTP/1.1\r\nHost: x\r\nX-Big: " + "a" * 70000 + "\r\n\r\n"
        self.assertIn(b" 431 ", self.server.raw(big).split(b"\r\n")[0])
        self.assertIn(b" 400 ", self.server.raw("nonsense\r\n\r\n").split(b"\r\n")[0])
        chat = {"messages": [{"role": "user", "content": "x" * (2 << 20)}], "model": "nano"}
        self.refused(self.server.post("/v1/chat/completions", chat), 400, "context")


if __name__ == "__main__":
    main()
