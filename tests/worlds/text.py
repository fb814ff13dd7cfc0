"""Byte tokenizer and parquet data sets on disk."""

import json
import shutil
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyarrow import parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from roles.engines.files.tokenizer import HuggingFaceTokenizer

FOUNDED_AT = datetime(2026, 3, 4, tzinfo=UTC)

TEMPLATE = (
    "{% for message in messages %}<|user|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

needs_jail = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")


def byte_tokenizer(directory):
    """Write a tokenizer of bytes, two special tokens and an end token; return it as loaded."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bare.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=bare, eos_token="<|end|>")
    special = ["<|user|>", "<|assistant|>", "</think>"]
    made.add_special_tokens({"additional_special_tokens": special})
    made.chat_template = TEMPLATE
    made.save_pretrained(directory)
    return read_tokenizer(directory)


def read_tokenizer(directory, vocabulary_max=1000):
    return HuggingFaceTokenizer(directory, vocabulary_max, FOUNDED_AT)


async def opened(task):
    await task.open()
    return task


def write_rows(path, rows, **options):
    parquet.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def exchange(given, expected):
    return {"input": given, "output": expected}


def program_row(prompt, *tests):
    return {"prompt": prompt, "tests": json.dumps(tests)}


class MemoryRows:
    def __init__(self, *rows):
        self._rows = rows
        self.count = len(rows)

    def row(self, index):
        return self._rows[index]
