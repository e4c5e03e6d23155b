"""One question with its answer, before it is rendered in the chat format."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    user: str
    think: str  # empty: this turn has nothing to reason about
    answer: str
    value: str = ""  # the text that a correct answer must contain; empty: not scored
