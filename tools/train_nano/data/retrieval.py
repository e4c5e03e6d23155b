"""Key-value retrieval: one line of a longer text holds the value that is asked for."""

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


def retrieval(rng, lines: int) -> Turn:
    """A text of `lines` lines, between a fifth and a half of them records, and a question for one record."""
    records = max(1, int(lines * rng.uniform(0.2, 0.5)))
    pairs = [f"{k} {o}" for k in _KEYS for o in _OBJECTS]
    keys = rng.sample(pairs, min(records, len(pairs)))
    values = [str(rng.randint(100, 9999)) for _ in keys]
    text = [f"The code of the {k} is {v}." for k, v in zip(keys, values)]
    text += [rng.choice(_FILLER) for _ in range(lines - len(text))]
    rng.shuffle(text)
    i = rng.randrange(len(keys))
    ask = rng.choice((f"What is the code of the {keys[i]}?", f"Tell me the code of the {keys[i]}.",
                      f"Which code does the {keys[i]} have?"))
    sep = rng.choice(("\n", " "))
    think = f"The text says: the code of the {keys[i]} is {values[i]}."
    return Turn(sep.join(text) + "\n\n" + ask, think, f"The code of the {keys[i]} is {values[i]}.", values[i])
