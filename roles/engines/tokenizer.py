"""The run's tokenizer, from the files that Hugging Face models come with."""

from pathlib import Path

from typing_extensions import override

from roles.ports.text import Tokenizer

_KEPT = ("<think>", "</think>")
"""Special in some vocabularies; they part thoughts from answers."""


class HuggingFaceTokenizer(Tokenizer):
    """``tokenizer.json``, ``tokenizer_config.json`` and the chat template of a directory.

    The template is rendered as transformers does, in jinja's sandbox. Nothing is fetched, and no
    code of the directory runs. Raises ``ValueError`` for a directory without any of them.
    """

    def __init__(self, directory: Path) -> None:
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - takes seconds

        try:
            self._tokenizer = PreTrainedTokenizerFast.from_pretrained(
                directory, local_files_only=True
            )
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"{directory} holds no tokenizer: {reason}") from None
        if not self._tokenizer.chat_template:
            raise ValueError(f"{directory} holds no chat template")
        kept = set(self._tokenizer.convert_tokens_to_ids(list(_KEPT)))
        self._left_out = set(self._tokenizer.all_special_ids) - kept

    @property
    @override
    def vocabulary_size(self) -> int:
        return len(self._tokenizer)

    @override
    def encode_chat(self, question: str) -> tuple[int, ...]:
        chat = [{"role": "user", "content": question}]
        text = self._tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    @override
    def decode(self, tokens: tuple[int, ...]) -> str:
        known = range(self.vocabulary_size)
        said = [token for token in tokens if token in known and token not in self._left_out]
        return str(self._tokenizer.decode(said, clean_up_tokenization_spaces=False))
