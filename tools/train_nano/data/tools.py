"""Short tool calls: one function of the offered ones fits, with its arguments taken from the question."""

from .turn import Call, Turn
from .words import NAMES, THINGS

_CITIES = """Oslo Rome Paris Berlin Madrid Vienna Prague Lisbon Athens Dublin Cairo Delhi Tokyo Lima Seoul
Boston Chicago Toronto Sydney Nairobi""".split()
_SKY = "sunny cloudy rainy windy foggy clear".split()
_TASKS = """call the bank|buy milk|water the flowers|feed the dog|close the window|write to the office|
clean the kitchen|read the report|pay the bill|walk in the park""".replace("\n", "").split("|")


def _function(name, description, **properties):
    return {"name": name, "description": description, "parameters": {
        "type": "object", "properties": {k: {"type": v} for k, v in properties.items()},
        "required": list(properties)}}


FUNCTIONS = [
    _function("get_weather", "Weather of a city", city="string"),
    _function("get_time", "Local time of a city", city="string"),
    _function("set_timer", "Start a timer", minutes="integer"),
    _function("add_task", "Put a task on the list of a person", person="string", task="string"),
    _function("get_price", "Price of a thing in dollars", item="string"),
    _function("send_message", "Send a message to a person", person="string", text="string"),
]
# Sets of offered functions; few, so that the text of each can be kept.
TOOLSETS = [(0,), (1,), (2,), (3,), (4,), (5,), (0, 1), (2, 3), (4, 5), (0, 4), (1, 5), (0, 2, 4), (1, 3, 5),
            (0, 1, 2, 3), (2, 3, 4, 5), (0, 1, 2, 3, 4, 5), (5, 4, 3, 2, 1, 0), (3, 1, 0)]


def toolset(i: int) -> list[dict]:
    return [FUNCTIONS[f] for f in TOOLSETS[i]]


def _weather(rng):
    city, sky, degrees = rng.choice(_CITIES), rng.choice(_SKY), rng.randint(1, 35)
    ask = rng.choice((f"What is the weather in {city}?", f"How is the weather in {city} today?", f"Weather in {city}?"))
    return ask, Call("get_weather", {"city": city}, f"{sky}, {degrees} degrees",
                     f"It is {sky} in {city}, with {degrees} degrees.")


def _time(rng):
    city, at = rng.choice(_CITIES), f"{rng.randint(0, 23)}:{rng.randint(10, 59)}"
    ask = rng.choice((f"What time is it in {city}?", f"Tell me the time in {city}.", f"How late is it in {city}?"))
    return ask, Call("get_time", {"city": city}, at, f"It is {at} in {city}.")


def _timer(rng):
    m = rng.randint(2, 90)
    ask = rng.choice((f"Set a timer for {m} minutes.", f"Start a timer of {m} minutes.", f"Tell me when {m} minutes are over."))
    return ask, Call("set_timer", {"minutes": m}, "started", f"The timer runs for {m} minutes.")


def _task(rng):
    who, task = rng.choice(NAMES), rng.choice(_TASKS)
    ask = rng.choice((f"Put on the list of {who}: {task}.", f"{who} has to {task}. Add it to the list.",
                      f"Add a task for {who}: {task}."))
    return ask, Call("add_task", {"person": who, "task": task}, "added", f"I put it on the list of {who}.")


def _price(rng):
    thing, price = rng.choice(THINGS)[1], rng.randint(2, 99)
    article = "an" if thing[0] in "aeiou" else "a"
    ask = rng.choice((f"What does {article} {thing} cost?", f"What is the price of {article} {thing}?",
                      f"Look up the price of {article} {thing}."))
    return ask, Call("get_price", {"item": thing}, f"{price} dollars",
                     f"{article.capitalize()} {thing} costs {price} dollars.")


def _message(rng):
    who, task = rng.choice(NAMES), rng.choice(_TASKS)
    ask = rng.choice((f"Tell {who} to {task}.", f"Write to {who}: please {task}.", f"Send {who} a message: please {task}."))
    return ask, Call("send_message", {"person": who, "text": f"Please {task}."}, "sent", f"I wrote to {who}.")


_MAKERS = (_weather, _time, _timer, _task, _price, _message)


def tool_turn(rng, offered: int) -> Turn:
    """A question that one of the functions of toolset `offered` answers."""
    ask, call = _MAKERS[rng.choice(TOOLSETS[offered])](rng)
    return Turn(ask, f"I call {call.name}.", "", "", call)
