"""Throughput of the grading pool: short answers, a mix as models give them, and one hostile answer in 100.

    python benchmarks/bench_grade.py [--workers 2] [--items 6000]

Prints one JSON object: answers per second of each load, and for the hostile load how long the other answers waited.
"""

from __future__ import annotations

import argparse
import json
import random
import time

from da3po_cli.rewards import GradingPool, Item

HOSTILE = [
    "2^{2^{2^{2^{2^2}}}}", "(10^9)!", r"\sum_{k=1}^{10^9}k^k", r"\prod_{i=1}^{100000}(x-i)", "(x+y+z+w)^{80}",
    "(" * 200 + "x" + ")" * 200, r"7^{7^{7^7}} \mod 1000", r"\binom{10^6}{5\cdot10^5}", "9" * 1_000_000,
    "+".join(["x^2"] * 300), "{" * 5000 + "}" * 5000, r"\sin(" * 60 + "x" + ")" * 60,
]  # fmt: skip
MIXED = [
    (r"\frac{1}{2}", "0.5"), (r"2\sqrt{3}", r"\sqrt{12}"), ("(1,2)", "(1, 2)"), ("x^2-1", "(x-1)(x+1)"),
    ("5", r"5\text{ cm}"),
    (r"[0,1)", r"0 \le x < 1"), (r"\frac{\pi}{3}", r"\frac{\pi}{4}"), ("1,2,3", "3,2,1"), ("12", "13"),
    (r"50\%", "0.5"),
]  # fmt: skip
TALK = "We add the two sides and simplify, which leaves one value to check. " * 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--items", type=int, default=6000)
    asked = parser.parse_args()
    draw = random.Random(0)

    def item(answer: str, gold: str) -> Item:
        return rf"{TALK}The answer is \boxed{{{answer}}}.", "stop", gold

    numbers = [(str(n), str(n + draw.randrange(2))) for n in range(asked.items)]
    loads = {
        "short": [item(*pair) for pair in numbers],
        "mixed": [item(answer, gold) for gold, answer in draw.choices(MIXED, k=asked.items)],
        "hostile_1_in_100": [
            item(draw.choice(HOSTILE) if n % 100 == 50 else pair[0], pair[1]) for n, pair in enumerate(numbers)
        ],
    }
    result: dict[str, float] = {"workers": asked.workers}
    with GradingPool("math", workers=asked.workers) as pool:
        start = time.perf_counter()
        pool.grade(loads["short"][: 2 * asked.workers])
        result["start_s"] = round(time.perf_counter() - start, 3)
        for name, load in loads.items():
            start = time.perf_counter()
            grades = pool.grade(load)
            result[f"{name}_per_s"] = round(len(load) / (time.perf_counter() - start))
            result[f"{name}_unknown"] = sum(grade.verdict == "unknown" for grade in grades)
            result[f"{name}_slowest_s"] = round(max(grade.seconds for grade in grades), 4)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
