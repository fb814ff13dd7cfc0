import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from node.cli.main import main
from node.models.chat import ChatOptions, ChatSession, harmless
from node.models.dialogue import pieces_of
from node.models.subject import directory_subject, held_subject
from tests.live.waiting import PATIENCE_SECONDS
from tests.worlds.held_runs import TEXT, held_run

ROOT = Path(__file__).parents[3]
PRIME_NODE = (sys.executable, "-c", "import sys; from node.cli.main import main; sys.exit(main())")
GENERATOR = {"name": "reasoning-gym/gcd"}


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """Node of a text run, whose random model answers with random bytes."""
    return held_run(tmp_path_factory.mktemp("run"), environment=TEXT | GENERATOR)


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    return held_run(tmp_path_factory.mktemp("sums"))


def chat(*options):
    return main(["chat", *map(str, options)])


def theirs(held, version, *messages, tokens):
    """Return transformers' greedy answer, as tokens."""
    out = held.root.parent / f"exported-{version}"
    if not out.exists():
        arguments = ["--data-dir", str(held.root), "--version", str(version), "--out", str(out)]
        assert main(["export", *arguments]) == 0
    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    roles = ("system", *("user", "assistant") * len(messages))
    told = [{"role": role, "content": text} for role, text in zip(roles, messages, strict=False)]
    prompt = tokenizer.apply_chat_template(
        told, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    with torch.inference_mode():
        made = model.generate(prompt, max_new_tokens=tokens, do_sample=False)
    kept = made[0, prompt.shape[1] :].tolist()
    return tokenizer.decode(kept, skip_special_tokens=True), len(kept)


# By script


def test_an_answer_is_that_of_transformers_after_the_runs_system_message(held, capsys):
    options = ("--data-dir", held.root, "-p", "Who is it?", "--tokens", "12", "--json")
    assert chat(*options) == 0
    printed = json.loads(capsys.readouterr().out)
    text, count = theirs(held, 3, TEXT["system"], "Who is it?", tokens=12)
    assert (printed["text"], printed["tokens"]) == (text, count)
    assert (printed["model"], printed["version"]) == ("version 3", 3)
    assert printed["digest"] == held.run.version(3).digest.hex()
    capsys.readouterr()
    assert chat(*options[:-1]) == 0
    assert capsys.readouterr().out == f"{text}\n"


def test_a_version_an_exported_directory_and_its_base_answer(held, tmp_path, capsys):
    out = tmp_path / "out"
    assert chat("--data-dir", held.root, "--version", "0", "-p", "Hm?", "--tokens", "8") == 0
    of_version = capsys.readouterr().out
    data = ("--data-dir", str(held.root), "--version", "0", "--out", str(out))
    assert main(["export", *data]) == 0
    capsys.readouterr()
    assert chat("--model", out, "-p", "Hm?", "--tokens", "8") == 0
    assert capsys.readouterr().out == of_version
    system = ("--system", TEXT["system"])
    assert chat("--model", held.base, "-p", "Hm?", "--tokens", "8", *system) == 0
    assert capsys.readouterr().out == of_version
    assert chat("--model", held.base, "-p", "Hm?", "--tokens", "8") == 0
    assert capsys.readouterr().out != of_version


def test_sampling_follows_the_seed(held, capsys):
    answers = []
    for seed in (1, 1, 2):
        options = ("--temperature", "1.5", "--seed", seed, "--tokens", "16", "-p", "Who?")
        assert chat("--data-dir", held.root, *options) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != answers[2]


def test_a_task_over_characters_is_asked_in_its_characters(sums, capsys):
    assert chat("--data-dir", sums.root, "-p", "3+4=", "--json") == 0
    assert json.loads(capsys.readouterr().out)["prompt_tokens"] == 4
    assert chat("--data-dir", sums.root, "-p", "Hello") == 2
    said = capsys.readouterr().err
    assert "the task arithmetic is over the characters 0123456789+= alone; ask for example" in said
    assert chat("--data-dir", sums.root, "-p", "1+1=", "--system", "Hm") == 2
    assert "--system is for runs in text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--data-dir", "{root}", "--version", "1", "-p", "?"), 78, "version 1 is not held in"),
        (("--model", "{root}", "-p", "?"), 78, "is not a Hugging Face directory"),
        (("--model", "{base}", "--version", "1"), 2, "--model excludes --version and --data-dir"),
        (("--model", "{base}", "--json"), 2, "--json is for one answer; add -p TEXT"),
        (("--data-dir", "{nothing}", "-p", "?"), 78, "belongs to no run"),
        (("--data-dir", "{root}", "-p", "{long}"), 2, "of the model's 128 positions"),
    ],
)
def test_refusals(held, tmp_path, capsys, options, code, said):
    places = {"root": held.root, "base": held.base, "nothing": tmp_path, "long": "x" * 200}
    assert chat(*(one.format(**places) for one in options)) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0]


def test_a_directory_without_a_template_cannot_chat(sums, capsys):
    assert chat("--model", sums.base, "-p", "Hello") == 78
    assert "cannot chat: the model has no tokenizer" in capsys.readouterr().err


# Dialogues


