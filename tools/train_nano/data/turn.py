"""One question with its answer, before it is rendered in the chat format."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Call:
    """A function call, what the function returned, and what the model says then."""

    name: str
    arguments: dict = field(hash=False)  # name -> text or whole number, in the order of the call
    result: str = ""
    reply: str = ""


@dataclass(frozen=True)
class Turn:
    user: str
    think: str  # empty: this turn has nothing to reason about
    answer: str  # what is said before `call`, if there is one
    value: str = ""  # the text that a correct answer must contain; empty: not scored
    call: Call | None = None
