"""Extraction of the final answer from a text, and normalisation of LaTeX and Unicode notation.

Character classes are ASCII and tables are explicit, because Python's Unicode tables differ between
versions.
"""
# ruff: noqa: RUF001 - signs that look alike are the point

import json
import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_BOX_ARGUMENT = re.compile(r"-?\d+(?:\.\d+)?|[A-Za-z]|\\[A-Za-z]+", re.ASCII)
_BETWEEN_BOXES = re.compile(r"[\s$.,;]*(?:and|or|\\text\{\s*(?:and|or)\s*\})?[\s$,;]*")
_MATH = re.compile(
    r"\$\$(.+?)\$\$|(?<!\\)\$((?:\\\$|[^$\n])+?)(?<!\\)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL
)
_MARKER = re.compile(
    r"(?:final\s+)?answer(?:\s+to\s+[^.:\n]{1,80})?(?:\s+is|\s*[:=])(?:\s+is)?\s*:?", re.IGNORECASE
)
_BOLD = re.compile(r"\*\*([^*\n]+)\*\*")
_RUN = re.compile(r"(?<![A-Za-z\d_])[-+(]*[\d.][\d\s.,+\-*/^()=:%]*", re.ASCII)
_LEFT_SIDE = re.compile(r"(?:(?:\b[A-Za-z]|\d+)\s*[-+*/^]\s*)+(?:\b[A-Za-z]|\d+)\s*=\s*$", re.ASCII)
_LEFT_SIDE_MAX = 100
_SENTENCE_END = re.compile(r"[.!?]\s|\n")


def final_answer(text: str, require_box: bool) -> str | None:
    """Return the final answer in a completion, None when there is none.

    It is the content of the last box; boxes joined by "and" or a comma are one answer. If no box is
    required, the fallbacks are, in this order: a line after ``####``, the text after "answer is" or
    "answer:", the last bold text, the last formula, and the last number.
    """
    boxes = _boxes(text)
    if boxes is None:
        return None
    if boxes:
        return ", ".join(boxes if len(set(boxes)) > 1 else boxes[:1])
    if require_box:
        return None
    if "####" in text:
        return text.rpartition("####")[2].strip().partition("\n")[0]
    markers = list(_MARKER.finditer(text))
    if markers:
        behind = text[markers[-1].end() :].lstrip(" *:\n")
        sentence = _SENTENCE_END.split(behind, maxsplit=1)[0]
        return _formula(behind[: len(sentence)]) or sentence.strip(" *.\n") or None
    for found in reversed(_BOLD.findall(text)):
        bold = found.strip(" .")
        if _RUN.search(bold) and not re.search(r"[A-Za-z]{3,}", bold.replace("\\", "")):
            return _formula(bold) or bold
    if formula := _formula(text):
        return formula
    runs = [found for found in _RUN.finditer(text) if re.search("[0-9]", found.group())]
    return _equation(text, runs[-1]) if runs else None


def gold_answer(gold: str) -> str:
    """Return the answer in a data set's expected answer.

    It may follow ``####``, or be in a JSON or Python list with one text, or in the last box.
    """
    text = gold.strip()
    if "####" in text:
        return text.rpartition("####")[2].strip()
    if found := re.fullmatch(r"\[\s*(['\"])(.*)\1\s*\]", text, re.DOTALL):
        try:
            parts = json.loads(text)
        except ValueError:
            parts = [found[2]]
        return ", ".join(map(str, parts))
    if boxes := _boxes(text):
        return ", ".join(boxes)
    return text


def _boxes(text: str) -> list[str] | None:
    """Return the contents of the last box and of those joined to it; None if it is not closed."""
    found: list[str] = []
    end = 0
    for start in _BOX.finditer(text):
        if start.start() < end:
            continue  # inside the previous box
        content, after = _argument(text, start.end())
        if content is None:
            return None
        if not (found and _BETWEEN_BOXES.fullmatch(text, end, start.start())) or (
            "\n\n" in text[end : start.start()]
        ):
            found = []
        found.append(_unboxed(content))
        end = after
    return found


