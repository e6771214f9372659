"""Which part of a response is its answer. One function owns this; nothing else looks for boxes."""

# ruff: noqa: RUF001 (see normalise)

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from da3po_cli.rewards.reading.normalise import closing
from da3po_cli.rewards.types import MathOptions

MAX_BARE = 200  # characters of a response that can be an answer as a whole
MAX_GAP = 45  # characters between boxes that stand side by side

_BOX = re.compile(r"\\(?:boxed|fbox)(?![a-zA-Z])")
_BRACE = re.compile(r"[ \t]*\n?[ \t]*\{")
_BARE_BOX = re.compile(r"\s*([^\s{}$.,;\\]+)")
_ANSWER_LINE = re.compile(r"(?i)(?<![a-z])answer(?: is)?[*_\"' \t]{0,6}[:：][*_ \t]{0,6}(?:\n\s{0,9})?(\S[^\n]*)")
_SPECIAL = re.compile(r"<\|[^|<>\n]{1,40}\|>|</?(?:s|answer|eos|eot|pad)>")
_GAP_SIGNS = re.compile(
    r"\\(?:text|mathrm|quad|qquad|left|right|[,;:! \[\]()])|[\s$,;.{}\\()\[\]=&]|\b[a-zA-Z](?:_\{?\w\}?)?\s*="
)
_JOINT = re.compile(r"[,;]|\band\b|\bor\b|&|\\q?quad")


class Found(NamedTuple):
    """An answer and the rule that found it; `side_by_side` holds the last boxes of a row."""

    text: str | None
    rule: str
    side_by_side: tuple[str, ...] = ()


def extract_answer(response: str, options: MathOptions | None = None) -> Found:
    """The answer that a response commits to.

    Only text after the last `</think>` counts; a `<think>` that is never closed leaves no answer. There, the last
    box decides (`\\boxed{..}`, `\\fbox{..}`, `\\boxed 5`): one that is cut off gives no answer, not an earlier box.
    Without any box, the last line `Answer: ...` does. The last number of a text is never taken for its answer, unless
    `options.fallback` says so.
    """
    options = options or MathOptions()
    text = final_segment(response, options)
    if text is None:
        return Found(None, "unfinished thinking")
    boxes = list(_BOX.finditer(text))
    lines = list(_ANSWER_LINE.finditer(text))
    prose = options.fallback != "none"
    if boxes and not (prose and lines and lines[-1].start() > _end_of(text, boxes[-1])):
        return _out_of_prose(_boxed(text, boxes), options) if prose else _boxed(text, boxes)
    if lines:
        return Found(_plain(lines[-1][1], prose=prose), "answer line")
    if options.fallback != "none":
        return _fallback(text, options.fallback)
    return Found(None, "no answer")


def final_segment(response: str, options: MathOptions) -> str | None:
    """What counts of a response, without special tokens; None when it is still thinking."""
    text = _SPECIAL.sub("", response)
    if options.thinking != "never":
        _, closed, tail = text.rpartition("</think>")
        if not closed and ("<think>" in tail or options.thinking == "always"):
            return None
        text = tail if closed else text
    return text if options.tail is None else text[-options.tail :]


def gold_answer(gold: str) -> tuple[str, ...]:
    """The answer in a gold text, bare, boxed or at the end of a solution; boxes side by side are its parts."""
    boxes = list(_BOX.finditer(gold))
    if not boxes:
        if (len(gold) > MAX_BARE or "answer is" in gold) and (found := _sentence(gold)):
            return (found,)
        return (gold,)
    found = _boxed(gold, boxes)
    return found.side_by_side or ((found.text,) if found.text is not None else (gold,))


def _boxed(text: str, boxes: list[re.Match[str]]) -> Found:
    last = box_content(text, boxes[-1].end())
    if last is None:
        return Found(None, "box cut off")
    content, _ = last
    row = [content]
    for box, following in zip(reversed(boxes[:-1]), reversed(boxes[1:]), strict=True):
        before = box_content(text, box.end())
        if before is None or not _is_joint(text[before[1] : following.start()]):
            break
        row.insert(0, before[0])
        if len(row) > 20:
            break
    return Found(content, "last box", tuple(row) if len(row) > 1 else ())


def _is_joint(gap: str) -> bool:
    """Whether two boxes with this text between them are one list."""
    if len(gap) > MAX_GAP:
        return False
    left = _GAP_SIGNS.sub(" ", gap)
    words = re.findall(r"[A-Za-z]+", left)
    others = [word for word in words if word not in ("and", "or")]
    if any(word in ("then", "so", "not", "but", "wait", "no", "thus", "actually", "hence") for word in others):
        return False
    return bool(_JOINT.search(gap)) and len(others) <= 3 and not re.search(r"\d", re.sub(r"_\{?\d+\}?", "", gap))


