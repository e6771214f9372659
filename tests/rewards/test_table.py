"""The project's own table of gold answers and answers as found in a box, with the verdict a careful reader gives.

Written by hand, by kind. EQUAL means the same, DIFFERENT does not.
"""
# ruff: noqa: RUF001 (look-alike characters are part of what is tested)

import pytest

from da3po_cli.rewards import REWARDS

grade = REWARDS["math"]

EQUAL = {
    "integers": [
        ("42", "42"), ("1000", "1,000"), ("1000", r"1\,000"), ("1000", "1{,}000"), ("1000", "1 000"),
        ("1234567", "1,234,567"), ("1,000", "1000"), ("32348", r"32,\!348"), ("11111111", r"11,\! 111,\! 111"),
        ("73", "073"), ("-5", "−5"), ("5", "５"), ("+7", "7"), ("7", "7."), ("-12", "- 12"), ("0", "-0"),
        ("12", "(12)"),
        ("123456789012345678901", "123456789012345678901"), ("10", r"10\text{.}"), ("3", r"\mathbf{3}"),
        ("5", r"\textcolor{blue}{5}"), ("5", r"{\color{red} 5}"), ("5", r"\textcolor[rgb]{1,0,0}{5}"),
        (r"\frac{1}{2}", r"\color{red}{\frac12}"), ("-5", r"-\colorbox{yellow}{5}"),
    ],
    "decimals and fractions": [
        ("18", "18.0"), ("18.0", "18"), ("0.4", ".4"), ("0.50", "0.5"), (r"\frac{1}{2}", "0.5"), ("1/2", r"\frac12"),
        (r"\frac{1}{2}", r"\frac{2}{4}"), (r"\frac{10}{3}", r"\frac{10}3"), (r"\frac 34", r"\frac{3}{4}"),
        (r"\dfrac{7}{9}", r"\tfrac79"), ("-1./3", r"-\frac{1}{3}"), (r"-\frac{1}{2}", r"\frac{-1}{2}"),
        (r"-\frac{1}{2}", r"\frac{1}{-2}"), ("1/2", "½"), ("7/2", "3½"), (r"\frac{3}{8}", "0.375"), ("2/3", "4 / 6"),
        (r"{3 \over 4}", "0.75"), ("2.5", r"2.5\,"), (r"\frac{\frac{1}{2}}{3}", r"\frac{1}{6}"),
    ],
    "mixed numbers": [
        (r"3\frac{1}{2}", r"\frac{7}{2}"), (r"3\frac{1}{2}", "3.5"), (r"-1\frac{1}{2}", "-1.5"), ("1.5", "1 1/2"),
        (r"2\frac13", r"\frac73"), ("5 3/4", "5.75"), (r"1 \frac{2}{5}", "1.4"),
    ],
    "repeating decimals": [
        ("4/3", r"1.\overline{3}"), (r"\frac{1}{6}", r"0.1\overline{6}"), ("1/7", r"0.\overline{142857}"),
        ("1/3", r"0.\dot{3}"), (r"\frac{1}{3}", "0.333..."), (r"\frac{4}{33}", r"0.121212\ldots"),
    ],
    "decimal commas": [("3.5", "3,5"), ("0,125", "0.125"), ("1234.5", "1234,5")],
    "scientific notation": [
        ("1.2e5", r"1.2 \times 10^5"), ("120000", r"1.2\cdot 10^{5}"), ("2000", "2e3"), ("1.5e-3", "0.0015"),
        (r"6.02 \times 10^{23}", "6.02e23"), ("3e8", r"3 \times 10^{8}"), (r"10^{-4}", "0.0001"), ("4E2", "400"),
    ],
    "powers, roots and products": [
        ("1024", "2^{10}"), ("1024", "2^10"), ("1024", "2**10"), ("4", r"\sqrt{16}"), ("4", "2+2"), ("-8", "(-2)^3"),
        ("-4", "-2^2"), ("9", "3²"), (r"2\sqrt{3}", r"\sqrt{12}"), (r"\sqrt{2}", r"\sqrt2"), (r"\sqrt{2}", "√2"),
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"), (r"\sqrt[3]{8}", "2"), (r"5^{\frac{1}{2}}", r"\sqrt5"),
        (r"2^3 3^2", "72"), (r"3 \cdot 5 \cdot 7", "105"), ("2^{100}", "1267650600228229401496703205376"),
        (r"\sqrt{7+4\sqrt{3}}", r"2+\sqrt{3}"), (r"\frac{(3)(4)}{2}", "6"), ("sqrt(3) - 1", r"-1+\sqrt{3}"),
        (r"\sqrt[3]{-27}", "-3"), (r"11\sqrt2", r"11\sqrt{2}"), (r"4^{1/2}", "2"),
    ],
    "counting": [
        ("120", "5!"), (r"\binom{5}{2}", "10"), (r"\frac{1}{20!}", r"\frac{1}{20 \cdot 19!}"),
        ("55", r"\sum_{k=1}^{10} k"),
        ("24", r"\prod_{k=1}^{4} k"), (r"\lfloor 3.7 \rfloor", "3"), (r"\lceil 3.2 \rceil", "4"),
        ("6", r"\gcd(12, 18)"),
        (r"\binom{2004}{2}", r"\frac{2004 \cdot 2003}{2}"),
    ],
    "constants": [
        (r"2\pi", "2π"), (r"2\pi", "2*pi"), (r"\frac{\pi}{6}", r"\frac{1}{6}\pi"), (r"\frac94\pi", r"\frac{9\pi}{4}"),
        ("e^2", r"\exp(2)"), (r"e^{i\pi}", "-1"), (r"\ln 8", r"3\ln 2"), (r"\log_2 8", "3"),
        (r"\log_{10} 2", r"\log 2"),
        (r"\cos\frac{\pi}{3}", r"\frac12"), (r"\sin 30^\circ", "0.5"),
        (r"\frac{\sqrt{6}-\sqrt{2}}{4}", r"\sin 15^\circ"),
        ("arcsin(10/13)", r"\arcsin\frac{1}{1.3}"), ("6.283185307179586", r"2\pi"),
        (r"\sqrt{17}", "4.123105625617661"),
        (r"\frac{1}{12}", "0.0833333333333333"),
    ],
    "complex numbers": [
        ("3+4i", "4i+3"), ("(1+i)^2", "2i"), (r"i\sqrt{3}", r"\sqrt{-3}"), ("14 - i", "14.0 + -1.0i"),
        (r"\frac{1}{1+i}", r"\frac{1-i}{2}"),
    ],
    "percent": [
        (r"50\%", "0.5"), (r"50\%", r"50\%"), (r"50\%", "50"), ("50", r"50\%"), ("0.25", r"25\%"),
        (r"45\%", "45 percent"),
        ("0.005", r"\frac12\%"), ("33.5%", "0.335"), (r"100\text{ percent}", r"100\%"),
    ],
    "units": [
        ("5", r"5 \text{cm}"), ("5", r"5\mbox{ cm}"), ("5", "5 cm"), ("12", "12 cm^2"), ("12", r"12\text{ cm}^2"),
        (r"12\text{ cm}^2", "12 square centimeters"), (r"7 \text{ apples}", "7"), ("7", r"7 \text{ apples}"),
        (r"125 \textnormal{ miles}", "125"), ("1 hour", "60 minutes"), ("1 hour 30 minutes", "90 minutes"),
        (r"2\text{ hours and }30\text{ minutes}", "2.5 hours"), ("5 feet 6 inches", "66 inches"), ("10", "10 weeks"),
        (r"5\ \mathrm{m/s}", "5 meters per second"), (r"3\,\mathrm{kg}", "3000 g"), ("8", "8 units"),
        ("17", "17 hamburgers"),
        (r"10\pi \text{ cm}^2", "10π"), ("2/3", r"\frac{2}{3}\text{ cup}"), ("65 mph", "65 miles per hour"),
    ],
    "angles": [
        ("90", "90 degrees"), ("90", r"90^\circ"), (r"90^{\circ}", "90°"), (r"30^\circ", "30"),
        (r"56^{\circ}", r"56\text{ degrees}"),
    ],
    "money": [
        (r"\$18", "18"), ("18", r"\$18.00"), ("18", "18 dollars"), (r"\$0.50", "50 cents"), ("1234", "$1,234.00"),
        (r"\$1.5 \text{ million}", "1500000"), ("20", "20 euros"),
    ],
    "number words": [
        ("2000000", r"2 \text{ million}"), ("5", "five"), ("25", "twenty-five"), ("105", "one hundred and five"),
        ("third", "3rd"), (r"5^{\text{th}}", "5"), ("1200", "1.2 thousand"),
    ],
    "text": [
        (r"\text{Evelyn}", "Evelyn"), ("Evelyn", r"\text{evelyn}"), (r"\text{east}", r"\textbf{East}"),
        ("yes", "Yes."),
        ("no solution", "No solutions"), ("a rectangle", r"\text{rectangle}"), ("odd $n$", r"\text{odd } n"),
        ("does not exist", r"\text{DNE}"),
    ],
    "choices": [
        (r"\text{(B)}", "B"), ("B", "(B)"), ("C", r"\textbf{(C)}\ 12"), ("(C) 12", "C"), ("D", "D. seven"),
        ("A", "a"),
        (r"\textbf{(E)}", "E"),
    ],
    "times and dates": [
        ("12:00", "12:00"), ("3:30 PM", "15:30"), ("20:34:00", "20:34"), ("10:00", "10:00 a.m."),
        ("July 4, 1776", "4 July 1776"),
        ("March 3rd", "3 March"),
    ],
    "ratios": [("3:4", "3 : 4"), ("V_1:V_2 = 11:21", "11:21"), (r"1:\sqrt{4}", "1:2")],
    "bases": [("204_5", "204_{5}"), ("1101_2", "1101_{2}")],
    "assignments": [
        ("x = 5", "5"), ("5", "x=5"), ("x = 5", "y = 5"), ("5", "5 = x"), ("y = 2x+3", "2x+3"),
        ("2x+3", "f(x) = 2x + 3"),
        ("11", r"x \approx 11"), (r"\frac13", r"x = \frac13 \approx 0.33"),
        (r"\frac{\sqrt3}{3}", r"\frac{\sqrt3}{3} \approx 0.577"),
        ("1", r"|AB| = 1"), ("(p,q)=(3,2)", "(3,2)"), ("D = (0, 1)", "(0,1)"), ("a_n = 2n+1", "2n+1"), ("5", "2+3=5"),
        ("1,2,3", "x=1, y=2, z=3"), ("x=1, y=2", "y=2, x=1"), ("a_3=2, a_{37}=19", "a_{37}=19, a_3=2"),
        (r"\text{Area} = 12", "12"),
    ],
    "lists": [
        ("1,2", "2,1"), ("1, 2", r"2 \text{ and } 1"), ("2,3", r"x=2 \text{ or } x=3"), ("3, 5, 7", "7 and 3 and 5"),
        ("21, 16 or 11", "11, 16, 21"), ("-5,-2,7", r"7, -2, \text{ and } -5"), (r"\pm 3", "3,-3"),
        (r"\pm 3", r"\pm 3"),
        (r"1\pm\sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}"), ("(1,2),(3,4)", "(3,4),(1,2)"), ("0.1, 4", ".1, 4.0"),
        ("[1,2,3]", "1,2,3"), ("3 apples and 4 oranges", "3, 4"),
        (r"x = \frac{1 \pm \sqrt{5}}{2}", r"\frac{1-\sqrt5}{2}, \frac{1+\sqrt5}{2}"),
    ],
    "sets": [
        (r"\{1,2\}", r"\{2,1\}"), ("1,2", r"\{2,1\}"), (r"\{1,2\}", r"\{1,2,2\}"),
        (r"\{1\pm\sqrt5,-2\}", r"\{-2, 1-\sqrt5, 1+\sqrt5\}"),
        (r"\emptyset", r"\varnothing"), (r"\emptyset", r"\{\}"), (r"\{(1,2),(3,4)\}", "(3,4),(1,2)"), ("5", r"\{5\}"),
    ],
    "tuples": [
        ("(1,2)", r"\left(1, 2\right)"), ("(1,2)", r"(1.0,\frac{4}{2})"),
        (r"(3,\frac{\pi}{2})", r"\left( 3, \pi/2 \right)"),
        ("3, 4", "(3, 4)"), ("(2,3)", "x=2, y=3"), (r"\langle 1, 2 \rangle", "(1,2)"), ("A(1,2)", "(1,2)"),
        ("[x, 1+x]", "[x, x+1]"),
    ],
    "intervals": [
        (r"(1,\infty)", r"(1, +\infty)"), ("[0,1)", "[0, 1)"), (r"[\frac12, 1]", "[0.5, 1]"), ("(0,1)", "]0,1["),
        (r"(-\infty,1)\cup(2,\infty)", r"(2,\infty) \cup (-\infty, 1)"), (r"x \in [-2,7]", "[-2,7]"),
        ("[0,1] \\cup [1,2]", "[0,2]"), (r"[0,\frac{\pi}{2})", r"[0,\pi/2)"), (r"(-\infty, 3)", "(-oo, 3)"),
    ],
    "inequalities": [
        (r"x \ge 3", r"[3,\infty)"), (r"(-\infty,1)\cup(2,\infty)", r"x<1 \text{ or } x>2"), ("2 > x", "x < 2"),
        (r"x \leq 5", r"5 \geq x"),
        ("x < 1", "-x > -1"), (r"-793 < a < 10", "(-793, 10)"), (r"0 < x \le 1", "(0,1]"),
        (r"x \ne 0", r"\mathbb{R} \setminus \{0\}"),
        (r"\{x \mid x > 3\}", r"(3,\infty)"), (r"x \geq 1 \text{ and } x < 2", "[1,2)"),
        ("f(2) < f(1)", "f(1) > f(2)"),
        ("x + y < 2", "2x + 2y < 4"), (r"2x \ge 6", r"x \ge 3"), (r"x>=5", r"x \geqslant 5"),
    ],
    "equations": [
        ("2x+3y=6", r"y=2-\frac{2}{3}x"), ("2x+3y=6", "4x+6y=12"), ("x^2+y^2=25", "x^{2}+y^{2}-25=0"),
        ("x - 2y + z - 1 = 0", "x - 2y + z = 1"),
        ("x^2/4 + y^2/3 = 1", "3x^2 + 4y^2 = 12"), ("y = x", "x = y"),
    ],
    "algebra": [
        ("x^2+2x+1", "(x+1)^2"), ("x+y", "y + x"), (r"\frac{x}{2}", "x/2"), ("p - q", "-q+p"),
        (r"\frac{x+2}{7}", r"\frac{x}{7}+\frac{2}{7}"),
        ("n(n+1)/2", r"\frac{n^2+n}{2}"), ("2^{n+1}", r"2\cdot 2^n"), (r"e^{-x}", r"\frac{1}{e^x}"),
        (r"\pi r^2", r"r^2\pi"),
        (r"\frac{1}{x+1}+\frac{1}{x-1}", r"\frac{2x}{x^2-1}"), (r"\sqrt{x^2}", "|x|"), ("x**2 + 2*x", "x(x+2)"),
        ("0", "x^2 - x^2"),
        (r"\frac{x}{y}", "x/y"), (r"\frac{1}{m} t", r"\frac{t}{m}"), (r"\frac{5}{9}(F-32)", r"\frac{5F-160}{9}"),
        ("E_{1},E_{2}", "E_1, E_2"),
        (r"\frac{1}{3\sqrt[3]{x}^2}", r"\frac{1}{3x^{2/3}}"), (r"x^{\prime}+2x=0", "x' + 2x = 0"),
        ("n!", r"n \cdot (n-1)!"),
    ],
    "trigonometry": [
        (r"e^{-x}", r"\cosh x - \sinh x"), (r"\frac{1}{\sqrt{x^2+1}+x}", r"\sqrt{x^2+1}-x"),
        ("0", r"\sqrt{8}-2\sqrt{2}"),
        ("1", r"\sin^2 x + \cos^2 x"), (r"\tan^2 y + 1", r"\sec^2 y"), (r"2 \sin b \cos a", r"\sin(a+b) - \sin(a-b)"),
        (r"\frac{1}{\cos x}", r"\sec x"), (r"\sin 2x", r"2\sin x\cos x"),
        (r"3\cos(2\sqrt{35}t)", "3*cos(sqrt(140)*t)"),
        (r"\arctan x", r"\tan^{-1} x"), (r"\cosh x", r"\frac{e^x+e^{-x}}{2}"),
    ],
    "matrices": [
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", "(1,2)"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\left[\begin{array}{cc}1 & 2 \\ 3 & 4\end{array}\right]"),
        (r"\begin{pmatrix}1/2&0\\0&1\end{pmatrix}", r"\begin{pmatrix}0.5 & 0 \\ 0 & 1 \\ \end{pmatrix}"),
        (r"\begin{pmatrix}6&8\\10&12\end{pmatrix}", r"2\begin{pmatrix}3&4\\5&6\end{pmatrix}"),
        (
            r"\begin{pmatrix}2&1\\4&3\end{pmatrix}",
            r"\begin{pmatrix}1&2\\3&4\end{pmatrix}\begin{pmatrix}0&1\\1&0\end{pmatrix}",
        ),
    ],
    "wrapping": [
        (r"\boxed{5}", "5"), ("$5$", "5"), ("5.0", r"\(5\)"), (r"\text{13}", "13"), ("12", "$12$"),
        (r"\frac{4}{5}", r"\\frac{4}{5}"),
        ("7", r"\text{The answer is } 7"), (r"\infty", "infinity"), (r"-\infty", r"-\infty"), ("3", "**3**"),
        ("Thus the domain is $\\boxed{(2, 12)}$.", "(2,12)"), (r"n = \boxed{1,-2}.", "-2, 1"),
    ],
}  # fmt: skip

