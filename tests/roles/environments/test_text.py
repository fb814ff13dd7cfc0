import re
from pathlib import Path

from roles.ports.engines import Answer, Unscorable
from simulations.runtime.loop import SimBackground
from tests.worlds.text import byte_tokenizer, opened

PAGE = Path(__file__).parents[3] / "docs" / "environments.md"


async def test_the_example_of_the_page_is_a_task(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {}
    exec(example, names)
    tokenizer = byte_tokenizer(tmp_path)
    task = await opened(names["Doubling"]("doubling/small", lambda: tokenizer, SimBackground()))
    prompt = await task.prompt(2**64 - 1, 60)
    assert tokenizer.decode(prompt) == (
        "What is twice 615? Say the number alone.\n\nThink for 60 tokens before giving a response."
    )
    answers = [
        Answer(2**64 - 1, tokenizer.encode_chat(text)[1:-1])
        for text in ("1230", "1229", "<think>1230</think>0", "<think>0</think> 1230 \n", "")
    ]
    answers.append(Answer(1, answers[0].tokens))
    assert await task.score_batch(answers) == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert await task.score_batch([]) == []
    assert not isinstance(await task.grade(1, "2"), Unscorable)