def _end_of(text: str, box: re.Match[str]) -> int:
    content = box_content(text, box.end())
    return len(text) if content is None else content[1]


def box_content(text: str, start: int) -> tuple[str, int] | None:
    """What follows `\\boxed` at `start` and where it ends: balanced braces, or one bare token; None if cut off."""
    braces = _BRACE.match(text, start)  # LaTeX skips blanks and a line break before an argument
    if braces is None:
        bare = _BARE_BOX.match(text, start)
        return (bare[1], bare.end()) if bare else None
    end = closing(text, braces.end() - 1)
    return None if end is None else (text[braces.end() : end], end + 1)


# -- answers in prose

_MATH = re.compile(r"\$\$([^$]+)\$\$|(?<!\\)\$((?:[^$\\]|\\.)+)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_NUMBER = re.compile(
    r"[-+−]?[$€£]?(?:\\frac\{\d+\}\{\d+\}|\d+(?:,\d{3})+(?:\.\d+)?|\d+(?:[.,]\d+)?(?: ?/ ?\d+)?|\.\d+)"
    r"(?: ?\\?%| ?percent| ?pct)?"
)
_PHRASE = re.compile(
    r"(?is)(?:answer|result|solution|value|total|réponse|答案)[^.:\n]{0,60}?"
    r"(?: is|:|est|：|是)(?: for sure)?[:\s]*(.{1,300})"
)
_STATEMENT = re.compile(r"(?:therefore|thus|hence|so|find that|is)\b[,:]?\s*(.{1,200})", re.IGNORECASE | re.DOTALL)
_HOPE = re.compile(r"(?i)\.?\s*I hope (?:it|this) is correct.*", re.DOTALL)


def _out_of_prose(found: Found, options: MathOptions) -> Found:
    """A box that holds a sentence: the answer in the sentence."""
    text = found.text or ""
    if not text.strip() or (is_bare(text) and not _ANSWER_LINE.search(text)):
        return found
    inner = extract_answer(text, replace(options, fallback="bare"))
    return found if inner.text is None else found._replace(text=inner.text)


def is_bare(text: str) -> bool:
    """Whether a text is an answer and nothing else: short, and no sentence."""
    return len(text) <= MAX_BARE and not _is_prose(text) and _choice(text) is None


def _fallback(text: str, how: str) -> Found:
    text = text[-20_000:].strip()
    if how == "bare" and is_bare(text):
        return Found(text, "whole text")
    letter = _choice(text)
    if letter is not None:
        return Found(letter, "choice")
    found = _sentence(text)
    if found is not None:
        return Found(found, "sentence")
    formulas = [match for match in _MATH.finditer(text) if _is_formula(_inside(match))]
    numbers = [match for match in _NUMBER.finditer(text) if re.search(r"\d", match[0])]
    if formulas and not (numbers and numbers[-1].start() > formulas[-1].end()):
        return Found(_last_side(_inside(formulas[-1])), "last formula")
    if numbers:
        return Found(numbers[-1][0], "last number")
    return Found(text, "whole text") if how == "bare" and len(text) <= MAX_BARE else Found(None, "no answer")


_CHOICES = [
    re.compile(r"\(?([A-J])\)?(?:[.,:。)]\s*(?=[a-z])|[.。:)]?\s*(?=[^\x00-\x7f])).*", re.DOTALL),
    re.compile(
        r"(?is).*(?:answer|choice|option|réponse|答案)\W{0,4}(?:is|est|是|:)?(?: for sure)?\W{0,4}"
        r"\(?(?-i:([A-J]))(?:\W|$).*"
    ),
    re.compile(r"(?is).*\b(?:it's|it is|c'est|choose|pick|select|must be)\s\(?(?-i:([B-J]|A(?!\s[a-z])))(?:\W|$).*"),
]


def _choice(text: str) -> str | None:
    """The letter that a short text without formulas and numbers chooses."""
    if len(text) > MAX_BARE or re.search(r"[\d$\\=+^]", text):
        return None
    found = [match[1] for pattern in _CHOICES if (match := pattern.fullmatch(text))]
    return found[0] if found else None


