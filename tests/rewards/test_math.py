"""A table of answers with the verdict that a careful reader gives. Expected values were written by hand."""
# ruff: noqa: RUF001 (look-alike characters are part of what is tested)

import time

import pytest

from da3po_cli.rewards import REWARDS
from da3po_cli.rewards.extract import extract_answer
from da3po_cli.rewards.math import equivalent

grade = REWARDS["math"]

EQUAL = [  # (gold answer, answer as found in a box)
    ("42", "42"), ("1000", "1,000"), ("1000", r"1\,000"), ("1000", "1{,}000"), ("1234567", "1,234,567"),
    ("1,000", "1000"), ("18", "18.0"), ("18.0", "18"), (r"\frac{1}{2}", "0.5"), (r"\frac{1}{2}", r"\frac{2}{4}"),
    (r"\frac{1}{2}", "1/2"), (r"\frac12", r"\dfrac{1}{2}"), (r"\frac{10}{3}", r"\frac{10}3"),
    (r"3\frac{1}{2}", r"\frac{7}{2}"), (r"3\frac{1}{2}", "3.5"), (r"-1\frac{1}{2}", "-1.5"),
    (r"50\%", "0.5"), (r"50\%", r"50\%"), (r"50\%", "50"), ("50", r"50\%"), ("0.25", r"25\%"),
    ("5", r"5 \text{cm}"), ("5", r"5\mbox{ cm}"), ("5", "5 cm"), ("12", "12 cm^2"), ("12", r"12\text{ cm}^2"),
    (r"12\text{ cm}^2", "12 square centimeters"), ("90", "90 degrees"), ("90", r"90^\circ"), (r"90^{\circ}", "90°"),
    (r"\$18", "18"), ("18", r"\$18.00"), ("18", "18 dollars"), ("7", r"7 \text{ apples}"),
    (r"2\sqrt{3}", r"\sqrt{12}"), (r"\sqrt{2}", r"\sqrt2"), (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    (r"2\pi", "2π"), ("1.2e5", r"1.2 \times 10^5"), ("120000", r"1.2\cdot 10^{5}"), ("2000", "2e3"),
    ("1024", "2^{10}"), ("1024", "2^10"), ("4", r"\sqrt{16}"), ("4", "2+2"), ("-8", "(-2)^3"), ("-4", "-2^2"),
    ("1,2", "2,1"), ("1, 2", r"2 \text{ and } 1"), (r"\{1,2\}", r"\{2,1\}"), (r"1,2", r"\{2,1\}"),
    (r"(1,\infty)", r"(1, +\infty)"), (r"(1,2)", r"\left(1, 2\right)"), ("(1,2)", r"(1.0,\frac{4}{2})"),
    (r"(-\infty,1)\cup(2,\infty)", r"(2,\infty) \cup (-\infty, 1)"), (r"[0,1)", "[0, 1)"),
    ("x = 5", "5"), ("5", "x=5"), ("x = 5", "y = 5"), ("2,3", r"x=2 \text{ or } x=3"), (r"\pm 3", "3,-3"),
    (r"\pm 3", r"\pm 3"), ("73", "073"), ("-5", "−5"), ("1/2", "½"), ("7/2", "3½"), ("5", "５"),
    ("2000000", r"2 \text{ million}"), ("2.5", r"2.5\,"), (r"\boxed{5}", "5"), ("$5$", "5"), ("5.0", "5"),
    (r"\text{(B)}", "B"), ("B", "(B)"), (r"\text{Evelyn}", "Evelyn"), ("Evelyn", r"\text{evelyn}"),
    (r"\emptyset", r"\varnothing"), ("x^2+2x+1", "(x+1)^2"), ("x+y", "y + x"), (r"\frac{x}{2}", "x/2"), ("9", "3²"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"), ("12:00", "12:00"), ("5!", "5!"),
    ("10", r"10\text{.}"), (r"\log_2 3", r"\log_2 3"), ("p - q", "-q+p"), ("1", r"\sin^2 x + \cos^2 x"),
]  # fmt: skip

DIFFERENT = [
    ("42", "43"), ("1000", "1,001"), ("5", "5, 4, 3"), ("5", "4 or 5"), ("5", r"4 \text{ or } 5"), ("1,2", "1"),
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"), ("0.3333", "0.33330001"), ("0.333333", r"\frac{1}{3}"),
    ("2516_8", "2516"), ("1:2", "2:4"), (r"2\sqrt{3}", "2"), (r"4\pi", "4"), ("2^{10}", "2"),
    (r"3\frac{1}{2}", r"\frac12"), ("12:00", "12"), (r"\pm 3", "3"), (r"3x + 4y + 14=0", "3*x-1*y+13=0"),
    ("n=1,2,3", "n=2,3,4"), (r"4\sqrt{2}", "4"), ("square", "points"), ("square", "ways"), ("5", "4=5"),
    ("5", "x = 3 or y = 5"), ("12", "1 2"), ("1 a 2", "1 2"), ("7", "3 4"), ("3 4", "34"), ("ab", "ba"),
    ("monday", "mon"), ("0.5", r"0.5\%"), ("123456789012345678", "123456789012345679"), ("(1,2)", "[1,2]"),
    ("(1,2)", "(2,1)"), ("[0,1)", "[0,1]"), ("5 cm", "5 m"), ("12 cm^2", "12 cm^3"), (r"(1,\infty)", r"(1,-\infty)"),
    ("5", ""), ("5", r"\text{}"), ("5", "   "), ("2000000", "2 billion"), ("5", "five"), ("Evelyn", "Eve"),
    (r"\text{(B)}", "C"), ("x^2+2x+1", "(x-1)^2"), ("4", "-4"), (r"\sqrt{2}", "1.41421356"), (r"\pi", "3.14159"),
    (r"\{1,2\}", r"\{1,2,2\}"), ("1,1", "1,2"), ("3x", "3"), ("x", "y"), (r"\emptyset", "0"), ("1.5", r"1\frac13"),
]  # fmt: skip


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal(gold, answer):
    result = grade(rf"Thus the answer is \boxed{{{answer}}}.", "stop", gold)
    assert result.verdict == "correct", result


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different(gold, answer):
    result = grade(rf"Thus the answer is \boxed{{{answer}}}.", "stop", gold)
    assert result.verdict == "wrong", result


@pytest.mark.parametrize("gold", sorted({gold for gold, _ in EQUAL + DIFFERENT}))
def test_every_gold_answer_equals_itself(gold):
    assert grade(rf"\boxed{{{gold}}}", "stop", gold).verdict == "correct"


LONG = r"\frac{" + "+".join(f"{i}x^{{{i}}}" for i in range(30)) + "}{7}"
EXTRACTED = [
    (r"\boxed{840} and again \boxed{840}", "840"),
    (r"First \boxed{4}, then \boxed{5}", "5"),
    (r"\boxed{4}. Wait, that is wrong. So the answer is \boxed{5}.", "5"),
    (r"\boxed{4} and \boxed{5}", "5"),
    (r"\boxed{4} " * 50 + r"\boxed{5}", "5"),
    (r"\boxed{4} then \boxed{5", None),  # cut off: no answer, not the earlier one
    (r"\boxed{\frac{1}{2}", None),
    (r"<think>So \boxed{5}", None),
    (r"<think>So \boxed{5}</think> The answer is \boxed{6}", "6"),
    (r"<think>So \boxed{5}</think> I do not know", None),
    (r"So \boxed{5}</think> The answer is \boxed{6}", "6"),  # the template had opened the thinking
    (r"no thinking at all: \boxed{7}", "7"),
    (r"\boxed{1}###Response\boxed{2}###Response\boxed{42}", "42"),
    (rf"\boxed{{{LONG}}}", LONG),
    (r"\fbox{5}", "5"),
    (r"\boxed 5", "5"),
    (r"so $\boxed 5$.", "5"),
    (r"\boxed{\{1,2\}}", r"\{1,2\}"),
    (r"\boxed {8}", "8"),
    ("Answer: 5\n" + "x" * 400, "5"),
    ("Answer: 5<|im_end|>", "5"),
    ("Answer: 73.", "73"),
    ("**Answer:** 73", "73"),
    ("Final Answer: **73**", "73"),
    ("**Final Answer**: 73", "73"),
    ('Answer: "10"', "10"),
    ("Answer:\n$\\frac{1}{2}$", r"$\frac{1}{2}$"),
    ("Answer: 4\nNo. Answer: 5", "5"),
    (r"Answer: \boxed{9}", "9"),
    ("We get 5. Check: 3+4=7", None),  # the last number of a text is not its answer
    ("I like 42", None),
    ("", None),
]


@pytest.mark.parametrize(("response", "answer"), EXTRACTED)
def test_extraction(response, answer):
    assert extract_answer(response)[0] == answer


def test_answer_line_is_graded():
    assert grade("Answer: 73.", "stop", "73").verdict == "correct"
    assert grade("Answer: 5 or 6", "stop", "5").verdict == "wrong"
    assert grade("no answer here", "length", "5").verdict == "wrong"


def test_the_order_of_arguments_matters():
    # a gold percentage takes the bare number; a bare share does not take a percentage
    assert equivalent(r"0.5\%", "0.5")[0] == "correct"
    assert equivalent("0.5", r"0.5\%")[0] == "wrong"


BOMBS = [
    "2^{2^{2^{2^{2^2}}}}", "(10^9)!", r"\sum_{k=1}^{10^9}k^k", r"\prod_{i=1}^{100000}(x-i)", "(x+y+z+w)^{80}",
    "(" * 200 + "x" + ")" * 200, "10^{10^{10}}", r"7^{7^{7^7}} \mod 1000", r"\binom{10^6}{5\cdot10^5}",
    "+".join(["x^2"] * 300), "9" * 100_000, "9^{9999999}", r"\frac{1}{2006!}", "((((((((x+1)^9)^9)^9)^9)^9)^9)^9)^9",
    "1e999999999", "{" * 5000 + "}" * 5000, r"\int_0^1 x^x dx",
]  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("gold", ["x+1", "1024"])
def test_hostile_answers_are_refused_in_no_time(bomb, gold):
    equivalent("x+y", "y+x")  # import sympy before the clock starts
    start = time.process_time()
    verdict = equivalent(gold, bomb)[0]
    assert time.process_time() - start < 0.5
    assert verdict in ("wrong", "unknown")


def test_an_answer_beyond_the_gate_is_unknown_and_not_wrong():
    assert equivalent("x+1", r"\int_0^1 x^x dx") == ("unknown", "outside the symbolic gate")
    assert equivalent("7", r"\sum_{k=1}^{3} k + 1")[0] == "unknown"


def test_the_identical_text_is_correct_however_large():
    text = "+".join(f"{i}x^{{{i}}}" for i in range(2000))
    assert equivalent(text, text) == ("correct", "same text")


def test_an_empty_gold_answer_is_unknown():
    assert equivalent("", "5")[0] == "unknown"
    assert equivalent(r"\text{}", r"\text{}")[0] == "unknown"


def test_python_code_in_an_answer_is_text(tmp_path):
    target = tmp_path / "touched"
    code = f"__import__('pathlib').Path({str(target)!r}).touch()"
    assert grade(rf"\boxed{{{code}}}", "stop", "5").verdict in ("wrong", "unknown")
    assert not target.exists()


def test_grading_works_outside_the_main_thread():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(equivalent, r"2\sqrt{3}", r"\sqrt{12}").result()[0] == "correct"