def _unboxed(text: str) -> str:
    while start := _BOX.search(text):
        content, end = _argument(text, start.end())
        if content is None:
            break
        text = text[: start.start()] + content + text[end:]
    return text


def _argument(text: str, at: int) -> tuple[str | None, int]:
    """Return the argument of a command and the position of its end."""
    if not text.startswith("{", at):
        if found := _BOX_ARGUMENT.match(text, at):
            return found.group(), found.end()
        return None, at
    depth = 0
    place = at
    while place < len(text):
        sign = text[place]
        if sign == "\\":
            place += 2
            continue
        depth += (sign == "{") - (sign == "}")
        place += 1
        if depth == 0:
            return text[at + 1 : place - 1], place
    return None, at


def _formula(text: str) -> str | None:
    """Return the last formula between dollars or equivalent delimiters."""
    found = [next(filter(None, groups), "") for groups in _MATH.findall(text)]
    return found[-1].strip(" .\n") or None if found else None


def _equation(text: str, run: re.Match[str]) -> str:
    """Return the last number of a text, with the sum or product on its left side."""
    line = run.group().strip(" .,:\n").splitlines()[-1]
    start = run.start() + run.group().rindex(line)
    before = text[max(0, start - _LEFT_SIDE_MAX) : start]
    if left := _LEFT_SIDE.search(before):
        return left.group() + line
    return _balanced(line)


def _balanced(run: str) -> str:
    """Return a run of text without unmatched parentheses at its ends."""
    while run.count("(") > run.count(")") and run.startswith("("):
        run = run[1:]
    while run.count(")") > run.count("(") and run.endswith(")"):
        run = run[:-1]
    return run.strip(" .,:")