def _is_formula(text: str) -> bool:
    bare = re.sub(r"\\[a-zA-Z]+(?:\{[a-zA-Z ]*\})?", " ", text)
    return all(word.lower() in _MATH_WORDS for word in re.findall(r"[a-z]{4,}", bare))


_OTHER_SCRIPT = re.compile("[\u3040-\u30ff\u4e00-\u9fff\u0600-\u06ff\u0900-\u097f]")
_WORDS = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{2,}")
_MATH_WORDS = {
    "sqrt", "sin", "cos", "tan", "log", "ln", "exp", "pi", "and", "or", "begin", "end", "pmatrix", "frac", "arcsin",
    "arccos", "arctan", "infinity", "bmatrix", "matrix", "array", "cases", "left", "right", "sec", "csc", "cot", "np",
}  # fmt: skip


def _is_prose(text: str) -> bool:
    """Whether a text is a sentence around an answer: several words outside of `\\text{}`, or a mix with a formula."""
    bare = re.sub(r"\\(?:text|mathrm|textbf|mbox|operatorname|begin|end)\s*\{[^{}]*\}", " ", text)
    if _OTHER_SCRIPT.search(bare):
        return bool(re.search(r"\d", bare))
    if re.match(r"[A-Za-zÀ-ÿ ]+ ?: *(?:\$|\d)", bare):  # a label before the answer
        return True
    words = [word for word in _WORDS.findall(bare) if word.lower() not in _MATH_WORDS]
    if re.search(r"(?i)\b(?:is|answer|the|therefore|thus|hence|so|find|est|when|here)\b", bare):
        return bool(re.search(r"\d|\$|\\", text))
    return len(words) >= 3 and bool(re.search(r"\d", bare))


def _sentence(text: str) -> str | None:
    """X of the last "the answer is X"; a formula or number in X is taken alone."""
    text = _HOPE.sub("", text)
    matches = list(_PHRASE.finditer(text))
    if not matches:
        return None
    return _lead(matches[-1][1])


def _lead(text: str) -> str:
    """The answer at the beginning of a clause: its first formula when it starts with one, else up to its end."""
    text = text.strip().lstrip('*_: "\\' if text.strip().startswith('\\"') else '*_: "')
    formula = _MATH.match(text)
    if formula and re.match(r"(?:\s*(?:,|and|or|\$[^$]*\$)){2,}\W*$", text[formula.end() :]):
        return text
    if formula:
        inner = _inside(formula)
        unit = re.match(r"\s*(percent|pct|\\?%)", text[formula.end() :])
        return _last_side(inner) + (unit[1] if unit else "")
    clause = re.split(r"\.\s|\.$|\n|(?<=\w), (?=[a-z])|, it\b", text, maxsplit=1)[0].strip()
    verb = list(re.finditer(r"\b(?:is|are|equals|est)\b", clause))
    if verb and clause[verb[-1].end() :].strip():
        return _lead(clause[verb[-1].end() :])
    inside = list(_MATH.finditer(clause))
    if inside:
        return _last_side(_inside(inside[-1]))
    choice = re.match(r"(?:for sure )?\(?([A-E])\)?(?=\W|$)", clause)
    if choice and not clause[choice.end() :].strip().startswith(("+", "-", "=", "^", "_")):
        return choice[1]
    numbers = list(_NUMBER.finditer(clause))
    if numbers and (_WORDS.search(clause) or _OTHER_SCRIPT.search(clause)):
        return numbers[-1][0]
    return clause


def _last_side(formula: str) -> str:
    """`5 + 4 = 9` in running text states 9."""
    left, equals, right = formula.rpartition("=")
    is_sum = equals and not re.search(r"(?<![\\a-zA-Z])[a-zA-Z]", re.sub(r"\\[a-zA-Z]+", "", left))
    return (right if is_sum and not left.endswith(("<", ">", "!", "\\")) else formula).strip()


def _inside(match: re.Match[str]) -> str:
    """The formula between its delimiters."""
    return next(filter(None, match.groups()))


def _plain(line: str, *, prose: bool) -> str:
    """An answer line without markdown, quotes and the full stop; with `prose`, its sentence is read too."""
    line = _HOPE.sub("", line).strip().strip("*_` ").rstrip(".").strip("*_` ")
    line = re.sub(r"\*\*(.+?)\*\*", r"\1", line)
    for mark in ('"', "'"):
        if len(line) > 1 and line.startswith(mark) and line.endswith(mark):
            line = line[1:-1]
    if prose and (letter := _choice(line)):
        return letter
    if prose and _is_prose(line):
        return _sentence(line) or _lead(line)
    return line.strip()
