"""Whether an answer in mathematics is the expected one, by math-verify."""

from typing import Any

from math_verify import parse, verify


def check(question: Any) -> bool:
    """Tell whether ``answer`` means the same as ``expected``.

    The library's own deadlines are of the wall; the kernel ends this process by processor time.
    """
    expected = parse(f"\\boxed{{{question['expected']}}}", parsing_timeout=None)
    answer = parse(question["answer"], parsing_timeout=None, raise_on_error=True)
    return bool(verify(expected, answer, timeout_seconds=None, raise_on_error=True))
