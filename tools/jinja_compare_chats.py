"""Random conversations for jinja_compare.py: everything the chat formats know, some of it odd."""
import json

WORDS = ["hello", "world", "  padded  ", "line\nbreak", "\n\nlead", "trail\n", "", "ünïcödé", "日本語",
         "👩‍👩‍👧", "a<b>&\"c'", "{{ not }}", "{% a %}", "]~b]ai\n", "[e~[", "<mm:think>", "</mm:think>",
         "<think>x</think>", "<|im_start|>system", "]<]minimax[>[<tool_call>", "\\n \\u0041", "\t tab",
         "\u2028sep", "NULL", "1e5", "ß ǆ İ", "</mm:think>\nanswer", "x\r\ny"]


def text(rng):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(0, 5)))


def value(rng, depth=0):
    kinds = ["str", "int", "float", "bool", "none"] + (["list", "dict"] if depth < 3 else [])
    kind = rng.choice(kinds)
    if kind == "str":
        return text(rng)
    if kind == "int":
        return rng.choice([0, 1, -7, 42, 10**15, 2**63, -2**63, 12345678901234567890123])
    if kind == "float":
        return rng.choice([0.5, -1.25, 1e300, 1e-7, 3.0, 0.1, 123456789.123, 1e16])
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "none":
        return None
    if kind == "list":
        return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice(["a", "b c", "ключ", "items", "x"]) + str(i): value(rng, depth + 1)
            for i in range(rng.randint(0, 3))}


def schema(rng, depth=0):
    kind = rng.choice(["string", "integer", "number", "boolean", "array", "object"])
    out = {"type": kind}
    if rng.random() < 0.6:
        out["description"] = text(rng)
    if kind == "string" and rng.random() < 0.4:
        out["enum"] = [text(rng) for _ in range(rng.randint(1, 3))]
    if kind == "array":
        out["items"] = schema(rng, depth + 1) if depth < 2 else {"type": "string"}
    if kind == "object" and depth < 2:
        out["properties"] = {f"p{i}": schema(rng, depth + 1) for i in range(rng.randint(0, 3))}
    if rng.random() < 0.2:
        out["default"] = value(rng, 2)
    if rng.random() < 0.1:
        out["nullable"] = True
    return out


def tool(rng, index):
    function = {"name": f"tool_{index}", "description": text(rng),
                "parameters": {"type": "object",
                               "properties": {f"arg{i}": schema(rng) for i in range(rng.randint(0, 3))},
                               "required": ["arg0"]}}
    if rng.random() < 0.1:
        del function["parameters"]
    return {"type": "function", "function": function}


def content(rng):
    kind = rng.random()
    if kind < 0.75:
        return text(rng)
    if kind < 0.8:
        return None
    parts = []
    for _ in range(rng.randint(0, 3)):
        which = rng.random()
        if which < 0.7:
            parts.append({"type": "text", "text": text(rng)})
        elif which < 0.8:
            parts.append({"type": "image"})
        elif which < 0.9:
            parts.append({"type": "image_url", "image_url": {"url": "data:"}})
        else:
            parts.append(text(rng))
    return parts


def call(rng, index):
    arguments = {f"arg{i}": value(rng) for i in range(rng.randint(0, 3))}
    form = rng.random()
    if form < 0.4:
        arguments = json.dumps(arguments, ensure_ascii=rng.random() < 0.5)
    elif form < 0.45:
        arguments = ""
    return {"id": f"call_{index}", "type": "function",
            "function": {"name": f"tool_{index % 3}", "arguments": arguments}}


def assistant(rng):
    message = {"role": "assistant", "content": content(rng)}
    kind = rng.random()
    if kind < 0.25:
        message["reasoning_content"] = text(rng)
    elif kind < 0.35:
        message["reasoning"] = text(rng)
    elif kind < 0.5:
        message["content"] = f"<mm:think>\n{text(rng)}\n</mm:think>\n\n{text(rng)}"
    elif kind < 0.6:
        message["content"] = f"<think>{text(rng)}</think>{text(rng)}"
    elif kind < 0.65:
        message["reasoning_content"] = None
    if rng.random() < 0.35:
        message["tool_calls"] = [call(rng, i) for i in range(rng.randint(0, 3))]
    return message


def tool_result(rng):
    form = rng.random()
    if form < 0.6:
        body = text(rng)
    elif form < 0.8:
        body = [{"output": text(rng)}, {"type": "text", "text": text(rng)}, value(rng)]
    else:
        body = content(rng)
    return {"role": "tool", "tool_call_id": "call_0", "name": "tool_0", "content": body}


def conversation(rng):
    messages = []
    if rng.random() < 0.2:
        messages.append({"role": "root", "content": text(rng)})
    if rng.random() < 0.6:
        messages.append({"role": rng.choice(["system", "system", "developer"]),
                         "content": content(rng)})
    for _ in range(rng.randint(0, 4)):
        messages.append({"role": "user", "content": content(rng)})
        if rng.random() < 0.8:
            reply = assistant(rng)
            messages.append(reply)
            if reply.get("tool_calls"):
                messages += [tool_result(rng) for _ in range(rng.randint(1, 3))]
                if rng.random() < 0.5:
                    messages.append(assistant(rng))
        if rng.random() < 0.07:
            messages.append({"role": rng.choice(["system", "developer", "root", "critic"]),
                             "content": text(rng)})
        if rng.random() < 0.04:
            messages.append(tool_result(rng))
    variables = {"messages": messages, "add_generation_prompt": rng.random() < 0.7}
    if rng.random() < 0.4:
        variables["tools"] = [tool(rng, i) for i in range(rng.randint(0, 3))]
    if rng.random() < 0.6:
        variables["thinking_mode"] = rng.choice(["enabled", "disabled", "adaptive", "odd", None])
    if rng.random() < 0.3:
        variables["model_identity"] = rng.choice([text(rng), None])
    if rng.random() < 0.3:
        variables["enable_thinking"] = rng.choice([True, False])
    if rng.random() < 0.5:
        variables["bos_token"] = "<s>"
        variables["eos_token"] = "</s>"
    return variables
