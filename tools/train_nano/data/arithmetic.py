"""Short arithmetic word problems: question, steps, answer sentence.

Each kind is one function of (rng) and is drawn with its weight. A step is an equation
such as `12 + 30 = 42`; the reasoning is a few words and the steps in order.
"""

from .turn import Turn
from .words import CONTAINERS, NAMES, SHOPS, THINGS, VEHICLES


def _number(rng, low=2, high=None):
    """Mostly two digits, sometimes one or three; `high` narrows the range."""
    top = high or rng.choices((20, 100, 1000), (3, 5, 2))[0]
    return rng.randint(low, top - 1 if not high else high)


def _names(rng, count):
    return rng.sample(NAMES, count)


def _count(n, thing):
    return f"{n} {thing[1] if n == 1 else thing[0]}"


def _problem(rng, forms, steps, answer, value):
    lead = rng.choice(("", "", "Step by step: ", "Compute: "))
    return Turn(rng.choice(forms), lead + "".join(s + ". " for s in steps).rstrip(), answer, str(value))


def gain(rng):
    (who,), thing, a, b = _names(rng, 1), rng.choice(THINGS), _number(rng), _number(rng)
    giver = rng.choice(NAMES)
    t = thing[0]
    forms = (
        f"{who} has {a} {t} and gets {b} more. How many {t} does {who} have now?",
        f"{who} has {a} {t}. {giver} gives {who} {b} more {t}. How many {t} does {who} have?",
        f"There are {a} {t} on the table. {who} puts {b} more there. How many {t} are on the table?",
        f"{who} found {a} {t} in the morning and {b} in the evening. How many {t} did {who} find in total?",
        f"{who} buys {a} {t} on Monday and {b} {t} on Tuesday. How many {t} is that together?",
    )
    return _problem(rng, forms, [f"{a} + {b} = {a + b}"], f"The answer is {_count(a + b, thing)}.", a + b)


def loss(rng):
    (who, other), thing = _names(rng, 2), rng.choice(THINGS)
    a = _number(rng, 4)
    b = rng.randint(1, a - 1)
    t = thing[0]
    forms = (
        f"{who} has {a} {t} and gives {b} to {other}. How many {t} does {who} have left?",
        f"{who} had {a} {t} but lost {b} of them. How many {t} are left?",
        f"A {rng.choice(SHOPS)} has {a} {t} and sells {b}. How many {t} remain?",
        f"There are {a} {t} in a {rng.choice(CONTAINERS)[1]}. {who} takes out {b}. How many {t} stay inside?",
        f"{who} needs {a} {t} and already has {b}. How many more {t} does {who} need?",
    )
    return _problem(rng, forms, [f"{a} - {b} = {a - b}"], f"The answer is {_count(a - b, thing)}.", a - b)


def groups(rng):
    (who,), thing, box = _names(rng, 1), rng.choice(THINGS), rng.choice(CONTAINERS)
    a, b = rng.randint(2, 12), _number(rng, 2, rng.choice((12, 12, 30, 60)))
    t = thing[0]
    forms = (
        f"{who} has {a} {box[0]} with {b} {t} in each. How many {t} does {who} have?",
        f"There are {a} {box[0]}. Each {box[1]} holds {b} {t}. How many {t} are there in total?",
        f"A {box[1]} holds {b} {t}. How many {t} do {a} {box[0]} hold?",
        f"{who} makes {b} {t} every day. How many {t} does {who} make in {a} days?",
    )
    return _problem(rng, forms, [f"{a} * {b} = {a * b}"], f"The answer is {_count(a * b, thing)}.", a * b)


def share(rng):
    (who,), thing, box = _names(rng, 1), rng.choice(THINGS), rng.choice(CONTAINERS)
    b, q = rng.randint(2, 12), _number(rng, 2, rng.choice((12, 12, 40)))
    a, t = b * q, thing[0]
    forms = (
        f"{who} shares {a} {t} equally among {b} friends. How many {t} does each friend get?",
        f"{a} {t} are packed into {b} {box[0]}, the same number in each. How many {t} are in one {box[1]}?",
        f"{who} puts {a} {t} into {box[0]} of {b}. How many {box[0]} are needed?",
        f"{b} children split {a} {t} evenly. How many {t} does each child get?",
    )
    unit = box if "are needed" in (q_text := rng.choice(forms)) else thing
    return _problem(rng, (q_text,), [f"{a} / {b} = {q}"], f"The answer is {_count(q, unit)}.", q)


