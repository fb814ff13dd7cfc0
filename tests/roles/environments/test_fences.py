import pytest

from roles.environments.fences import blocks
from roles.environments.text import answer_of

SEPARATOR = "a = '\u2028\x0c\x85'"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```python\na\n```", [("python", "a")]),
        ("```Python\na\n```", [("python", "a")]),
        ("``` python\na\n```", [("python", "a")]),
        ('```python title="x.py"\na\n```', [("python", "a")]),
        ("```{.python .numberLines}\na\n```", [("python", "a")]),
        ("```python3.11\na\n```", [("python3", "a")]),
        ("~~~python\na\n```\n~~~", [("python", "a\n```")]),
        ("````python\n```\na\n````", [("python", "```\na")]),
        ("```python\na\n`````", [("python", "a")]),
        ("```python\na\n``` x\n```", [("python", "a\n``` x")]),
        ("1. so\n   ```python\n   if a:\n       b\n  c\n   ```", [("python", "if a:\n    b\nc")]),
        ("\t```python\n\ta\n\t```", [("python", "a")]),
        ("```python\r\na\r\nb\r\n```\r\n", [("python", "a\nb")]),
        ("```python\na\n  ```  \nb", [("python", "a")]),
        ("```python\na", [("python", "a")]),
        ("```python", [("python", "")]),
        ("```\na\n```\ntext\n```c++\nb\n```", [("", "a"), ("c++", "b")]),
        ("```a``` and ```b```\nc", []),
        ("``\na\n``", []),
        (f"```py\n{SEPARATOR}\n```", [("py", SEPARATOR)]),
    ],
)
def test_fences_as_people_write_them(text, found):
    assert [(block.language, block.text) for block in blocks(text)] == found


def test_a_block_tells_where_its_lines_are():
    text = "so\n```\nab\ncd\n```\nor\n```\nef"
    assert [text[block.start : block.end] for block in blocks(text)] == ["ab\ncd\n", "ef"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a", "a"),
        ("a</think>b", "b"),
        ("a</think>b</think>c", "c"),
        ("```py\na\n```</think>b", "b"),
        ("```py\na\n</think>b", "b"),
        ("```py\na</think>\nb", "\nb"),
        ("t</think>```py\nprint('a</think>b')\n```", "```py\nprint('a</think>b')\n```"),
        ("t</think>\n```py\nprint('a</think>b')\n```", "\n```py\nprint('a</think>b')\n```"),
        ("```py\nprint('a</think>b')\n```", "```py\nprint('a</think>b')\n```"),
    ],
)
def test_thoughts_end_at_the_last_mark_that_is_not_in_a_program(text, answer):
    assert answer_of(text) == answer
