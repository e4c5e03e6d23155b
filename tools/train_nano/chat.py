"""Conversations as token ids with loss weights, in the format of chat_template.jinja.

The template is the reference; `render` follows it for the few forms training uses, because
running it for every sample would dominate the time. `check()` compares the two.
"""

import dataclasses
import pathlib

from .data.tools import toolset
from .data.turn import Call, Turn

HERE = pathlib.Path(__file__).parent
MODES = ("adaptive", "enabled", "disabled")
NAMESPACE = "]<]minimax[>["  # precedes every element of a tool call


def environment():
    """A Jinja environment set up as transformers sets it up for chat templates."""
    import json

    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def fail(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = fail
    return env


def template():
    return environment().from_string((HERE / "chat_template.jinja").read_text())


def messages(turns, developer=None):
    out = [{"role": "system", "content": developer}] if developer else []
    for t in turns:
        out.append({"role": "user", "content": t.user})
        said = {"role": "assistant", "reasoning_content": t.think, "content": t.answer}
        out.append(said)
        if t.call:
            said["tool_calls"] = [{"function": {"name": t.call.name, "arguments": t.call.arguments}}]
            out.append({"role": "tool", "content": t.call.result})
            out.append({"role": "assistant", "reasoning_content": "", "content": t.call.reply})
    return out


class Renderer:
    """Renders conversations; keeps the constant opening of each mode."""

    def __init__(self):
        self._template = template()
        self._openings = {}

    def opening(self, mode, developer=None, offered=None):
        """`offered`: the number of a toolset (data.tools), or none."""
        key = (mode, developer, offered)
        if key not in self._openings:
            self._openings[key] = self._template.render(messages=messages([], developer), thinking_mode=mode,
                                                        tools=None if offered is None else toolset(offered))
        return self._openings[key]

    @staticmethod
    def question(turn: Turn) -> str:
        """Up to and including the start of the assistant turn, without its first mark."""
        return f"]~b]user\n{turn.user}[e~[\n]~b]ai\n"

    @staticmethod
    def reply(turn: Turn, mode: str) -> str:
        think = turn.think if mode != "disabled" else ""
        said = (f"<mm:think>{think}" if think else "") + f"</mm:think>{turn.answer}"
        if turn.call:
            arguments = "".join(f"{NAMESPACE}<{k}>{v}{NAMESPACE}</{k}>" for k, v in turn.call.arguments.items())
            said += f'{NAMESPACE}<tool_call>\n{NAMESPACE}<invoke name="{turn.call.name}">{arguments}{NAMESPACE}</invoke>\n'
            said += f"{NAMESPACE}</tool_call>"
        return said + "[e~["

    @staticmethod
    def result(call: Call) -> str:
        """What follows the reply that called, up to and including the start of the next assistant turn."""
        return f"\n]~b]tool\n<response>{call.result}</response>[e~[\n]~b]ai\n"

    @staticmethod
    def after(call: Call) -> str:
        return f"</mm:think>{call.reply}[e~["


def forced(turn: Turn, mode: str) -> Turn:
    """The turn as the mode wants it: always, never, or only with something to reason about."""
    if mode == "disabled":
        return dataclasses.replace(turn, think="")
    if mode == "enabled" and not turn.think:
        return dataclasses.replace(turn, think="Nothing to calculate.")
    return turn


def check(turns, mode, developer=None, offered=None):
    """The fast renderer equals the template on these turns."""
    r = Renderer()
    turns = [forced(t, mode) for t in turns]
    fast = r.opening(mode, developer, offered)
    for t in turns:
        fast += r.question(t) + r.reply(t, mode) + (r.result(t.call) + r.after(t.call) if t.call else "") + "\n"
    slow = r._template.render(messages=messages(turns, developer), thinking_mode=mode,
                              tools=None if offered is None else toolset(offered))
    assert fast == slow, (fast, slow)
