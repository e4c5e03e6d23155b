"""Key-value retrieval: one line of a longer text holds the value that is asked for."""

import re

from .turn import Turn

_KEYS = """red blue green black white yellow silver golden purple orange brown pink north south east west
upper lower inner outer first second third last""".split()
_OBJECTS = """door gate safe box drawer cabinet locker room tower bridge station garden cellar vault desk
window shelf engine boat truck lamp clock""".split()
_FILLER = """The weather stays calm today.|Nobody is at the market yet.|The river is low this month.|
A train passes the town every hour.|The old road leads to the farm.|People walk along the street.|
The music stops in the evening.|It is warm inside the house.|A dog sleeps near the wall.|
The shop opens in the morning.|Some birds sit on the roof.|There is milk on the table.|
The children play outside.|The letter came too late.|The story goes on and on.""".replace("\n", "").split("|")
TOKENS_A_LINE = {False: 9.3, True: 11.9}  # of prose, and of entries, on average
_PAIRS = [f"{k} {o}" for k in _KEYS for o in _OBJECTS]


def _records(rng, count):
    keys = rng.sample(_PAIRS, min(count, len(_PAIRS)))
    return keys, [str(rng.randint(100, 9999)) for _ in keys]


def _prose(rng, lines):
    """Keys, values and the lines: between a fifth and a half of them records, the rest filler."""
    keys, values = _records(rng, max(1, int(lines * rng.uniform(0.2, 0.5))))
    text = [f"The code of the {k} is {v}." for k, v in zip(keys, values)]
    text += [rng.choice(_FILLER) for _ in range(lines - len(text))]
    rng.shuffle(text)
    return keys, values, text


def _entries(rng, lines):
    """Keys, values and the lines: one notation, a heading, nothing but records."""
    keys, values = _records(rng, lines)
    form = rng.choice(("{}: {}", "{} = {}", '"{}": {},'))
    return keys, values, ["Entries:"] + [form.format(k, v) for k, v in zip(keys, values)]


def _code(rng, key, value):
    ask = rng.choice((f"What is the code of the {key}?", f"Tell me the code of the {key}.",
                      f"Which code does the {key} have?"))
    return ask, f"The text says: the code of the {key} is {value}.", f"The code of the {key} is {value}."


def _entry(rng, key, value):
    ask = rng.choice((f"What is the value of {key}?", f"Give me the value of {key}.", f"Look up {key}."))
    return ask, f"The list says: {key} is {value}.", f"The value of {key} is {value}."


def retrieval(rng, lines: int) -> Turn:
    """A text of `lines` lines, between a fifth and a half of them records, and a question for one record."""
    keys, values, text = _prose(rng, lines)
    i = rng.randrange(len(keys))
    ask, think, answer = _code(rng, keys[i], values[i])
    sep = rng.choice(("\n", " "))
    return Turn(sep.join(text) + "\n\n" + ask, think, answer, values[i])


def needle(turn: Turn) -> int:
    """Where in `turn.user` the record stands that holds the answer."""
    key = re.search(r": (?:the code of the )?(.+) is \d+\.$", turn.think).group(1)
    return re.search(rf'{key}"?(?: is|:| =) {turn.value}\b', turn.user).start()


def document(rng, lines: int, questions: int, entries: bool) -> list[Turn]:
    """A long text in the first turn, and `questions` turns that ask for its records, in any order."""
    keys, values, text = _entries(rng, lines) if entries else _prose(rng, lines)
    sep, ask_for = ("\n", _entry) if entries else (rng.choice(("\n", " ")), _code)
    turns = []
    for n in range(questions):
        i = rng.randrange(len(keys))
        ask, think, answer = ask_for(rng, keys[i], values[i])
        turns.append(Turn(sep.join(text) + "\n\n" + ask if n == 0 else ask, think, answer, values[i]))
    return turns
