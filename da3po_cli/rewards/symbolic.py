"""Symbolic equality by math-verify, behind a gate that lets only small expressions through.

sympy can take minutes or all memory over a short text, and a time-out by signal works in the main thread only. So a
text must pass a whitelist of commands and caps on length, nesting, exponents and digits before sympy sees it.
"""

from __future__ import annotations

import logging
import re

from da3po_cli.algos.types import Verdict

MAX_LENGTH = 120
MAX_NESTING = 4
MAX_EXPONENT = 12
MAX_DIGITS = 12
MAX_POWERS = 6  # powers and roots together

_COMMANDS = {
    "frac", "sqrt", "pi", "cdot", "times", "div", "pm", "infty", "le", "ge", "ne", "cup", "cap", "log", "ln", "exp",
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan",
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "kappa", "lambda", "mu", "nu", "xi", "rho",
    "sigma", "tau", "phi", "chi", "psi", "omega", "Delta", "Gamma", "Lambda", "Omega", "Phi", "Psi", "Sigma", "Theta",
}  # fmt: skip
_ALLOWED = re.compile(r"(?:[0-9a-zA-Z+\-*/^(){}\[\].,=<>| ]|\\[a-zA-Z]+)*")
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_EXPONENT = re.compile(r"\^(?:\{(?:[-+/a-z0-9() ]{1,12}|-?\\frac\{[a-z0-9]{1,2}\}\{[a-z0-9]{1,2}\})\}|\d|[a-z])")
_WORD = re.compile(r"(?<!\\)(?<![a-zA-Z])[a-zA-Z]{3,}")


def symbolic_verdict(gold: str, given: str) -> tuple[Verdict, str]:
    """Compare two normalised answers by math-verify; the verdict and its rule.

    "wrong" when the given answer is no mathematics (words), "unknown" when either may be but is outside the gate, or
    when math-verify fails.
    """
    for text in (gold, given):
        if _WORD.search(text) or not re.search(r"[0-9\\+*/^=<>-]|^[a-zA-Z]$", text):
            return "wrong", "words differ"
    if not (within_gate(gold) and within_gate(given)):
        return "unknown", "outside the symbolic gate"
    if gold.count("=") != given.count("="):
        return "wrong", "equation against value"
    try:
        return ("correct" if _verify(gold, given) else "wrong"), "math-verify"
    except Exception as error:  # sympy raises almost anything; each becomes a counted "unknown"
        return "unknown", f"math-verify raised {type(error).__name__}"


def within_gate(text: str) -> bool:
    """Whether sympy may see this text."""
    if len(text) > MAX_LENGTH or not _ALLOWED.fullmatch(text):
        return False
    if any(command not in _COMMANDS for command in _COMMAND.findall(text)):
        return False
    if re.search(rf"\d{{{MAX_DIGITS + 1}}}", text) or text.count("^") + text.count(r"\sqrt") > MAX_POWERS:
        return False
    exponents = list(_EXPONENT.finditer(text))
    if len(exponents) != text.count("^"):
        return False
    if any(int(number) > MAX_EXPONENT for match in exponents for number in re.findall(r"\d+", match[0])):
        return False
    depth = deepest = 0
    for char in text:
        depth += (char in "({[") - (char in ")}]")
        deepest = max(deepest, depth)
    return deepest <= MAX_NESTING


def _verify(gold: str, given: str) -> bool:
    from latex2sympy2_extended import NormalizationConfig  # here: importing sympy takes a second
    from math_verify import LatexExtractionConfig, parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns that there is no time-out; see the gate
    # In a box, since a bare gold answer is half-parsed: `2\sqrt{3}` would become 2. Zero seconds: no signal, no limit.
    spelling = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
    )
    configs = [LatexExtractionConfig(normalization_config=spelling)]
    gold_parsed, given_parsed = (
        parse(rf"\boxed{{{text}}}", extraction_config=configs, parsing_timeout=0, raise_on_error=True)
        for text in (gold, given)
    )
    return verify(gold_parsed, given_parsed, float_rounding=12, timeout_seconds=0, raise_on_error=True)
