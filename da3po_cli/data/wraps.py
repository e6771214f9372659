"""The answer instructions that published rows carry around their problem."""

from __future__ import annotations

# The instruction of DAPO's public data set (BytedTsinghua-SIA/DAPO-Math-17k).
DAPO_PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'
BOXED_SUFFIX = "\nPlease reason step by step, and put your final answer within \\boxed{}."

_KNOWN = (
    (DAPO_PREFIX, DAPO_SUFFIX),
    ("", BOXED_SUFFIX),
    ("", " Let's think step by step and output the final answer within \\boxed{}."),
    ("", ' Let\'s think step by step and output the final answer after "####".'),
)


def bare_problem(text: str) -> str:
    """The problem without the answer instruction of a published data set."""
    for prefix, suffix in _KNOWN:
        if text.startswith(prefix) and text.endswith(suffix):
            return text[len(prefix) : len(text) - len(suffix)]
    return text
