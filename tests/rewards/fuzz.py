"""A fuzz run of the math reward: `python tests/rewards/fuzz.py [--minutes 10] [--seed 0]`.

Two kinds of rounds, until the time is over:

* mutation: the table's answers, cut, spliced and sprinkled with LaTeX. Nothing may raise, take SLOW_S of CPU, or say
  correct for an answer that lost its digits.
* oracle: random formulas whose value is known from how they were made (Fractions, no parser). The verdict must be that
  of the values.

Prints one JSON object; the exit code is 1 when anything was found.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from fractions import Fraction
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from test_table import DIFFERENT, EQUAL

from da3po_cli.rewards.comparing.compare import equivalent
from da3po_cli.rewards.math import grade_math
from da3po_cli.rewards.types import MathOptions

SLOW_S = 1.0
SEEDS = [text for table in (EQUAL, DIFFERENT) for rows in table.values() for row in rows for text in row]
SPRINKLES = [
    r"\frac{", r"\sqrt{", "{", "}", "(", ")", "[", "]", r"\{", r"\}", ",", ";", ":", "=", "<", ">", r"\le", r"\pm",
    "^", "_", "+",
    "-", "*", "/", "!", "|", "$", "%", "'", r"\boxed{", r"\text{", r"\pi", r"\infty", r"\cup", r"\in", "9", "10",
    "1e9", "x", "i",
    "e", " and ", " or ", "\\\\", "\\", "…", "°", "\x00", "é", "½", "^{99}", "!" * 9, "9" * 50, "(" * 30, "x" * 30,
    "\\left(",
    "\\sum_{k=1}^{99}",
]  # fmt: skip


def mutated(draw: random.Random) -> str:
    text = draw.choice(SEEDS)
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(len(text) + 1)
        until = min(len(text), at + draw.randrange(6))
        change = draw.randrange(4)
        if change == 0:
            text = text[:at] + text[until:]
        elif change == 1:
            text = text[:at] + draw.choice(SPRINKLES) + text[at:]
        elif change == 2:
            text = text[:at] + draw.choice(SEEDS)[draw.randrange(3) :] + text[until:]
        else:
            text = text[:at] + text[at:until] * draw.randrange(2, 9) + text[until:]
    return text[:3000]


def formula(draw: random.Random, depth: int) -> tuple[str, Fraction]:
    """A random formula as text and its value."""
    if depth == 0 or draw.random() < 0.25:
        number = draw.randrange(1, 30)
        style = draw.randrange(4)
        if style == 0:
            return str(number), Fraction(number)
        if style == 1:
            other = draw.randrange(1, 12)
            return rf"\frac{{{number}}}{{{other}}}", Fraction(number, other)
        if style == 2:
            tenth = draw.randrange(10)
            return f"{number}.{tenth}", Fraction(10 * number + tenth, 10)
        return f"({-number})", Fraction(-number)
    left, a = formula(draw, depth - 1)
    right, b = formula(draw, depth - 1)
    sign = draw.choice("+-*/^f")
    if sign == "/" and b != 0:
        return f"({left})/({right})", a / b
    if sign == "f" and b != 0:
        return rf"\frac{{{left}}}{{{right}}}", a / b
    if sign == "^":
        power = draw.randrange(1, 4)
        return f"({left})^{{{power}}}", a**power
    if sign == "-":
        return f"{left} - ({right})", a - b
    if sign == "*":
        return draw.choice([rf"({left}) \cdot ({right})", f"({left})({right})", f"({left})*({right})"]), a * b
    return f"{left} + {right}", a + b


def stated(draw: random.Random, value: Fraction) -> str:
    """A value as an answer would have it."""
    if value.denominator == 1:
        return draw.choice(
            [f"{value.numerator}", f"{value.numerator:,}", f"{value.numerator}.0", f"x = {value.numerator}"]
        )
    return draw.choice(
        [f"{value.numerator}/{value.denominator}", rf"\dfrac{{{value.numerator}}}{{{value.denominator}}}"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    verdicts: Counter[str] = Counter()
    found: list[dict[str, str]] = []
    slowest = 0.0
    until = time.monotonic() + 60 * asked.minutes
    rounds = 0
    while time.monotonic() < until and len(found) < 20:
        rounds += 1
        if rounds % 2:
            gold, answer = draw.choice([mutated(draw), draw.choice(SEEDS)]), mutated(draw)
            expected = None
        else:
            answer, value = formula(draw, 3)
            expected = draw.random() < 0.5
            gold = stated(
                draw, value if expected else value + draw.choice([1, -1, Fraction(1, 7)]) * draw.randrange(1, 4)
            )
        start = time.process_time()
        try:
            verdict = equivalent(gold, answer)[0]
            if expected is None:
                grade_math(answer, "stop", gold, options=MathOptions(fallback="bare"))
        except Exception as error:
            found.append({"gold": gold, "answer": answer, "what": repr(error)})
            continue
        seconds = time.process_time() - start
        slowest = max(slowest, seconds)
        verdicts[("mutation " if expected is None else "oracle ") + verdict] += 1
        if seconds > SLOW_S:
            found.append({"gold": gold, "answer": answer, "what": f"{seconds:.2f} s of CPU"})
        if expected is not None and (verdict == "correct") != expected:
            found.append({"gold": gold, "answer": answer, "what": f"{verdict}, expected {expected}"})
    report = {"rounds": rounds, "slowest_s": round(slowest, 3), "verdicts": verdicts, "found": found}
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
