"""One spelling for the many ways to write the same answer. Text in, text out; no mathematics here.

The result uses one character per structural sign, so that the readers behind it can scan instead of parse LaTeX:

    ≤ ≥ ≠ ≈ ≡ ∈ ∪ ∩ ∖ ± ∓ ∞ ∅ … ° π √ ·     relations, sets, signs (`·` is every multiplication sign)
    ⦃ ⦄                                       the braces of a set; { } only group
    ⟦a¦b‖c¦d⟧                                 a matrix: cells, rows
    ⌊ ⌋ ⌈ ⌉                                   floor, ceiling
    ﹠ ∨                                       the words "and" and "or"
    ＄                                         a dollar sign before an amount
    \\text{...}                               every text wrapper
    \\frac \\sqrt \\sin ...                     all other commands as they are

Every pattern is linear in the length of the text.
"""

# ruff: noqa: RUF001 (the characters that look like others are the point)

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "×": "·", "⋅": "·", "∙": "·", "•": "·", "÷": "/", "∕": "/",
        "⁄": "/", "º": "°", "˚": "°", "∣": "|", "′": "'", "″": "''", "’": "'", "‘": "'", "“": '"', "”": '"', "`": "'",
        "⩽": "≤", "⩾": "≥", "≦": "≤", "≧": "≥", "∼": "≈", "⟨": "(", "⟩": ")", "〈": "(", "〉": ")", "∶": ":",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u200b": "", "\ufeff": "", "\u2061": "", "\u2062": "",
        "\x00": "", "，": ",", "、": ",", "；": ";", "。": ".", "（": "(", "）": ")", "⋯": "…",
        "½": r" 1/2 ", "⅓": " 1/3 ", "⅔": " 2/3 ", "¼": " 1/4 ", "¾": " 3/4 ", "⅕": " 1/5 ", "⅖": " 2/5 ",
        "⅗": " 3/5 ", "⅘": " 4/5 ", "⅙": " 1/6 ", "⅚": " 5/6 ", "⅛": " 1/8 ", "⅜": " 3/8 ", "⅝": " 5/8 ", "⅞": " 7/8 ",
        "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "ε": r"\epsilon ", "θ": r"\theta ",
        "λ": r"\lambda ", "μ": r"\mu ", "µ": r"\mu ", "ρ": r"\rho ", "σ": r"\sigma ", "τ": r"\tau ", "φ": r"\phi ",
        "ω": r"\omega ", "Δ": r"\Delta ", "Ω": r"\Omega ", "ψ": r"\psi ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}",
        "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}",
    }
)  # fmt: skip
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+")
_SUBSCRIPT = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_PLAIN = re.compile(r"[-+]?[0-9]*\.?[0-9]*")

