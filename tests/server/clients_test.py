"""The clients people use, as PyPI ships them."""
import json

import anthropic
import openai
from harness import PATIENCE, QUESTION, ServerTest, main

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}


class OpenAI(ServerTest):
    FLAGS = ("--num-gpu-blocks-override", "32", "--api-key", "secret")

    def setUp(self):
        self.client = openai.OpenAI(base_url=self.server.url + "/v1", api_key="secret",
                                    max_retries=0, timeout=60 * PATIENCE)

    def tearDown(self):
        self.client.close()

    def test_models(self):
        self.assertEqual([m.id for m in self.client.models.list()], ["nano"])

    def test_a_wrong_key_is_refused_but_health_is_open(self):
        with openai.OpenAI(base_url=self.server.url + "/v1", api_key="no", max_retries=0) as client:
            with self.assertRaises(openai.AuthenticationError):
                client.models.list()
        self.assertEqual(self.server.http.get("/health").status_code, 200)

    def test_chat_and_stream(self):
        ask = dict(model="nano", messages=[{"role": "user", "content": QUESTION}], temperature=0,
                   max_tokens=60)
        whole = self.client.chat.completions.create(**ask)
        self.assertIn("19", whole.choices[0].message.content)
        self.assertEqual(whole.choices[0].finish_reason, "stop")
        text, usage = "", None
        for chunk in self.client.chat.completions.create(
                **ask, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_logprobs(self):
        reply = self.client.chat.completions.create(
            model="nano", messages=[{"role": "user", "content": QUESTION}], temperature=0,
            max_tokens=4, logprobs=True, top_logprobs=3)
        entries = reply.choices[0].logprobs.content
        self.assertEqual(len(entries), 4)
        for entry in entries:
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertAlmostEqual(entry.logprob, entry.top_logprobs[0].logprob, places=5)

    def test_tools_streamed_and_whole(self):
        ask = dict(model="nano", messages=[{"role": "user", "content": "Weather in Oslo?"}],
                   tools=[WEATHER], temperature=0, max_tokens=30,
                   tool_choice={"type": "function", "function": {"name": "get_weather"}})
        call = self.client.chat.completions.create(**ask).choices[0].message.tool_calls[0]
        self.assertEqual(call.function.name, "get_weather")
        json.loads(call.function.arguments)
        with self.client.chat.completions.stream(**ask) as stream:
            final = stream.get_final_completion()
        streamed = final.choices[0].message.tool_calls[0]
        self.assertEqual(streamed.function.arguments, call.function.arguments)

    def test_completions_with_token_ids(self):
        reply = self.client.completions.create(model="nano", prompt=[[5, 6, 7], [8, 9]],
                                               max_tokens=3, temperature=0, logprobs=2)
        self.assertEqual([c.index for c in reply.choices], [0, 1])
        self.assertEqual(reply.usage.prompt_tokens, 5)

    def test_errors_are_the_clients_own(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.completions.create(model="other", prompt="x")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model="nano", prompt="x", temperature=-3)
        self.assertEqual(caught.exception.param, "temperature")


class Anthropic(ServerTest):
    FLAGS = ("--num-gpu-blocks-override", "32")

    def setUp(self):
        self.client = anthropic.Anthropic(base_url=self.server.url, api_key="any", max_retries=0,
                                          timeout=60 * PATIENCE)

    def tearDown(self):
        self.client.close()

    def test_messages_and_stream(self):
        ask = dict(model="nano", max_tokens=60, extra_body={"temperature": 0},
                   messages=[{"role": "user", "content": QUESTION}])
        whole = self.client.messages.create(**ask)
        self.assertEqual(whole.stop_reason, "end_turn")
        self.assertEqual([b.type for b in whole.content], ["thinking", "text"])
        self.assertIn("19", whole.content[1].text)
        with self.client.messages.stream(**ask) as stream:
            final = stream.get_final_message()
        self.assertEqual(final.content[1].text, whole.content[1].text)
        self.assertEqual(final.content[0].thinking, whole.content[0].thinking)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)

    def test_tools(self):
        tool = {"name": "get_weather", "description": "Weather",
                "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
        reply = self.client.messages.create(
            model="nano", max_tokens=25, tools=[tool], extra_body={"temperature": 0},
            tool_choice={"type": "tool", "name": "get_weather"},
            messages=[{"role": "user", "content": "Weather in Oslo?"}])
        call = [b for b in reply.content if b.type == "tool_use"][0]
        self.assertEqual(call.name, "get_weather")
        follow = self.client.messages.create(
            model="nano", max_tokens=5, tools=[tool],
            messages=[{"role": "user", "content": "Weather in Oslo?"},
                      {"role": "assistant", "content": [
                          {"type": "tool_use", "id": call.id, "name": call.name,
                           "input": call.input}]},
                      {"role": "user", "content": [
                          {"type": "tool_result", "tool_use_id": call.id, "content": "rain"}]}])
        self.assertEqual(follow.role, "assistant")

    def test_count_tokens(self):
        count = self.client.messages.count_tokens(
            model="nano", messages=[{"role": "user", "content": QUESTION}])
        self.assertGreater(count.input_tokens, 20)

    def test_errors(self):
        with self.assertRaises(anthropic.NotFoundError):
            self.client.messages.create(model="other", max_tokens=1,
                                        messages=[{"role": "user", "content": "x"}])
        with self.assertRaises(anthropic.BadRequestError):
            self.client.messages.create(model="nano", max_tokens=1, messages=[
                {"role": "user", "content": [{"type": "image", "source": {
                    "type": "base64", "media_type": "image/png", "data": "AAAA"}}]}])


if __name__ == "__main__":
    main()