_FRACTIONS = {
    "½": (1, 2), "⅓": (1, 3), "⅔": (2, 3), "¼": (1, 4), "¾": (3, 4), "⅕": (1, 5), "⅖": (2, 5),
    "⅗": (3, 5), "⅘": (4, 5), "⅙": (1, 6), "⅚": (5, 6), "⅛": (1, 8), "⅜": (3, 8), "⅝": (5, 8),
    "⅞": (7, 8),
}  # fmt: skip
_SIGNS = {
    "−": "-", "–": "-", "—": "-", "‐": "-", "×": r"\times ", "÷": r"\div ", "·": r"\cdot ",
    "⋅": r"\cdot ", "∙": r"\cdot ", "√": r"\sqrt ", "∛": r"\sqrt[3]", "π": r"\pi ", "∞": r"\infty ",
    "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≡": r"\equiv ",
    "∈": r"\in ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "ø": r"\emptyset ",
    "°": r"^\circ ", "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "±": r"\pm ", "′": "'", "’": "'",
    "∖": r"\setminus ", "⟨": r"\langle ", "⟩": r"\rangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ",
    "⌈": r"\lceil ", "⌉": r"\rceil ", "∠": r"\angle ", "⁄": "/", "∕": "/", "∶": ":", "∣": "|",
    "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ",
    "λ": r"\lambda ", "μ": r"\mu ", "φ": r"\phi ", "ϕ": r"\phi ", "ω": r"\omega ",
    "ρ": r"\rho ", "σ": r"\sigma ", "ε": r"\epsilon ", "\u00a0": " ", "\u2009": " ",
    "\u202f": " ", "\u2002": " ", "\u2003": " ", "\u200b": "", "\u2061": "", "\u2062": "",
    "\ufeff": "", "。": ".", "，": ",", "、": ",", "\t": " ", "\r": " ", "\n": " ",
}  # fmt: skip
_TABLE = str.maketrans(
    {chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
    | {sign: rf"\frac{{{above}}}{{{below}}}" for sign, (above, below) in _FRACTIONS.items()}
    | _SIGNS
)
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_LOWERED = str.maketrans("₀₁₂₃₄₅₆₇₈₉₊₋ₙ", "0123456789+-n")

_MODULUS = (
    r"\\pmod\s*\{?\s*(\d+)\s*\}?|\(\s*(?:\\bmod|\\mod|mod)\s*\{?(\d+)\}?\s*\)"
    r"|(?:\\bmod|\\mod|(?<![A-Za-z])mod)\s+\{?(\d+)\}?$"
)
_REWRITES = [
    (re.compile(pattern, re.ASCII), new)
    for pattern, new in (
        (r"\\(?:left|right|[bB]igg?[lrm]?)(?![A-Za-z])\s*\.?(?=[^.]|$)", ""),
        (r"\\(?:displaystyle|textstyle|limits|nolimits|bf|rm)(?![A-Za-z])\s*", ""),
        (r"\*\*(?=\S)([^*]*?[^*\s])\*\*(?![\w(])", r"\1"),
        (r"\*\*", "^"),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"\{,\}", ","),
        (r"(?<!\\)\\!", ""),
        (r"(?<=\d)(?:(?<!\\)\\[,;: ]|~)(?=\d{3}(?!\d))", ""),
        (r"(?<!\\)\\[,;: ]|~|\\(?:thinspace|enspace)(?![A-Za-z])", " "),
        (r"\\q?quad(?![A-Za-z])", " ; "),
        (r"\\(?:mathrm|textbf|textit|textrm|mbox|operatorname\*?|textsf|texttt)\s*\{", r"\\text{"),
        (r"\\(?:math(?:bf|it)|boldsymbol|bm)\s*\{(\d+(?:\.\d+)?)\}", r"\1"),
        (r"\\lvert(?![A-Za-z])|\\rvert(?![A-Za-z])|\\vert(?![A-Za-z])", "|"),
        (r"\\(?:leqslant|leq)(?![A-Za-z])", r"\\le"),
        (r"\\(?:geqslant|geq)(?![A-Za-z])", r"\\ge"),
        (r"\\(?:neq)(?![A-Za-z])", r"\\ne"),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"!=", r"\\ne "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\varnothing(?![A-Za-z])", r"\\emptyset"),
        (r"\\(?:lbrace)(?![A-Za-z])", r"\\{"),
        (r"\\(?:rbrace)(?![A-Za-z])", r"\\}"),
        (r"\\colon(?![A-Za-z])", ":"),
        (r"\\backslash(?![A-Za-z])", r"\\setminus "),
        (r"\\mathbb\s*R|\\R(?![A-Za-z])|\\text\{R\}", r"\\mathbb{R}"),
        (r"\\ln\s*\{\s*\(", r"\\ln{("),
        (r"\^\s*\{\s*\\(?:circ|degree)\s*\}|\^\s*\\degree|\\degree(?![A-Za-z])", r"^\\circ "),
        (r"\^\s*\{\s*\\prime\s*\}|\^\s*\\prime(?![A-Za-z])", "'"),
        (r"\\text\{([^{}]*)\}", lambda found: _text(found[1])),
        (r"(?<=[\s\d)}])(and|or)(?=\s)", r"\\\1 "),
        (
            r"(?<![\\A-Za-z])(sqrt|sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|ln|log|exp|pi)(?![a-z])",
            r"\\\1 ",
        ),
        (r"(?<![\d.,])(\d{1,3}) (\d{3})((?: \d{3})*)(?![\d.,/]| \d)",
         lambda found: found.group().replace(" ", "")),
        (r"(?<![\d/.])(\d+) +(\d+)/(\d+)(?!\d)", r"\1\\frac{\2}{\3}"),
        (_MODULUS, lambda found: rf"\pmod{{{found[1] or found[2] or found[3]}}}"),
    )
]  # fmt: skip
_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])", re.ASCII)
_LEAD = re.compile(
    r"(?:\\text\{)?\s*(?:(?:so|thus|hence|therefore),?\s+)?(?:the\s+|my\s+)?(?:final\s+)?"
    r"(?:answer|result|solution|value)\s*(?:is|are|:|=|\})[\s:]*\}?",
    re.IGNORECASE,
)
_LETTERS = re.compile(r"[A-Z]{1,4}(?:(?:, *| and |, and )[A-Z]{1,4})+")
_WRAPPED = re.compile(r"\$\$(.*)\$\$|\$([^$]*[^$\\])\$|\\\((.*)\\\)|\\\[(.*)\\\]", re.DOTALL)
_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


