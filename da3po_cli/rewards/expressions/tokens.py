"""A normalised formula as tokens: numbers, commands, letters and signs."""

from __future__ import annotations

import re

from da3po_cli.rewards.expressions.nodes import NotAnExpression

MAX_TOKENS = 1500


FUNCTIONS = {
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "arccot", "sinh", "cosh", "tanh", "coth",
    "arcsinh", "arccosh", "arctanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "ln", "log", "lg", "exp",
    "gcd", "lcm", "min", "max", "det", "Re", "Im", "arg", "sgn", "deg",
    "abs", "floor", "ceil", "ceiling", "factorial",
}  # fmt: skip
SYMBOLS = {
    "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu", "nu", "xi",
    "rho", "sigma", "tau", "upsilon", "phi", "chi", "psi", "omega", "Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi",
    "Sigma", "Upsilon", "Phi", "Psi", "Omega", "hbar", "nabla", "partial", "Im",
}  # fmt: skip

_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,6}(?![\d.a-zA-Z]))?)|(?P<command>\\[a-zA-Z]+)|(?P<word>[a-zA-Z]+)"
    r"|(?P<sign>[-+·/^(){}\[\]|!_',;=°%π∞…⌊⌋⌈⌉⟦⟧¦‖∧]))"
)


def tokens(text: str) -> list[str]:
    """The tokens of a normalised formula.

    Raises:
        NotAnExpression: a character that no formula has, a word, or too many tokens.
    """
    found: list[str] = []
    position = 0
    text = text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None or len(found) >= MAX_TOKENS:
            raise NotAnExpression(text[position : position + 10])
        word = match["word"]
        if word:
            found += _split_word(word)
        else:
            found.append(match[0].strip())
        position = match.end()
    return found


def _split_word(word: str) -> list[str]:
    """A function's name as a command, else a product of letters; a real word is no product."""
    if word in FUNCTIONS or word in ("sqrt", "cbrt", "binom", "binomial"):
        return ["\\" + ("binom" if word == "binomial" else word)]
    if word in SYMBOLS and len(word) > 2:
        return ["\\" + word]
    if len(word) > 5 or (len(word) > 3 and word.islower() and re.search("[aeiou]", word)):
        raise NotAnExpression(word)
    for name in FUNCTIONS:
        if len(word) > len(name) > 2 and word.endswith(name):  # x sin t written as xsin t
            return [*word[: -len(name)], "\\" + name]
    return list(word)
