"""A normalised formula as a tree. The grammar is a whitelist: what it does not know is no expression.

    sum      product (("+" | "-") product)*
    product  factor (("·" | "/" | nothing) factor)*
    factor   ("-" | "+")* postfix ("^" exponent)?
    postfix  atom ("!" | "°" | "%")*
    atom     number | symbol | (sum) | {sum} | |sum| | ⌊sum⌋ | ⌈sum⌉ | \\frac ab | \\sqrt[n]a | function argument
             | matrix

`2x` is a product and `3\\frac{1}{2}` is a mixed number; two numbers side by side (`3 4`) are no expression.
"""

from __future__ import annotations

from fractions import Fraction

from da3po_cli.rewards.expressions.nodes import Node, NotAnExpression, continued, number, read_number, repeating
from da3po_cli.rewards.expressions.tokens import FUNCTIONS, SYMBOLS, tokens

MAX_DEPTH = 40

_ACCENTS = {"hat", "vec", "tilde", "bar", "overline", "dot", "ddot", "widehat", "overrightarrow", "widetilde"}
_APPLIED = set("fghFGHPuvy")  # letters that are functions when a bracket follows


def parse(text: str) -> Node:
    """The tree of a normalised text.

    Raises:
        NotAnExpression: it is something else, or too large.
    """
    parser = _Parser(text)
    node = parser.sum()
    if parser.peek:
        raise NotAnExpression(f"left over: {parser.peek}")
    return node


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [*tokens(text), ""]
        self._at = 0
        self._depth = 0
        self._bars = 0  # of absolute values that are open

    @property
    def peek(self) -> str:
        return self._tokens[self._at]

    def take(self, expected: str | None = None) -> str:
        token = self._tokens[self._at]
        if not token or (expected is not None and token != expected):
            raise NotAnExpression(f"{token!r} instead of {expected!r}")
        self._at += 1
        return token

    def sum(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotAnExpression("nested too deeply")
        terms = [self._product()]
        while self.peek in ("+", "-"):
            minus = self.take() == "-"
            term = self._product()
            terms.append(Node("neg", (term,)) if minus else term)
        self._depth -= 1
        return terms[0] if len(terms) == 1 else Node("+", tuple(terms))

    def _product(self) -> Node:
        result = self._factor()
        while True:
            if self.peek == "·":
                self.take()
                result = Node("*", (result, self._factor()))
            elif self.peek == "/":
                self.take()
                result = Node("/", (result, self._factor()))
            elif self.peek == r"\over":
                self.take()
                return Node("/", (result, self.sum()))
            elif self._starts_factor(result):
                result = Node("*", (result, self._factor()))
            else:
                return result

    def _starts_factor(self, before: Node) -> bool:
        token = self.peek
        if token == "|":
            return self._bars == 0
        if not token or token in ")]}⌋⌉⟧¦‖,;=+-^!_'°%…∧":
            return False
        if token[0].isdigit() or token[0] == ".":
            last = self._tokens[self._at - 1]
            raised = self._tokens[self._at + 1] == "^"
            after_power = self._at >= 2 and self._tokens[self._at - 2] == "^"
            if last[0].isdigit() and not (raised and after_power):
                raise NotAnExpression("numbers side by side")  # 2^6 3^5 is a product, 3 4 is not
            if before.op == "symbol" and not raised:
                raise NotAnExpression("a number behind a symbol")  # n 2^k is a product, x 2 may be x_2
        return token != r"\over"

    def _factor(self) -> Node:
        sign = 1
        while self.peek in ("+", "-"):
            sign = sign if self.take() == "+" else -sign
        node = self._power(self._postfix(self._atom()))
        return node if sign == 1 else Node("neg", (node,))

    def _power(self, base: Node) -> Node:
        if self.peek != "^":
            return base
        self.take()
        return self._postfix(Node("^", (base, self._exponent())))

    def _exponent(self) -> Node:
        sign = 1
        while self.peek in ("+", "-"):
            sign = sign if self.take() == "+" else -sign
        node = self._power(self._atom())
        return node if sign == 1 else Node("neg", (node,))

    def _postfix(self, node: Node) -> Node:
        while self.peek in ("!", "°", "%"):
            token = self.take()
            if token == "!":
                node = Node("!", (node,))
            elif token == "%":
                node = Node("/", (node, number(100)))
            else:
                node = Node("*", (node, Node("/", (Node("symbol", (), "π"), number(180)))))
        return node

    def _atom(self) -> Node:
        token = self.take()
        if token[0].isdigit() or (token[0] == "." and len(token) > 1):
            return self._number(token)
        if token in ("(", "{", "["):
            node = self.sum()
            self.take({"(": ")", "{": "}", "[": "]"}[token])
            return node
        if token == "|":
            self._bars += 1
            node = self.sum()
            self.take("|")
            self._bars -= 1
            return Node("abs", (node,))
        if token in ("⌊", "⌈"):
            node = self.sum()
            self.take("⌋" if token == "⌊" else "⌉")
            return Node("floor" if token == "⌊" else "ceil", (node,))
        if token == "⟦":
            return self._matrix()
        if token in ("π", "∞"):
            return Node("symbol", (), token)
        if token[0] == "\\" and len(token) > 1:
            return self._command(token[1:])
        if token.isalpha():
            return self._symbol(token)
        raise NotAnExpression(token)

    def _number(self, token: str) -> Node:
        node = read_number(token)
        following = self.peek
        if following in (r"\overline", r"\bar", r"\dot") and "." in token:
            return self._repeating(token)
        if following == "…":
            self.take()
            return continued(token)
        if token.isdigit():
            part = self._mixed_part()
            if part is not None:
                assert isinstance(node.value, Fraction)
                return number(node.value + part)
        return node

    def _mixed_part(self) -> Fraction | None:
        r"""The fraction of a mixed number: `\frac{1}{2}` or `1/2`, proper and of plain integers."""
        tokens, at = self._tokens, self._at
        if self.peek == r"\frac":
            shape = [*tokens[at + 1 : at + 7], *[""] * 6]
            if shape[0] == shape[3] == "{" and shape[2] == shape[5] == "}":
                top, bottom, end = shape[1], shape[4], at + 7
            elif shape[0].isdigit() and len(shape[0]) == 2:
                top, bottom, end = shape[0][0], shape[0][1], at + 2
            else:
                return None
        elif at + 2 < len(tokens) and tokens[at + 1] == "/":
            top, bottom, end = tokens[at], tokens[at + 2], at + 3
        else:
            return None
        if not (top.isdecimal() and bottom.isdecimal() and 0 < int(top[:9]) < int(bottom[:9])) or len(bottom) > 9:
            return None
        self._at = end
        return Fraction(int(top), int(bottom))

    def _repeating(self, token: str) -> Node:
        """0.1\\overline{6} is 1/6; with dots, 0.\\dot{1}4285\\dot{7} is 1/7."""
        dotted = self.take() == r"\dot"
        digits = self._digits()
        if dotted and self.peek.isdecimal():
            digits += self.take()
            if self.peek == r"\dot":
                self.take()
                digits += self._digits()
        return repeating(token, digits)

    def _digits(self) -> str:
        braced = self.peek == "{"
        if braced:
            self.take()
        digits = self.take()
        if braced:
            self.take("}")
        if not digits.isdecimal() or len(digits) > 50:
            raise NotAnExpression(digits)
        return digits

    def _command(self, name: str) -> Node:
        if name == "frac":
            return Node("/", (self._argument(), self._argument()))
        if name in ("sqrt", "cbrt"):
            degree = number(3 if name == "cbrt" else 2)
            if self.peek == "[":
                self.take()
                degree = self.sum()
                self.take("]")
            return Node("root", (self._argument(), degree))
        if name == "binom":
            return Node("binom", self._several())
        if name in ("sum", "prod"):
            return self._series(name)
        if name in FUNCTIONS:
            return self._function(name)
        if name in _ACCENTS:
            return self._symbol(f"{name}({self._raw()})")
        if name in SYMBOLS or name == "mathbb":
            return self._symbol(f"{name}({self._raw()})" if name == "mathbb" else name)
        raise NotAnExpression(name)

    def _argument(self) -> Node:
        """What \\frac and \\sqrt take: a group, or one character (`\\frac12`)."""
        token = self.peek
        if token[:1].isdigit() and "." not in token and len(token) > 1:
            self._tokens[self._at : self._at + 1] = [token[0], token[1:]]
        return self._atom_only()

    def _atom_only(self) -> Node:
        token = self.peek
        if token[:1].isdigit():
            self.take()
            return read_number(token)
        if len(token) == 1 and token.isalpha():
            return Node("symbol", (), self.take())
        return self._atom()

    def _several(self) -> tuple[Node, Node]:
        if self.peek == "(":
            self.take()
            first = self.sum()
            self.take(",")
            second = self.sum()
            self.take(")")
            return first, second
        return self._argument(), self._argument()

    def _function(self, name: str) -> Node:
        base = exponent = None
        while self.peek in ("^", "_"):
            if self.take() == "^":
                exponent = self._exponent()
            else:
                base = self._atom_only()
        if self.peek in ("(", "{", "["):
            opening = self.take()
            arguments = [self.sum()]
            while self.peek in (",", ";"):
                self.take()
                arguments.append(self.sum())
            self.take({"(": ")", "{": "}", "[": "]"}[opening])
        else:
            arguments = [self._implicit()]
        node = _call(name, tuple(arguments), base, exponent)
        return node

    def _implicit(self) -> Node:
        """The argument of a function without brackets: `2x` in `\\sin 2x + 1`."""
        node = self._power(self._postfix(self._atom()))
        while (
            self.peek not in ("(", "[", "{", "|", "⌊", "⌈", "⟦")
            and not (self.peek[:1] == "\\" and self.peek[1:] in FUNCTIONS)
            and self._starts_factor(node)
        ):
            node = Node("*", (node, self._power(self._postfix(self._atom()))))
        return node

    def _series(self, name: str) -> Node:
        self.take("_")
        self.take("{")
        variable = self.take()
        self.take("=")
        low = self.sum()
        self.take("}")
        self.take("^")
        high = self._argument()
        return Node(name, (low, high, self._product()), variable)

    def _symbol(self, name: str) -> Node:
        if self.peek == "_":
            self.take()
            name += "_" + self._raw()
        while self.peek == "'":
            self.take()
            name += "'"
        if self.peek == "(" and self._is_application(name):
            name += f"({self._raw()})"
        return Node("symbol", (), name)

    def _is_application(self, name: str) -> bool:
        following = [*self._tokens[self._at + 1 : self._at + 3], "", ""]
        alone = following[1] == ")" and following[0][:1].isdigit()
        return name.rstrip("'").partition("_")[0] in _APPLIED or alone

    def _raw(self) -> str:
        """The next token, or the tokens of the next group, as text."""
        opening = self.take()
        if opening not in ("{", "("):
            return opening
        found: list[str] = []
        depth = 1
        while depth:
            token = self.take()
            depth += (token in ("{", "(")) - (token in ("}", ")"))
            found.append(token)
        return "".join(found[:-1])

    def _matrix(self) -> Node:
        rows: list[list[Node]] = [[]]
        while True:
            rows[-1].append(self.sum())
            sign = self.take()
            if sign == "‖":
                rows.append([])
            elif sign == "⟧":
                break
            elif sign != "¦":
                raise NotAnExpression(sign)
        if len({len(row) for row in rows}) != 1:
            raise NotAnExpression("rows of different lengths")
        return Node("matrix", tuple(cell for row in rows for cell in row), len(rows[0]))


def _call(name: str, arguments: tuple[Node, ...], base: Node | None, exponent: Node | None) -> Node:
    name = {
        "asin": "arcsin",
        "acos": "arccos",
        "atan": "arctan",
        "asinh": "arcsinh",
        "acosh": "arccosh",
        "atanh": "arctanh",
        "factorial": "!",
        "ceiling": "ceil",
    }.get(name, name)
    inverse = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "sinh": "arcsinh", "cosh": "arccosh"}
    if exponent == Node("neg", (number(1),)) and name in inverse:
        name, exponent = inverse[name], None
    if (base is not None and name != "log") or (len(arguments) > 1 and name not in ("gcd", "lcm", "min", "max")):
        raise NotAnExpression(f"arguments of {name}")
    node = Node(name, arguments if base is None else (*arguments, base))
    return node if exponent is None else Node("^", (node, exponent))
