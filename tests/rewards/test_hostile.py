"""Answers made to hang, crash or run code: all graded, none past its deadline, none correct, the others untouched."""
# ruff: noqa: RUF001

import random
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from da3po_cli.rewards import GradingPool, MathOptions
from da3po_cli.rewards.comparing.compare import equivalent
from da3po_cli.rewards.math import grade_math
from da3po_cli.rewards.reading.extract import extract_answer

DEADLINE_S = 3.0

TOWERS = [
    "2^{2^{2^{2^{2^2}}}}", "9^{9999999}", "10^{10^{10}}", "10**100000", "(10**9)**(10**9)", "9^9^9",
    r"7^{7^{7^7}} \mod 1000",
    "e^{e^{e^{e^{e}}}}", "x^{x^{x^{x^x}}}", r"\pi^{\pi^{\pi^{\pi}}}", "1.0000001^{10^9}", "1e999999999",
    "((((x+1)^9)^9)^9)^9",
    "2^" * 200 + "2", r"\dfrac{5^{\left(5^{\left(5^{\left(5^5\right)}\right)}-4\right)}-5}{16}",
]  # fmt: skip
COUNTING = [
    "(10^9)!", "10000000!", "3!!!!!!", "(x!)!", r"\binom{10^6}{5\cdot10^5}", r"\binom{x}{y}!", "5" + "!" * 60,
    r"\sum_{k=1}^{10^9}k^k", r"\sum_{k=1}^{1000}\sum_{j=1}^{1000} k^j", r"\sum_{k=1}^{2000}\sin(k)",
    r"\prod_{i=1}^{100000}(x-i)",
    r"\prod_{i=1}^{2000}(x-i)", r"\gcd(" + ",".join(["12"] * 300) + ")", "(x+y+z+w)^{80}", "(x+y)^{100000}",
]  # fmt: skip
NESTED = [
    "(" * 200 + "x" + ")" * 200, "(" * 200 + "5" + ")" * 200, "{" * 5000 + "}" * 5000, "(1+" * 90 + "1" + ")" * 90,
    r"\frac{" * 60 + "1" + "}{2}" * 60, r"\sqrt{" * 60 + "2" + "}" * 60, r"\sin(" * 60 + "x" + ")" * 60, r"\{" * 900,
    "|" * 500,
    r"\left(" * 300, r"\text{" * 300, r"\begin{pmatrix}" * 50, "⟦" * 500, r"\sqrt[" * 200,
]  # fmt: skip
LONG = [
    "9" * 1_000_000, "x" * 1_000_000, "a b " * 250_000, "{" * 500_000, "\\" * 100_000, "$" * 100_000, " " * 1_000_000,
    "\\boxed{" * 100_000, "Answer: " * 100_000, "<think>" * 100_000, "<|" * 300_000, "the answer is " * 50_000,
    "(1,2)," * 100_000,
    "\n" * 1_000_000, "1 " * 500_000, "." * 1_000_000, "*" * 1_000_000, "answer" * 100_000,
]  # fmt: skip
REGEX = [
    "a" * 1999, "9" * 1990, "0." + "9" * 1900 + "...", "1 " * 900, "1," * 900, "1:" * 900, "1/" * 900 + "1",
    "1=" * 900 + "1",
    "x<" * 900 + "1", "±1" * 12, r"\pm1" * 11, "x'" * 500, "_" * 1500, "^" * 1500, "%" * 900, "°" * 900, "one " * 400,
    "one hundred " * 150, "1 hour " * 200, r"\text{a}" * 200, r"\overline{9}" * 100,
    "1.\\overline{" + "3" * 1000 + "}",
    "- " * 900, "+" * 1900, "ab " * 600, "\\frac" * 300, "1" + "0" * 1900, "+".join(["x^2"] * 300), ", " * 900,
    "a^{" * 500,
]  # fmt: skip
STRANGE = [
    "\x00\x01\x02", "\ud800", "𝟗", "٣", "六", "\u202e9", "\x00" * 1000, "\u0301" * 500, "💥", "\ufffd" * 100, "ǅ",
    "İ" * 300, "ß" * 300,
    "1\u20031", "½½½½", "²³", "Ⅷ", "①②", "\x1b[31m9", "\r\n9\r\n=", "\\u0039\\u0030",
]  # fmt: skip
CODE = [
    "__import__('os').system('touch {}')", "`touch {}`", "$(touch {})", "; touch {}", "| touch {}",
    "exec(\"open('{}','w')\")",
    "().__class__.__bases__[0].__subclasses__()", "open('{}','w')", "lambda: 1", "1 if 1 else 2",
    "[x for x in ().__class__.__mro__]",
    "eval('1+1')", "{{7*7}}", "%s%n", "<script>9</script>", "'; DROP TABLE grades; --", "../../etc/passwd",
    r"\input{/etc/passwd}",
    r"\write18{touch {}}", r"\def\x{\x\x}\x",
]  # fmt: skip
GOLDS = [
    "x+1",
    "1234567",
    r"\sqrt{2}",
    "(1,2)",
    "x<3",
    r"\{1,2\}",
    r"\frac{x}{2}+y",
    "0.25",
    r"7 \text{ cm}",
    r"\text{yes}",
]