DIFFERENT = {
    "numbers": [
        ("42", "43"), ("1000", "1,001"), ("4", "-4"), ("0.3333", "0.33330001"), ("0.333333", r"\frac{1}{3}"),
        ("1/3", "0.333"),
        ("123456789012345678", "123456789012345679"), ("100000000000", "99999999999"), (r"3\frac{1}{2}", r"\frac12"),
        ("3 1/2", "31/2"), ("12", "1 2"), ("7", "3 4"), ("3 4", "34"), ("1.5", r"1\frac13"), ("32349", "32, 349"),
        ("3", r"\overline{3}"), ("5", r"5\dots"), ("0", r"10^{-30}"), ("10^{30}", "10^{30}+1"), ("2e3", "2e4"),
        (r"\frac{12}{3}", r"\frac{1}{23}"), ("1.22", "1,23"), ("3", "3^2"), ("1", r"\frac{0}{0}"),
        ("5", r"\frac{5}{0}"),
    ],
    "irrational numbers": [
        (r"2\sqrt{3}", "2"), (r"4\pi", "4"), ("2^{10}", "2"), (r"4\sqrt{2}", "4"), (r"\sqrt{2}", "1.41421356"),
        (r"\pi", "3.14159"),
        (r"\pi", r"\frac{22}{7}"), (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
        (r"\log_2 3", r"\log_3 2"), (r"1-\frac1e", r"1+\frac1e"), (r"2", r"\frac{1+\sqrt{5}}{2}"),
        ("e", "2.718281828"),
        (r"\sqrt{2}", r"\sqrt{3}"), ("3+4i", "3-4i"),
    ],
    "hedges": [
        ("5", "5, 4, 3"), ("5", "4 or 5"), ("5", r"4 \text{ or } 5"), ("5", "4=5"), ("5", "x = 3 or y = 5"),
        ("5", "5,5"),
        ("5", r"\{5, 6\}"), ("5", "between 4 and 6"), ("5", "5 or more"), ("5", "not 5"), ("5", r"5 \pm 1"),
        ("5", r"\le 5"),
        ("x=5", "x>5"), ("7", "(7,7)"), ("7", "7;8"), ("1728", "1331 and 1728"), (r"\pm 3", "3"), ("3", r"\pm 3"),
        ("7", "7:7"),
        ("4", r"5 \text{ if } x > 0, 4 \text{ otherwise}"),
    ],
    "percent, units and money": [
        ("0.5", r"0.5\%"), ("1", r"1\%"), ("5 cm", "5 m"), ("12 cm^2", "12 cm^3"), (r"\$5", "5 cents"),
        ("2000000", "2 billion"),
        (r"5\text{ hours}", r"5\text{ minutes}"), ("0.75", "75"), ("3x", "3"), ("10", "10m"), ("5", "six"),
        ("25", "fifty-two"),
        (r"\frac{37}{4} m", "m"), ("50\\%", "0.05"),
    ],
    "words that are no units": [
        ("5", "5 at most"), ("5", "5 maybe"), ("5", "5 dozen"), ("5", "5 squared"), ("5", "5 halves"),
        ("5", "5 minus one"),
        ("5", "5 plus six"), ("5", "5 point two"), ("5", "5 is wrong"), ("5", r"5 \text{ at most}"),
        ("5", r"5\text{ squared}"),
        ("5", "5 tens"), ("5", r"5\text{ is wrong}"), ("5", "5 over 2"), ("5", "5 to 6"), ("5", "5 mod 7"),
        ("5", "5 times three"),
        ("5", "5 thousandths"), ("5", "5 and a half"), ("5", "5 but I am not sure about that at all"),
    ],
    "text and choices": [
        ("square", "points"), ("square", "ways"), ("monday", "mon"), ("Evelyn", "Eve"), (r"\text{(B)}", "C"),
        ("(A) 3", "B"), ("yes", "no"),
        (r"\text{oddd}", "odd"), ("ab", "ba"), ("1 a 2", "1 2"), ("B", "A. seven"), ("no solution", "0"),
        (r"\emptyset", "0"), ("x", "X"),
        ("12:00", "12"), ("12:00", "1:00"), ("3:30 PM", "3:30 AM"), ("July 4", "July 5"), ("x+1", "not math"),
        ("D", r"\text{E}"),
    ],
    "empty": [("5", ""), ("5", r"\text{}"), ("5", "   "), ("5", "$$"), ("5", r"\{\}"), ("5", ".")],
    "bases and ratios": [
        ("2516_8", "2516"), ("2516_8", "2516_7"), ("10", "1010_2"), ("1:2", "2:4"), ("1:2", "1:3"),
        ("1:2:3", "1:2"),
    ],
    "lists, sets and tuples": [
        ("5,1", "5.1"), ("-3,0", "-3.0"), ("2500,7500", "2500.7500"), ("11,13", "11.13"),
        ("1,2", "1"), ("n=1,2,3", "n=2,3,4"), ("(1,2)", "[1,2]"), ("(1,2)", "(2,1)"), ("1,1", "1,2"),
        ("1,1,2", "1,2"), ("1,2", "1,2,2"),
        (r"\{1,2\}", r"\{1,3\}"), ("(1,3,2)", "[1,2,3]"), ("[x+1, x]", "[x, x+1]"), ("x=5,y=6", "x=6,y=5"),
        ("a_3=2, a_{37}=19", "a_3=19, a_{37}=2"),
        ("(1,2),(3,4)", "(1,2),(4,3)"), (r"\sqrt{67}", r"\sqrt{67},-\sqrt{85}"), ("19, 46, 82", "21, 36, 82"),
        ("(1,2)", "x=2, y=1"),
    ],
    "intervals and inequalities": [
        ("[0,1)", "[0,1]"), ("(0,9)", "[0,9)"), (r"(1,\infty)", r"(1,-\infty)"), ("x>3", r"x \ge 3"), ("x>3", "x<3"),
        (r"(-\infty,3)", r"(-\infty,3]"),
        (r"x<1 \text{ or } x>2", "1<x<2"), (r"x \ne 0", r"x \ne 1"), ("[x,y)", "[1,2)"), ("x + y < 2", "x + y > 2"),
        ("(0,1)", "[0,1]"),
        (r"[0,1] \cup [2,3]", "[0,3]"), (r"x \ge 5", "5"), ("x < 1", "-x < -1"),
    ],
    "equations": [
        ("3x + 4y + 14=0", "3*x-1*y+13=0"), ("x=5", "x=6"), ("x^2+y^2=1", "x^2+y^2=2"), ("y=2x", "y=3x"),
        ("7 = 11a+c", "11a+c"),
        ("a + 3z = 0", "0"), ("2x + z = 1", "1"), ("y = 2x", "x = 2y"), ("5", "6-1=4"), ("x=2", "2=3"),
    ],
    "algebra": [
        (r"\lfloor \frac{2n-1}{5} \rfloor", r"\lfloor \frac{2n-1}{55} \rfloor"), ("|x-50|", "50-x"),
        ("f(x)=x-1", "f(n)=x-1"),
        (r"\max(x, 3)", "x"), (r"\sqrt{(x-900)^2}", "900-x"),
        ("x^2+2x+1", "(x-1)^2"), ("x", "y"), ("x^2", "x^3"), ("a^b", "b^a"), ("xy", "x+y"), (r"\sin x", r"\cos x"),
        ("2", "2x"),
        (r"\tan^{-1} x", r"\frac{1}{\tan x}"), ("I(0)", r"I(0)e^{-t}"), ("f(2)", "2f"), (r"\alpha", "a"),
        ("x_1", "x_2"), ("x^2", "x^2+10^{-50}"),
        (r"\sqrt{x^2}", "x"), ("(a+5)(b+2)", "(+5)(b+2)"), ("x+2n+1", "x+1"), ("f(x)", "f(y)"),
        (r"\ln |x|", r"\ln x"),
        (r"\frac{1}{x+1}", r"\frac{1}{x}+1"), ("2^n", "n^2"),
    ],
    "matrices": [
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&2\\3&5\end{pmatrix}"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}2\\1\end{pmatrix}"),
        (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ],
}  # fmt: skip

EQUAL_ROWS = [
    pytest.param(gold, answer, id=f"{kind}: {gold} / {answer}") for kind, rows in EQUAL.items() for gold, answer in rows
]
DIFFERENT_ROWS = [
    pytest.param(gold, answer, id=f"{kind}: {gold} / {answer}")
    for kind, rows in DIFFERENT.items()
    for gold, answer in rows
]
GOLDS = sorted({row[0] for table in (EQUAL, DIFFERENT) for rows in table.values() for row in rows})


def test_the_table_is_large():
    assert len(EQUAL_ROWS) + len(DIFFERENT_ROWS) >= 400


@pytest.mark.parametrize(("gold", "answer"), EQUAL_ROWS)
def test_equal(gold, answer):
    result = grade(rf"Thus the answer is \boxed{{{answer}}}.", "stop", gold)
    assert result.verdict == "correct", result


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT_ROWS)
def test_different(gold, answer):
    result = grade(rf"Thus the answer is \boxed{{{answer}}}.", "stop", gold)
    assert result.verdict == "wrong", result


@pytest.mark.parametrize("gold", GOLDS)
def test_every_gold_answer_equals_itself(gold):
    assert grade(rf"\boxed{{{gold}}}", "stop", gold).verdict == "correct"