def gain_loss(rng):
    (who, other), thing = _names(rng, 2), rng.choice(THINGS)
    a, b = _number(rng), _number(rng)
    s = a + b
    c, t = rng.randint(1, s - 1), thing[0]
    forms = (
        f"{who} has {a} {t}, gets {b} more and then gives {c} to {other}. How many {t} does {who} have now?",
        f"A {rng.choice(SHOPS)} has {a} {t}. It receives {b} more and sells {c}. How many {t} are left?",
        f"{who} picks {a} {t}, {other} picks {b} {t}, and together they eat {c}. How many {t} are left?",
    )
    steps = [f"{a} + {b} = {s}", f"{s} - {c} = {s - c}"]
    return _problem(rng, forms, steps, f"The answer is {_count(s - c, thing)}.", s - c)


def groups_change(rng):
    (who, other), thing, box = _names(rng, 2), rng.choice(THINGS), rng.choice(CONTAINERS)
    a, b, t = rng.randint(2, 12), rng.randint(2, 20), thing[0]
    p = a * b
    if rng.random() < 0.5:
        c = rng.randint(1, p - 1)
        r, step = p - c, f"{p} - {c} = {p - c}"
        forms = (
            f"{who} has {a} {box[0]} of {b} {t} and gives away {c} {t}. How many {t} are left?",
            f"There are {a} {box[0]} with {b} {t} each. {other} takes {c}. How many {t} remain?",
        )
    else:
        c = _number(rng)
        r, step = p + c, f"{p} + {c} = {p + c}"
        forms = (
            f"{who} has {a} {box[0]} of {b} {t} and {c} loose {t}. How many {t} does {who} have?",
            f"There are {a} {box[0]} with {b} {t} each. {other} adds {c} {t}. How many {t} are there now?",
        )
    return _problem(rng, forms, [f"{a} * {b} = {p}", step], f"The answer is {_count(r, thing)}.", r)


def compare(rng):
    (who, other), thing, a = _names(rng, 2), rng.choice(THINGS), _number(rng, 4)
    t = thing[0]
    if rng.random() < 0.5:
        d = _number(rng)
        b, word, step = a + d, "more", f"{a} + {d} = {a + d}"
    else:
        d = rng.randint(1, a - 1)
        b, word, step = a - d, "fewer", f"{a} - {d} = {a - d}"
    ask, steps, r = (f"How many {t} does {other} have?", [step], b)
    if rng.random() < 0.4:
        ask, r = f"How many {t} do they have together?", a + b
        steps = [step, f"{a} + {b} = {r}"]
    forms = (
        f"{who} has {a} {t}. {other} has {d} {word} {t} than {who}. {ask}",
        f"{other} has {d} {word} {t} than {who}, who has {a}. {ask}",
    )
    return _problem(rng, forms, steps, f"The answer is {_count(r, thing)}.", r)


def money(rng):
    (who,), thing = _names(rng, 1), rng.choice(THINGS)
    n, price = rng.randint(2, 12), rng.randint(2, 20)
    cost, one = n * price, thing[1]
    article = "an" if one[0] in "aeiou" else "a"
    if rng.random() < 0.5:
        forms = (
            f"One {one} costs {price} dollars. How much do {n} {thing[0]} cost?",
            f"{who} buys {n} {thing[0]} for {price} dollars each. How much does {who} pay?",
        )
        return _problem(rng, forms, [f"{n} * {price} = {cost}"], f"The answer is {cost} dollars.", cost)
    paid = cost + _number(rng, 1, 60)
    forms = (
        f"{who} has {paid} dollars and buys {n} {thing[0]} for {price} dollars each. How much money is left?",
        f"{article.capitalize()} {one} costs {price} dollars. {who} buys {n} and pays with {paid} dollars. "
        f"How much change does {who} get?",
    )
    steps = [f"{n} * {price} = {cost}", f"{paid} - {cost} = {paid - cost}"]
    left = paid - cost
    return _problem(rng, forms, steps, f"The answer is {left} dollar{'s' * (left != 1)}.", left)