_COMMANDS = {
    **dict.fromkeys(["le", "leq", "leqslant", "leqq"], "≤"), **dict.fromkeys(["ge", "geq", "geqslant", "geqq"], "≥"),
    **dict.fromkeys(["ne", "neq", "not="], "≠"), **dict.fromkeys(["approx", "simeq", "thickapprox"], "≈"),
    "lt": "<", "gt": ">", "equiv": "≡", "in": "∈", "cup": "∪", "bigcup": "∪", "cap": "∩", "setminus": "∖",
    "backslash": "∖", "pm": "±", "mp": "∓", "infty": "∞", "emptyset": "∅", "varnothing": "∅", "O": "∅",
    **dict.fromkeys(["ldots", "cdots", "dots", "dotsc", "dotsb", "hdots"], "…"),
    **dict.fromkeys(["cdot", "times", "ast", "bullet"], "·"), "div": "/", "pi": "π", "degree": "°", "colon": ":",
    **dict.fromkeys(["lbrace", "{"], "⦃"), **dict.fromkeys(["rbrace", "}"], "⦄"),
    "lfloor": "⌊", "rfloor": "⌋", "lceil": "⌈", "rceil": "⌉", "langle": "(", "rangle": ")", "lbrack": "[",
    "rbrack": "]", "lparen": "(", "rparen": ")",
    **dict.fromkeys(["mid", "vert", "lvert", "rvert", "|", "Vert"], "|"), "prime": "'", "wedge": "∧", "land": "﹠",
    "lor": "∨", "vee": "∨", "%": "%", "$": "$", "&": "&", "#": "#", "_": "_", "lnot": "¬",
    **dict.fromkeys(
        [
            "left", "right", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr", "biggl", "biggr", "Biggl",
            "Biggr", "middle", "displaystyle", "textstyle", "scriptstyle", "limits", "nolimits", "(", ")", "[", "]",
            "hline", "noindent", "bf", "rm", "it", "nonumber", "dispalystyle", "boldsymbol", "bm",
        ],
        "",
    ),
    **dict.fromkeys([",", ";", ":", " ", "!", ">", "quad", "qquad", "enspace", "thinspace", "hfill"], " "),
    **dict.fromkeys(["dfrac", "tfrac", "cfrac", "sfrac", "nicefrac"], r"\frac "),
    **dict.fromkeys(["dbinom", "tbinom"], r"\binom "), "lbrack ": "[", "varphi": r"\phi ", "varepsilon": r"\epsilon ",
    "vartheta": r"\theta ", "ell": "l", "arcsin": r"\arcsin ", "colonequals": "=", "implies": "=", "ln": r"\ln ",
}  # fmt: skip
_COMMAND = re.compile(r"\\(?:[a-zA-Z]+|.)[ \t]*", re.DOTALL)
_WRAPPER = re.compile(
    r"\\(text|textbf|textit|textrm|texttt|textsf|textnormal|emph|mathrm|mathbf|mathit|mathsf|mathtt|mbox|hbox|"
    r"operatorname\*?|boxed|fbox|mathop|mathbb|mathcal|underline|displaylines|ensuremath|bold)[ ]*\{"
)
_ENVIRONMENT = re.compile(r"\\(begin|end)[ ]*\{([a-zA-Z]+)\*?\}(?:[ ]*\{[clr|]*\})?")
_ESCAPED_TWICE = re.compile(
    r"(?<!\\)\\\\(?=(?:d?frac|sqrt|left|right|pi|text|begin|end|cdot|times|infty|le|ge|leq|geq|circ|boxed|theta|pm|in|cup|"
    r"sin|cos|tan|ln|log)(?![a-zA-Z]))"
)
_CONTROL = re.compile("\x0c(?=rac)|\x08(?=egin|oxed|inom|eta)|\t(?=ext|imes|heta|frac)")
_LETTERS = {"\x0c": r"\f", "\x08": r"\b", "\t": r"\t"}

_Rewrite = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]


def _rewrites(*pairs: tuple[str, str | Callable[[re.Match[str]], str]]) -> list[_Rewrite]:
    return [(re.compile(pattern), to) for pattern, to in pairs]


def _joined(match: re.Match[str]) -> str:
    return match[0].replace(" ", "")


