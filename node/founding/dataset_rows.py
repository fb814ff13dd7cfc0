"""Conversion of a source row into a run's text columns."""

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from roles.environments.rows import (
    CHAT_BEFORE,
    PASS_RATE,
    UnusableRowError,
    check_texts,
    read_messages,
)

_EXPONENT_MAX = 400
"""Exponent limit, above every binary64 number."""

_STANDARD_STREAMS = (("type", "stdin_stdout"), ("testtype", "stdin"))
"""Fields with which some data sets mark tests with input and output."""


def run_row(raw: Mapping[str, Any], family: str) -> dict[str, str]:
    """Return the columns of a row in a run's data set, without missing ones.

    Raises ``UnusableRowError`` for an unusable row.
    """
    row = _prompt(raw)
    if family == "code":
        row["tests"] = _tests(_value(raw, "tests"))
    else:
        row["answer"] = _text("answer", _value(raw, "answer"))
    check_texts(row)
    return row


def pass_rate(raw: Mapping[str, Any]) -> float | None:
    """Return the pass rate of a row, if it has one; raises ``UnusableRowError``."""
    given = raw.get(PASS_RATE)
    if given is None or given == "":
        return None
    try:
        rate = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError):
        rate = math.nan
    if not 0 <= rate <= 1:
        raise UnusableRowError(f"{PASS_RATE} is not a number from 0 to 1: {str(given)[:40]!r}")
    return rate


def _value(raw: Mapping[str, Any], name: str) -> Any:
    if name not in raw:
        raise UnusableRowError(f"no {name}; it has {', '.join(map(str, raw))[:80] or 'nothing'}")
    if raw[name] is None:
        raise UnusableRowError(f"{name} is null")
    return raw[name]


def _prompt(raw: Mapping[str, Any]) -> dict[str, str]:
    """Return the columns of a prompt: text, or a chat that ends with a user's message."""
    prompt = _value(raw, "prompt")
    before = raw.get(CHAT_BEFORE)
    if isinstance(prompt, str):
        prompt = _chat_text(prompt) or prompt
    if isinstance(prompt, str):
        return {"prompt": prompt} | ({CHAT_BEFORE: _text(CHAT_BEFORE, before)} if before else {})
    if not isinstance(prompt, list):
        raise UnusableRowError(f"prompt is {_kind(prompt)}, neither text nor a chat")
    # Parquet structs contain all fields, with null where JSON would omit one.
    given = [_present(item) if isinstance(item, dict) else item for item in prompt]
    *earlier, last = read_messages(given) or (None,)
    if before or last is None or last.role != "user":
        raise UnusableRowError("a prompt that is a chat must end with a message of a user")
    messages = [message._asdict() for message in earlier if message is not None]
    chat = {CHAT_BEFORE: json.dumps(messages, ensure_ascii=False)} if messages else {}
    return {"prompt": last.content, **chat}


def _chat_text(text: str) -> list[Any] | None:
    """Return the chat in a text of JSON, as in csv data sets."""
    if not text.lstrip().startswith("["):
        return None
    try:
        chat = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_chat = isinstance(chat, list) and all(
        isinstance(item, dict) and {"role", "content"} <= item.keys() for item in chat
    )
    return chat if is_chat else None


def _tests(value: Any) -> str:
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_float=Decimal)
        except (ValueError, ArithmeticError, RecursionError) as error:
            reason = " ".join(str(error).split())[:80]
            raise UnusableRowError(f"tests are not JSON: {reason}") from None
    if isinstance(value, dict):
        value = _pairs(_present(value))
    if not isinstance(value, list):
        raise UnusableRowError(f"tests are {_kind(value)}, not a list")
    return json.dumps([_test(item) for item in value], ensure_ascii=False)


def _pairs(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert tests from the APPS format, in which inputs and outputs are two lists."""
    if "fn_name" in value:
        raise UnusableRowError(
            f"tests call the function {str(value['fn_name'])[:40]!r}: write them as asserts, "
            '{"assert": "assert f(1) == 2"}'
        )
    match value:
        case {"inputs": list(given), "outputs": list(expected)} if len(given) == len(expected):
            return [
                {"input": one, "output": other} for one, other in zip(given, expected, strict=True)
            ]
        case _:
            raise UnusableRowError("tests are neither a list nor inputs and as many outputs")


def _test(item: Any) -> Any:
    if isinstance(item, str):  # as MBPP has them
        return {"assert": item}
    if not isinstance(item, dict):
        raise UnusableRowError(f"invalid test: {str(item)[:80]}")
    test = _present(item)
    for mark in _STANDARD_STREAMS:
        if mark in test.items():
            del test[mark[0]]
    return {key: value if key == "assert" else _stream(key, value) for key, value in test.items()}


def _stream(name: str, value: Any) -> str:
    """Return a program's input or output, given as text, a number or a list of lines."""
    if isinstance(value, list):
        return "\n".join(_text(f"a line of {name}", line) for line in value)
    return _text(f"{name} of a test", value)


def _text(name: str, value: Any) -> str:
    """Return text unchanged, and a number in decimal."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise UnusableRowError(f"{name} is {_kind(value)}, neither text nor a number")
    number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    if not number.is_finite() or abs(number.adjusted()) > _EXPONENT_MAX:
        raise UnusableRowError(f"{name} is out of range: {str(value)[:40]}")
    if not number:
        return "0"
    digits = f"{number:f}"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def _present(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in item.items() if value is not None}


def _kind(value: Any) -> str:
    return "null" if value is None else f"of the type {type(value).__name__}"
