"""The run's tokenizer, from the files that Hugging Face models come with."""

import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from typing_extensions import override

from protocol.bundle import decode_bundle
from protocol.faults import Fault
from roles.ports.text import Message, Tokenizer

_KEPT = ("<think>", "</think>")
"""Special in some vocabularies; they part thoughts from answers."""


class HuggingFaceTokenizer(Tokenizer):
    """``tokenizer.json``, ``tokenizer_config.json`` and the chat template of a directory.

    The template is rendered as transformers does, in jinja's sandbox. Nothing is fetched, and no
    code of the directory runs. A template that asks what day it is (Llama's do) is told
    ``founded_at``: on all machines and days it renders the same. Raises ``ValueError`` for a
    directory without any of them, or a vocabulary of more than ``vocabulary_max`` tokens.
    """

    def __init__(self, directory: Path, vocabulary_max: int, founded_at: datetime) -> None:
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - takes seconds
        from transformers.utils import chat_template_utils  # noqa: PLC0415 - the same

        if not (directory / "tokenizer.json").is_file():
            # transformers would ask for libraries that do not help.
            raise ValueError("the model has no tokenizer: there is no tokenizer.json")
        try:
            self._tokenizer = PreTrainedTokenizerFast.from_pretrained(
                directory, local_files_only=True
            )
        except Exception as error:  # noqa: BLE001 - the library raises this class itself
            reason = " ".join(str(error).split())
            raise ValueError(f"the model has no tokenizer: {reason}") from None
        if not self._tokenizer.chat_template:
            raise ValueError("the model has no chat template")
        # As ``apply_chat_template``, which takes no other clock.
        template = self._tokenizer.get_chat_template()
        self._template = chat_template_utils._cached_compile_jinja_template(template)  # noqa: SLF001
        self._template.environment.globals["strftime_now"] = founded_at.strftime
        if len(self._tokenizer) > vocabulary_max:
            raise ValueError(
                f"the tokenizer has {len(self._tokenizer)} tokens, the model {vocabulary_max}"
            )
        kept = set(self._tokenizer.convert_tokens_to_ids(list(_KEPT)))
        self._left_out = set(self._tokenizer.all_special_ids) - kept

    @property
    @override
    def vocabulary_size(self) -> int:
        return len(self._tokenizer)

    @override
    def encode_chat(self, question: str, before: Sequence[Message] = ()) -> tuple[int, ...]:
        text = self._template.render(
            messages=[message._asdict() for message in (*before, Message("user", question))],
            add_generation_prompt=True,
            **self._tokenizer.special_tokens_map,
        )
        return self.encode(text)

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text, and no others around them."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    @override
    def decode(self, tokens: tuple[int, ...]) -> str:
        known = range(self.vocabulary_size)
        said = [token for token in tokens if token in known and token not in self._left_out]
        return str(self._tokenizer.decode(said, clean_up_tokenization_spaces=False))


def of_bundle(path: Path, vocabulary_max: int, founded_at: datetime) -> HuggingFaceTokenizer:
    """Return the tokenizer of a run's bundle; raises ``ValueError`` as its class does."""
    files = decode_bundle(path.read_bytes())
    if isinstance(files, Fault):
        raise ValueError(f"{path}: {files}")  # noqa: TRY004 (a value, ours)
    with tempfile.TemporaryDirectory(prefix="prime-node-bundle-") as directory:
        for name, content in files.items():
            (Path(directory) / name).write_bytes(content)
        return HuggingFaceTokenizer(Path(directory), vocabulary_max, founded_at)