def _text(content: str) -> str:
    """Return text in a formula, with words that join answers as commands."""
    words = content.strip(" ,").translate(_LOWER)
    if words in ("and", "or"):
        return f" \\{words} "
    if not re.search("[a-z]", words) or _LETTERS.fullmatch(content.strip()):
        return f" {content} "
    if found := re.fullmatch(r"\s*(-?[\d.,]*\d)\s+([A-Za-z .]+)", content, re.ASCII):
        return f"{found[1]} \\text{{{found[2].strip()}}}"
    return f"\\text{{{content.strip()}}}"


def tidy(text: str) -> str:
    """Return an equivalent formula in canonical notation."""
    text = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+", lambda at: f"^{{{at.group().translate(_RAISED)}}}", text)
    text = re.sub("[₀₁₂₃₄₅₆₇₈₉₊₋ₙ]+", lambda at: f"_{{{at.group().translate(_LOWERED)}}}", text)
    text = text.translate(_TABLE).strip()
    text = unwrapped(text)
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text)
    text = unwrapped(text)
    if lead := _LEAD.match(text):
        text = text[lead.end() :]
        if lead.group().count("{") > lead.group().count("}"):
            text = text.replace("}", "", 1)
    return unwrapped(_joined_thousands(_single_parentheses(text)))


def _joined_thousands(text: str) -> str:
    """Return a text without thousands separators.

    Between brackets commas separate numbers, except before a zero, which begins no number.
    """

    def join(found: re.Match[str]) -> str:
        before = text[: found.start()]
        inside = sum(before.count(sign) for sign in "([{") - sum(map(before.count, ")]}"))
        if inside > 0 and not re.search(r",0", found.group()):
            return found.group()
        return found.group().replace(",", "")

    return _THOUSANDS.sub(join, text)


def _single_parentheses(text: str) -> str:
    """Return a text without doubled parentheses."""
    partners = _partners(text, "(", ")")
    doubled = {
        place
        for start, end in partners.items()
        if partners.get(start + 1) == end - 1
        for place in (start, end)
    }
    return "".join(sign for place, sign in enumerate(text) if place not in doubled)


def _without_braces(text: str) -> str:
    partners = _partners(text, "{", "}")
    layers = 0
    while partners.get(layers) == len(text) - 1 - layers:
        layers += 1
    return text[layers : len(text) - layers]


def _partners(text: str, opening: str, closing: str) -> dict[int, int]:
    """Return the position of each closing bracket by that of its opening one."""
    found: dict[int, int] = {}
    opened: list[int] = []
    escaped = False
    for place, sign in enumerate(text):
        if escaped:
            escaped = False
        elif sign == "\\":
            escaped = True
        elif sign == opening:
            opened.append(place)
        elif sign == closing and opened:
            found[opened.pop()] = place
    return found


def unwrapped(text: str) -> str:
    """Return a formula without dollars, redundant braces and punctuation around it."""
    while True:
        before = text
        text = text.strip()
        if found := _WRAPPED.fullmatch(text):
            text = next(filter(None, found.groups()), "")
        text = _without_braces(text)
        if text.endswith((".", ",", ";", ":")) and not text.endswith("\\,"):
            text = text[:-1]
        text = text.strip("*") if "*" in text[:1] + text[-1:] else text
        if text == before:
            return text


def squeezed(text: str) -> str:
    """Return a text without white space."""
    return "".join(text.split())


def lowered(text: str) -> str:
    """Return a text with ASCII letters in lower case."""
    return text.translate(_LOWER)