def test_the_hostile_set(tmp_path):
    """Every answer against several golds, boxed and in an answer line, with easy answers in between."""
    target = tmp_path / "touched"
    hostile = [
        *TOWERS,
        *COUNTING,
        *NESTED,
        *LONG,
        *REGEX,
        *STRANGE,
        *(code.replace("{}", str(target)) for code in CODE),
    ]
    draw = random.Random(0)
    items = [
        (form % text, "stop", gold)
        for text in hostile
        for form in (r"So \boxed{%s}", "Answer: %s", "%s")
        for gold in draw.sample(GOLDS, 2 if len(text) > 10_000 else 3)
    ]
    easy = [(r"\boxed{\frac{2}{4}}", "stop", "0.5")] * len(items)
    with GradingPool(workers=2, deadline_s=DEADLINE_S) as pool:
        grades = pool.grade([item for pair in zip(items, easy, strict=True) for item in pair])
    assert len(grades) == 2 * len(items)
    assert {grade.verdict for grade in grades[1::2]} == {"correct"}
    for item, grade in zip(items, grades[::2], strict=True):
        assert grade.verdict in ("wrong", "unknown"), (item[0][:80], item[2], grade.rule)
        assert grade.seconds <= DEADLINE_S + 0.5, (item[0][:80], item[2], grade.seconds)
        assert not grade.rule.startswith("grader"), (item[0][:80], item[2], grade.rule)
    assert not target.exists()


@pytest.mark.parametrize("text", [*TOWERS, *COUNTING, *NESTED, *REGEX], ids=lambda text: text[:24])
def test_the_caps_alone_keep_hostile_answers_short(text):
    """The deadline is the second line: no answer of the set comes near it."""
    equivalent("x+y", "y+x")  # imports what is imported on first use
    start = time.process_time()
    assert equivalent("x+1", text)[0] != "correct"
    assert equivalent(r"\frac{1}{3}", text)[0] != "correct"
    assert time.process_time() - start < 2.0


PIECES = st.sampled_from(
    [
        r"\frac", r"\frac{", "{", "}", "(", ")", "[", "]", r"\{", r"\}", ",", ";", ":", "=", "<", ">", r"\le",
        r"\pm", "^", "_", "+",
        "-", "*", "/", "!", "|", r"\boxed{", r"\text{", r"\sqrt", r"\sin", r"\log", r"\pi", r"\infty", r"\cup",
        r"\in", "$", "%",
        "'", "1", "2", "10", "0.5", "1e9", "x", "y", "n", "i", "e", "and", "or", r"\begin{pmatrix}",
        r"\end{pmatrix}", "&", r"\\",
        r"\sum_{k=1}^{9}", r"\binom", r"\left", r"\right", "°", "5!", ".", "...", r"\overline{3}",
    ]
)  # fmt: skip
TEXT = st.one_of(
    st.lists(PIECES, max_size=25).map(" ".join), st.lists(PIECES, max_size=25).map("".join), st.text(max_size=60)
)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(TEXT, TEXT)
def test_any_text_gets_a_verdict(gold, answer):
    verdict, rule = equivalent(gold, answer)
    assert verdict in ("correct", "wrong", "unknown") and rule


@settings(max_examples=300, deadline=None)
@given(TEXT)
def test_any_text_that_is_not_empty_equals_itself(text):
    verdict, rule = equivalent(text, text)
    assert verdict == "correct" or rule == "empty gold answer"


@settings(max_examples=300, deadline=None)
@given(TEXT, st.sampled_from(["none", "prose", "bare"]))
def test_any_response_has_an_answer_or_none(text, fallback):
    found = extract_answer(text, MathOptions(fallback=fallback))
    assert found.text is None or isinstance(found.text, str)
    assert grade_math(text, "stop", "x+1", options=MathOptions(fallback=fallback)).verdict in (
        "correct",
        "wrong",
        "unknown",
    )


NUMBERS = st.integers(-(10**20), 10**20)


@given(NUMBERS, NUMBERS)
def test_integers_are_equal_when_they_are(gold, answer):
    expected = "correct" if gold == answer else "wrong"
    assert equivalent(str(gold), str(answer))[0] == expected
    assert equivalent(str(gold), f"{answer:,}")[0] == expected
    assert equivalent(f"${gold}$", rf"{answer}.0")[0] == expected


@given(st.integers(-999, 999), st.integers(1, 999), st.integers(1, 50), st.integers(-3, 3))
def test_fractions_are_equal_when_they_are(top, bottom, factor, offset):
    expected = "correct" if offset == 0 else "wrong"
    answer = rf"\frac{{{top * factor + offset}}}{{{bottom * factor}}}"
    assert equivalent(f"{top}/{bottom}", answer)[0] == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=1, max_size=4), st.lists(st.integers(-9, 9), min_size=1, max_size=4))
def test_polynomials_are_equal_when_their_coefficients_are(first, second):
    """Coefficients decide: a form that is independent of how the text is evaluated."""

    def text(coefficients, join):
        return join.join(f"({c})x^{{{power}}}" for power, c in enumerate(coefficients))

    size = max(len(first), len(second))
    same = first + [0] * (size - len(first)) == second + [0] * (size - len(second))
    assert equivalent(text(first, " + "), text(second[::-1][::-1], "+"))[0] == ("correct" if same else "wrong")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-50, 50), min_size=2, max_size=5, unique=True), st.randoms(use_true_random=False))
def test_lists_are_unordered_and_tuples_are_not(numbers, draw):
    shuffled = numbers[:]
    draw.shuffle(shuffled)
    gold, given_list = ", ".join(map(str, numbers)), ", ".join(map(str, shuffled))
    assert equivalent(gold, given_list)[0] == "correct"
    assert equivalent(rf"\{{{gold}\}}", given_list)[0] == "correct"
    assert equivalent(f"({gold})", f"({given_list})")[0] == ("correct" if numbers == shuffled else "wrong")
    assert equivalent(gold, ", ".join(map(str, numbers[1:])))[0] == "wrong"