def travel(rng):
    vehicle, speed, hours = rng.choice(VEHICLES), rng.randint(3, 90), rng.randint(2, 9)
    far = speed * hours
    if rng.random() < 0.6:
        forms = (
            f"A {vehicle} moves at {speed} km per hour for {hours} hours. How far does it go?",
            f"How far does a {vehicle} go in {hours} hours at {speed} km per hour?",
        )
        return _problem(rng, forms, [f"{speed} * {hours} = {far}"], f"The answer is {far} km.", far)
    forms = (
        f"A {vehicle} covers {far} km in {hours} hours. How many km does it cover per hour?",
        f"A {vehicle} needs {hours} hours for {far} km. What is its speed in km per hour?",
    )
    return _problem(rng, forms, [f"{far} / {hours} = {speed}"], f"The answer is {speed} km per hour.", speed)


def ages(rng):
    who, other = _names(rng, 2)
    a, d = rng.randint(3, 60), rng.randint(1, 30)
    if rng.random() < 0.5:
        forms = (
            f"{who} is {a} years old. How old will {who} be in {d} years?",
            f"{who} is {a}. {other} is {d} years older. How old is {other}?",
        )
        return _problem(rng, forms, [f"{a} + {d} = {a + d}"], f"The answer is {a + d} years.", a + d)
    a += d
    forms = (
        f"{who} is {a} years old. How old was {who} {d} years ago?",
        f"{who} is {a}. {other} is {d} years younger. How old is {other}?",
    )
    return _problem(rng, forms, [f"{a} - {d} = {a - d}"], f"The answer is {a - d} years.", a - d)


def sum_of_three(rng):
    (x, y, z), thing = _names(rng, 3), rng.choice(THINGS)
    a, b, c = (_number(rng) for _ in range(3))
    t, s = thing[0], a + b
    forms = (
        f"{x} has {a} {t}, {y} has {b} and {z} has {c}. How many {t} do they have together?",
        f"{x} sold {a} {t} on Friday, {b} on Saturday and {c} on Sunday. How many {t} is that in total?",
    )
    return _problem(rng, forms, [f"{a} + {b} = {s}", f"{s} + {c} = {s + c}"],
                    f"The answer is {_count(s + c, thing)}.", s + c)


def multiple(rng):
    (who, other), thing = _names(rng, 2), rng.choice(THINGS)
    k, a, t = rng.randint(2, 6), _number(rng, 2, 40), thing[0]
    times = "twice" if k == 2 else f"{k} times"
    b = k * a
    if rng.random() < 0.5:
        forms = (f"{who} has {a} {t}. {other} has {times} as many. How many {t} does {other} have?",)
        return _problem(rng, forms, [f"{k} * {a} = {b}"], f"The answer is {_count(b, thing)}.", b)
    forms = (f"{who} has {a} {t}. {other} has {times} as many. How many {t} do they have together?",)
    return _problem(rng, forms, [f"{k} * {a} = {b}", f"{a} + {b} = {a + b}"],
                    f"The answer is {_count(a + b, thing)}.", a + b)


def bare(rng):
    op = rng.choice("++--*/")
    a, b = _number(rng), _number(rng)
    if op == "-":
        a, b = max(a, b), min(a, b)
    elif op == "*":
        a, b = rng.randint(2, 12), rng.randint(2, rng.choice((12, 60)))
    elif op == "/":
        b = rng.randint(2, 12)
        a = b * rng.randint(2, rng.choice((12, 40)))
    r = {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[op]
    word = {"+": "plus", "-": "minus", "*": "times", "/": "divided by"}[op]
    sign = rng.choice(("x", "*")) if op == "*" else op
    forms = (
        f"What is {a} {sign} {b}?", f"{a} {sign} {b} = ?", f"Calculate {a} {sign} {b}.",
        f"What is {a} {word} {b}?", f"How much is {a} {word} {b}?", f"{a}{sign}{b}",
    )
    return _problem(rng, forms, [f"{a} {op} {b} = {r}"], f"The answer is {r}.", r)


KINDS = {gain: 5, loss: 5, groups: 4, share: 4, gain_loss: 5, groups_change: 5, compare: 5, money: 5,
         travel: 3, ages: 3, sum_of_three: 3, multiple: 4, bare: 5}


def problem(rng) -> Turn:
    return rng.choices(list(KINDS), list(KINDS.values()))[0](rng)