# before the commands are translated: what needs their original spelling
_EARLY = _rewrites(
    (r"\\(?:textcolor|colorbox)[ ]*(?:\[[^\[\]]*\][ ]*)?\{[^{}]*\}|\\color[ ]*\{[^{}]*\}", ""),
    # thousands: 1\,000  1{,}000  1,\!000
    (r"(?<=\d)[ ]?(?:\\,|\\!|\{[ ]?,[ ]?\}(?:\\!)?|,[ ]?\\!|\\;|\\ |~)[ ]?(?=\d{3}(?!\d))", ""),
    (r"(?<=\d)\\[ ,](?=\d)", " "),
    (r"(?<=\d),\{(?=\d{3}\})", "{"),
    (r"(?<=\d)\{, ?\}(?=\d)", ","),
    (r"\\\$|US\$|(?<![\w}])\$(?=\d[\d,]*(?:\.\d+)?$)", "＄"),
    (
        r"\^[ ]*\{?[ ]*\\(?:circ|degree)[ ]*\}?[ ]*(?:\\text|\\mathrm)?[ ]*\{?[ ]*([CF])(?![a-z])[ ]*\}?",
        r" \\text{deg\1} ",
    ),
    (r"\^[ ]*(?:\{[ ]*\\(?:circ|degree)[ ]*\}|\\(?:circ|degree)(?![a-zA-Z]))", "°"),
    (r"\^[ ]*\{[ ]*((?:\\prime[ ]*|'){1,3})\}", lambda m: "'" * (m[1].count("p") + m[1].count("'"))),
    (r"\^[ ]*\\prime(?![a-zA-Z])", "'"),
    (r"\\not[ ]*(?:=|\\equiv)", "≠"),
    (r"\\not[ ]*\\in(?![a-z])|\\notin(?![a-z])", "∉"),
    (r"\\(?:p?mod|bmod)[ ]*\{([^{}]*)\}", r" mod \1"),
    (r"\\[pb]?mod(?![a-z])", " mod "),
    (r"\\(?:[vh]space|hskip|phantom|label|tag)\*?[ ]*\{[^{}]*\}", ""),
)  # fmt: skip
# after it
_LATE = _rewrites(
    (r"[$]", ""),
    (r"(?<![a-zA-Z\\])and(?![a-zA-Z])|&", "﹠"),
    (r"(?<![a-zA-Z\\])or(?![a-zA-Z])", "∨"),
    (r"~", " "),
    (r"<=|=<|⇐", "≤"),
    (r">=|=>", "≥"),
    (r"!=|<>", "≠"),
    (r"\*\*", "^"),
    (r"\*", "·"),
    (r"\.\.\.+", "…"),
    (r"\+-|\+/-", "±"),
    (r"\+[ ]?(?=∞)", ""),
    (r"(?<![\w\\])(?:np|math|numpy|sympy|sp)\.(?=[a-zA-Z])", ""),
    (r"(?<![a-zA-Z\\])(?:pi|PI|Pi)(?![a-zA-Z])", "π"),
    (r"(?<![a-zA-Z\\])(?:infinity|Infinity|infty|inf|oo)(?![a-zA-Z])", "∞"),
    (r"\+[ ]?(?=∞)", ""),
    (r"√", r"\\sqrt "),
    (r"⦃[ ]*⦄", "∅"),
    (r"(?<![\d,.])(\d{1,3})((?: \d{3})+)(?![\d ,])", _joined),  # 1 000 000
    (r"(?<=\d)[ ]?,[ ]+(?=\d{3}(?!\d))", ";"),  # 32, 349 is a list; 32,349 is not
    (r"(?<![A-Za-z\\])([A-Za-z])\{[ ]*\(([^(){}]*)\)[ ]*\}", r"\1(\2)"),  # f{\left(x\right)}
    (r"_\{[ ]*(\w)[ ]*\}", r"_\1"),
    (r"\s+", " "),
    (r"(?<=[=<>≤≥≠≈∈∪∩∖±·,;:(\[⦃⌊⌈|^/+﹠∨-])[ ]|[ ](?=[=<>≤≥≠≈∈∪∩∖±·,;:)\]⦄⌋⌉^/+!'﹠∨-])", ""),
)


def normalise(answer: str) -> str:
    """Rewrite an extracted or gold answer to the spelling that the readers expect."""
    if _PLAIN.fullmatch(answer):
        return answer
    text = answer.strip().translate(_UNICODE)
    if text[:2] == text[-2:] == "**":
        text = text.strip("*")
    if not text.isascii():
        text = _SUPERSCRIPT.sub(lambda m: "^{" + unicodedata.normalize("NFKC", m[0]).replace("−", "-") + "}", text)
        text = _SUBSCRIPT.sub(lambda m: "_{" + unicodedata.normalize("NFKC", m[0]) + "}", text)
        text = unicodedata.normalize("NFKC", text.replace("…", "\x01").replace("°", "\x02")).translate(_UNICODE)
        text = text.replace("\x01", "…").replace("\x02", "°")
    text = _CONTROL.sub(lambda m: _LETTERS[m[0]], text)
    if _ESCAPED_TWICE.search(text):
        text = text.replace("\\\\", "\\")
    for pattern, to in _EARLY:
        text = pattern.sub(to, text)
    text = _environments(text)
    text = _wrappers(text)
    text = _COMMAND.sub(_command, text)
    for pattern, to in _LATE:
        text = pattern.sub(to, text)
    return _trimmed(text)


