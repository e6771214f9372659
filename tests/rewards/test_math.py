"""Extraction, hostile answers and the edges of the math reward; test_table.py holds the table of answers."""

import pytest

from da3po_cli.rewards import REWARDS, MathOptions
from da3po_cli.rewards.math import equivalent
from da3po_cli.rewards.reading.extract import extract_answer

grade = REWARDS["math"]

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
    ("Answer：73", "73"),  # noqa: RUF001
    ("\\boxed\n{5}", "5"),
    ("\\boxed \n  {5}", "5"),
    ("**Answer:** 73", "73"),
    ("Final Answer: **73**", "73"),
    ("**Final Answer**: 73", "73"),
    ('Answer: "10"', "10"),
    ("Answer:\n$\\frac{1}{2}$", r"$\frac{1}{2}$"),
    ("Answer: 4\nNo. Answer: 5", "5"),
    (r"Answer: \boxed{9}", "9"),
    ("We get 5. Check: 3+4=7", None),  # the last number of a text is not its answer
    ("I like 42", None),
    ("The answer is 42", None),
    (r"\boxed{4} Answer: 5", "4"),
    (r"Answer: 5 \boxed{}", ""),
    ("ANSWER: x=5", "x=5"),
    ("The answers: 5", None),
    ("", None),
]


@pytest.mark.parametrize(("response", "answer"), EXTRACTED)
def test_extraction(response, answer):
    assert extract_answer(response)[0] == answer


@pytest.mark.parametrize(
    ("options", "response", "answer"),
    [
        ({"thinking": "always"}, r"\boxed{5}", None),
        ({"thinking": "always"}, r"so 4 </think> \boxed{5}", "5"),
        ({"thinking": "never"}, r"<think>So \boxed{5}", "5"),
        ({"thinking": "never"}, r"<think>So \boxed{5}</think> nothing", "5"),
        ({"tail": 20}, r"\boxed{5}" + " " * 20, None),
        ({"tail": 20}, r"\boxed{5}" + " " * 5, "5"),
        ({"fallback": "prose"}, "Therefore the answer is 42.", "42"),
        ({"fallback": "prose"}, "so the sum is $3+4 = 7$ apples", "7"),
        ({"fallback": "prose"}, "It costs 12 dollars, and so 1,300.50 in all", "1,300.50"),
        ({"fallback": "prose"}, "no number here", None),
        ({"fallback": "bare"}, r"\frac{1}{2}", r"\frac{1}{2}"),
        ({"fallback": "bare"}, "no number here", "no number here"),
        ({"fallback": "bare"}, "The answer is (B).", "B"),
        ({"fallback": "bare"}, r"first \boxed{4}, then \boxed{5}", "5"),
        ({"fallback": "bare"}, "Final Answer: The final answer is $28 \\%$. I hope it is correct.", "28 \\%"),
    ],
)
def test_extraction_by_options(options, response, answer):
    assert extract_answer(response, MathOptions(**options)).text == answer


def test_boxes_side_by_side_are_one_list_where_gold_has_as_many_parts():
    row = r"The solutions are \boxed{1}, \boxed{2} and \boxed{3}."
    assert grade(row, "stop", "1,2,3").verdict == "correct"
    assert grade(row, "stop", "3").verdict == "correct"  # the last box decides
    assert grade(row, "stop", "1").verdict == "wrong"
    assert grade(row, "stop", "2,3").verdict == "wrong"
    assert grade(r"\boxed{1} no, wait, \boxed{2}", "stop", "1,2").verdict == "wrong"
    assert grade(r"\boxed{1} and then it follows that we have \boxed{2}", "stop", "1,2").verdict == "wrong"


def test_tolerance_is_an_option():
    loose = MathOptions(rel_tol=1e-2)
    pairs = [
        ("33.3", r"\frac{100}{3}"),
        ("3.14", r"\pi"),
        ("6630", "6630.65"),
        ("(0,1.5)", "(0,1.51)"),
        ("-2", "-1.99"),
    ]
    for gold, answer in pairs:
        assert equivalent(gold, answer)[0] == "wrong"
        assert equivalent(gold, answer, loose)[0] == "correct"
    assert equivalent("33.3", "34", loose)[0] == "wrong"
    assert equivalent("0", "0.001", loose)[0] == "wrong"


def test_percent_is_an_option():
    exact = MathOptions(percent="exact")
    assert equivalent("50", r"50\%")[0] == equivalent(r"50\%", "50")[0] == "correct"
    assert equivalent("50", r"50\%", exact)[0] == equivalent(r"50\%", "50", exact)[0] == "wrong"
    assert equivalent("0.5", r"50\%", exact)[0] == "correct"


@pytest.mark.parametrize(
    ("response", "gold", "verdict"),
    [  # what DAPO's released grader says, with its weaknesses
        ("Answer: 42", "42", "correct"),
        ("Answer: $42$", "42", "correct"),
        ("Answer: 1,000", "1000", "correct"),
        ("Answer: 5 cm", "5", "correct"),
        ("answer : x = 5", "5", "correct"),
        ("Answer: 4\nAnswer: 5", "5", "correct"),
        (r"Answer: \frac12", r"\frac{1}{2}", "correct"),
        ("Answer: 73.", "73", "wrong"),
        ("Answer: 0.5", r"\frac{1}{2}", "wrong"),
        (r"\boxed{42}", "42", "wrong"),
        ("Answer: 42" + "x" * 300, "42", "wrong"),
        ("**Answer:** 42", "42", "wrong"),
        ("Answer: points", "square", "correct"),
        ("Answer: 4=5", "5", "correct"),
    ],
)
def test_the_strict_dapo_rule(response, gold, verdict):
    assert REWARDS["dapo"](response, "stop", gold).verdict == verdict


def test_answer_line_is_graded():
    assert grade("Answer: 73.", "stop", "73").verdict == "correct"
    assert grade("Answer: 5 or 6", "stop", "5").verdict == "wrong"
    assert grade("no answer here", "length", "5").verdict == "wrong"


def test_the_order_of_arguments_matters():
    # a gold percentage takes the bare number; a bare share does not take a percentage
    assert equivalent(r"0.5\%", "0.5")[0] == "correct"
    assert equivalent("0.5", r"0.5\%")[0] == "wrong"


def test_a_formula_that_cannot_be_read_is_unknown_and_not_wrong():
    assert equivalent("x+1", r"\int_0^1 x^x dx") == ("unknown", "cannot read the formula")
    assert equivalent("7", r"2^{2^{2^{2^{2^2}}}}")[0] == "unknown"
    assert equivalent(r"\sqrt{2}", r"\sqrt{2}+10^{-80}")[0] == "unknown"  # a term that is too small to be seen


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