def test_a_conversation_is_asked_as_a_whole_until_it_is_forgotten(held):
    made = ChatSession(held_subject(held.run, held.run.version()), ChatOptions(tokens_max=4))
    first = "".join(made.ask("One?"))
    assert "".join(made.ask("Two?")) == made.reply.text
    text, _ = theirs(held, 3, TEXT["system"], "One?", first, "Two?", tokens=4)
    assert made.reply.text == text
    made.reset()
    assert "".join(made.ask("Two?")) == theirs(held, 3, TEXT["system"], "Two?", tokens=4)[0]


def test_an_answer_that_is_stopped_is_kept_as_far_as_it_came(held):
    made = ChatSession(held_subject(held.run, held.run.version()), ChatOptions(tokens_max=64))
    pieces = made.ask("One?")
    begun = next(pieces)
    pieces.close()
    assert made.reply.text.startswith(begun) and made.reply.tokens < 64 and made.reply.cut


def test_a_chat_that_fills_the_positions_says_so(held):
    made = ChatSession(directory_subject(held.base), ChatOptions(tokens_max=200))
    assert len("".join(made.ask("x" * 100))) > 0
    assert made.reply.prompt_tokens + made.reply.tokens <= 128
    with pytest.raises(ValueError, match="128 positions; /reset forgets it"):
        made.ask("x" * 100)


class Bytes:
    """Dialogue in which each token is a byte of UTF-8."""

    def text(self, tokens):
        return bytes(tokens).decode("utf-8", "replace")


def test_a_character_of_several_tokens_appears_whole():
    text = "a🙂é-\N{REPLACEMENT CHARACTER}."
    pieces = list(pieces_of(Bytes(), text.encode()))
    assert "".join(pieces) == text
    assert pieces[:2] == ["a", "🙂"]
    assert "".join(pieces_of(Bytes(), b"a\xf0\x9f")) == b"a\xf0\x9f".decode("utf-8", "replace")
    assert list(pieces_of(Bytes(), b"")) == []


# On a terminal


def test_a_model_cannot_command_a_terminal():
    assert harmless("a\x1b[2Jé\n\tb\r\x9b1mc\x7f🙂") == "a�[2Jé\n\tb��1mc�🙂"


class Terminal:
    """``prime-node chat`` on a terminal of its own."""

    def __init__(self, *options):
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb"}
        # The session has this terminal, so that Ctrl-C reaches the process.
        command = ["setsid", "--ctty", *PRIME_NODE, "chat", *map(str, options)]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        os.close(theirs)
        self.shown = ""

    def type(self, text):
        os.write(self._ours, text.encode())

    def interrupt(self, pattern):
        """Press Ctrl-C until a pattern is shown.

        A signal before ``input`` waits for a key takes effect at the next key.
        """
        self.type("\x03")
        self.until(pattern, again="\x03")

    def until(self, pattern, again=""):
        """Wait for a pattern; return the output since the last one."""
        ends_at = time.monotonic() + PATIENCE_SECONDS
        while not (found := re.search(pattern, self.shown)):
            assert time.monotonic() < ends_at, self.shown
            if not select.select([self._ours], [], [], 5)[0]:
                self.type(again)
            else:
                try:
                    self.shown += os.read(self._ours, 4096).decode("utf-8", "replace")
                except OSError:  # it has ended
                    raise AssertionError(self.shown) from None
        before, self.shown = self.shown[: found.end()], self.shown[found.end() :]
        return before

    def close(self):
        """End the process."""
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@pytest.fixture
def on_terminal(interruptible):
    started = []

    def start(*options):
        started.append(Terminal(*options))
        return started[-1]

    yield start
    for terminal in started:
        terminal.close()


def test_a_terminal_streams_an_answer_that_ctrl_c_stops(held, tmp_path, on_terminal):
    """The model never ends, and has positions for minutes of an answer."""
    base = tmp_path / "base"
    base.mkdir()
    for path in held.base.iterdir():
        (base / path.name).write_bytes(path.read_bytes())
    values = json.loads((base / "config.json").read_text())
    values |= {"max_position_embeddings": 1 << 20, "eos_token_id": 299}
    (base / "config.json").write_text(json.dumps(values))
    terminal = on_terminal("--model", base, "--tokens", str(1 << 20), "--temperature", "2")
    terminal.until(r"/reset forgets .*\r\n> ")
    terminal.interrupt(r"Ctrl-C stops an answer\r\n> ")
    terminal.type("Go\n")
    terminal.until(r"Go\r\n(?s:.){20}")
    terminal.interrupt(r"stopped\r\n> ")
    terminal.type("\x04")
    assert terminal.process.wait(PATIENCE_SECONDS) == 0


def test_lines_of_a_pipe_are_questions(sums):
    done = subprocess.run(
        [*PRIME_NODE, "chat", "--data-dir", str(sums.root), "--tokens", "2"],
        input="1+1=\n/reset\n\nHm\n2+2=\n/exit\n3+3=\n",
        capture_output=True, text=True, check=True, timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert len(done.stdout.splitlines()) == 2 and "> " not in done.stdout
    assert "version 3 of run testnet" in done.stderr
    assert "over the characters" in done.stderr and "cut after 2 tokens" in done.stderr