def _command(match: re.Match[str]) -> str:
    name = match[0][1:].rstrip(" \t") or " "
    if name in _COMMANDS:
        return _COMMANDS[name]
    if name in ("\\", "\n"):
        return " "
    return match[0] if name[0].isalpha() else name


def _trimmed(text: str) -> str:
    before = None
    while text != before:
        before = text
        text = text.strip(' \t\n"').rstrip(".,;: \\")
        if len(text) > 2 and text[0] == text[-1] and text[0] in "*_'":
            text = text.strip(text[0])
    return text


def _environments(text: str) -> str:
    """Matrices and arrays in ⟦¦‖⟧; cases and aligned lines separated by `;`."""
    if r"\begin" not in text:
        return text
    text = text.replace(r"\hline", "")
    out: list[str] = []
    stack: list[str] = []
    position = 0
    for match in _ENVIRONMENT.finditer(text):
        out.append(_cells(text[position : match.start()], stack[-1] if stack else ""))
        position = match.end()
        kind = match[2]
        if match[1] == "begin":
            stack.append(kind)
            out.append({"vmatrix": "|⟦", "cases": "", "Vmatrix": "|⟦"}.get(kind, "⟦" if _is_matrix(kind) else ""))
        elif stack:
            stack.pop()
            out.append({"vmatrix": "⟧|", "cases": "", "Vmatrix": "⟧|"}.get(kind, "⟧" if _is_matrix(kind) else ""))
    out.append(_cells(text[position:], stack[-1] if stack else ""))
    return re.sub(r"‖\s*⟧", "⟧", "".join(out))


def _is_matrix(kind: str) -> bool:
    return kind.endswith("matrix") or kind == "array"


def _cells(text: str, kind: str) -> str:
    if _is_matrix(kind):
        return text.replace("\\\\", "‖").replace("&", "¦")
    return text.replace("\\\\", " ; ").replace("&", " ") if kind else text


def _wrappers(text: str) -> str:
    r"""`\text{..}` for all text wrappers; those around one letter, a number or mathematics go, and so do boxes."""
    out: list[str] = []
    position = 0
    while match := _WRAPPER.search(text, position):
        end = closing(text, match.end() - 1)
        if end is None:
            break
        out.append(text[position : match.start()])
        out.append(_unwrapped(match[1], text[match.end() : end].strip()))
        position = end + 1
    return "".join(out) + text[position:]


_SYMBOLIC = re.compile(r"\\[a-zA-Z]|[\d^_=+]")


def _unwrapped(kind: str, inner: str) -> str:
    if kind in ("boxed", "fbox", "underline", "ensuremath", "displaylines"):
        return f" {_wrappers(inner)} "
    if kind in ("mathbb", "mathcal"):
        return rf"\mathbb{{{inner}}}"
    if kind.startswith("operatorname") or kind == "mathop":
        return rf"\{inner} " if inner.isalpha() else inner
    inner = inner.replace("~", " ").strip()
    if inner in ("or", "and", "if", "for", "where", "when", "mod") or (inner.strip(" ,;.") in ("or", "and")):
        return f" {inner} "
    joint = re.fullmatch(r"(.*?[^\s,;])??[\s,;]*\b(and|or)", inner, re.DOTALL) or re.fullmatch(r"()(and|or)\b.*", inner)
    if joint and joint[1]:
        return rf"\text{{{joint[1]}}} {joint[2]} "
    if joint:
        rest = inner[len(joint[2]) :].strip()
        return rf" {joint[2]} \text{{{rest}}}"
    if kind in ("mathrm", "mathbf", "mathit", "mathsf", "bold") and (
        len(inner) == 1 or inner in ("sin", "cos", "ln", "i")
    ):
        return inner if len(inner) == 1 else rf"\{inner} "
    if inner.startswith("(") and inner.endswith(")") and len(inner) == 3:
        return inner
    if _SYMBOLIC.search(inner) or not re.search("[a-zA-Z]", inner):
        return f" {_wrappers(inner)} "
    return rf"\text{{{inner}}}"


def closing(text: str, start: int) -> int | None:
    """The position of the brace that closes the one at `start`; None if there is none."""
    depth = 0
    position = start
    while position < len(text):
        char = text[position]
        if char == "\\":
            position += 1
        elif char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return None
