"""The demo task: chains of sums and differences, answered with each step written out as an equation.

    prompt    47+8-16=?
    response  47+8=55,55-16=39

An error in one step is carried on, so the pass rate falls with the length of the chain. The text of a problem alone
decides its split (`held_out`), so training and held-out problems cannot overlap.

`sums` is a smaller task for models that were pretrained on text: one sum, after worked examples.
"""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

Split = Literal["train", "validation"]

MIN_STEPS, MAX_STEPS = 5, 8  # operations of a problem; the base model was pretrained on 1 and more
LIMIT = 99  # running values stay in 0..LIMIT
HELD_OUT_SHARE = 8  # one problem in this many is held out

SUM_LIMIT = 20
WORKED_SUMS = ((2, 3), (4, 1), (7, 2), (6, 5))  # shown in front of each of `sums`

_TERM = re.compile(r"([+-])(\d+)")
_PROBLEM = re.compile(r"(\d+)((?:[+-]\d+)+)=\?")
_WORKED = "".join(f"{a} + {b} = {a + b}\n" for a, b in WORKED_SUMS)


@dataclass(frozen=True)
class Problem:
    """A chain `start (op term)*`, evaluated from left to right."""

    start: int
    terms: tuple[int, ...]  # signed; never zero

    @property
    def text(self) -> str:
        """The prompt, for example `47+8-16=?`."""
        return f"{self.start}{''.join(f'{term:+d}' for term in self.terms)}=?"

    @property
    def answer(self) -> str:
        return str(self.start + sum(self.terms))

    @property
    def solution(self) -> str:
        """The response without errors, for example `47+8=55,55-16=39`."""
        return ",".join(f"{value}{term:+d}={value + term}" for value, term in self._steps())

    def noisy_solution(self, rng: random.Random) -> str:
        """A response in which a step goes wrong with probability `slip_rate`; the next ones go on from there."""
        value, steps = self.start, list[str]()
        for term in self.terms:
            result = value + term
            if rng.random() < slip_rate(value, term):
                result = _slip(value, term, rng)
            steps.append(f"{value}{term:+d}={result}")
            value = result
        return ",".join(steps)

    def _steps(self) -> list[tuple[int, int]]:
        values = [self.start]
        for term in self.terms:
            values.append(values[-1] + term)
        return list(zip(values, self.terms, strict=False))


def carries(value: int, term: int) -> bool:
    """Whether the step needs a carry (sum) or a borrow (difference) out of the ones."""
    ones = value % 10 + (term % 10 if term > 0 else -(-term % 10))
    return not 0 <= ones <= 9


def slip_rate(value: int, term: int) -> float:
    """Share of wrong results in the base model's training data, by the kind of step."""
    if not carries(value, term):
        return 0.05 if abs(term) < 10 else 0.14
    return (0.26 if term > 0 else 0.40) + (0.0 if abs(term) < 10 else 0.08)


def _slip(value: int, term: int, rng: random.Random) -> int:
    """A wrong result: the ten is forgotten where there is one to carry, else the ones are off by one or two."""
    right = value + term
    if carries(value, term) and rng.random() < 0.7:
        return right - 10 if term > 0 else right + 10
    return right + rng.choice([-2, -1, 1, 2])


def draw(rng: random.Random, steps: int) -> Problem:
    """A random chain of `steps` operations whose running value stays in 0..LIMIT."""
    start = value = rng.randint(1, LIMIT if steps == 1 else 19)
    terms: list[int] = []
    for _ in range(steps):
        size = rng.randint(1, 9) if rng.random() < 0.8 else rng.randint(10, 29)
        signs = [sign for sign in (1, -1) if 0 <= value + sign * size <= LIMIT]
        terms.append(rng.choice(signs) * size)
        value += terms[-1]
    return Problem(start, tuple(terms))


def held_out(text: str) -> bool:
    """Whether the problem with this text is kept away from all training, pretraining of the base model included."""
    return blake2b(text.encode(), digest_size=8).digest()[0] % HELD_OUT_SHARE == 0


def problems(split: Split, count: int, seed: int = 0) -> list[Problem]:
    """`count` different problems of a split, deterministic by seed.

    Lengths go round MIN_STEPS..MAX_STEPS, so that any prefix of the list is an even mixture of difficulties. The base
    model solves shorter chains too often to be hard prompts.
    """
    rng = random.Random(f"arith-{split}-{seed}")
    found: dict[str, Problem] = {}
    for turn in itertools.count():
        if len(found) == count:
            break
        problem = _draw_of(split, rng, turn % (MAX_STEPS - MIN_STEPS + 1) + MIN_STEPS)
        found.setdefault(problem.text, problem)
    return list(found.values())


def _draw_of(split: Split, rng: random.Random, steps: int) -> Problem:
    """A random problem of a split."""
    while True:
        problem = draw(rng, steps)
        if held_out(problem.text) == (split == "validation"):
            return problem


def sums(split: Split) -> list[tuple[str, str]]:
    """(prompt, answer) of every sum of two numbers in 1..SUM_LIMIT that belongs to the split.

    The prompt shows how it is done, and stops before the equals sign: the response to `...12 + 7` is ` = 19` and a
    line break, which must be a stop token.
    """
    found = []
    for a, b in itertools.product(range(1, SUM_LIMIT + 1), repeat=2):
        text = f"{a} + {b}"
        if (a, b) not in WORKED_SUMS and held_out(text) == (split == "validation"):
            found.append((_WORKED + text, str(a + b)))
    return found


def solve(text: str) -> int:
    """The answer of a problem's text.

    Raises:
        ValueError: the text is not a problem of this task.
    """
    match = _PROBLEM.fullmatch(text)
    if match is None:
        raise ValueError(f"not an arithmetic problem: {text!r}")
    return int(match[1]) + sum(int(sign + digits) for sign, digits in _TERM.findall(match[2]))
