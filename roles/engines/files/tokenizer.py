"""The run's tokenizer, loaded from a Hugging Face model's files."""

import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from typing_extensions import override

from protocol.core.faults import Fault
from protocol.run.model_files import decode_bundle
from roles.ports.text import ChatMessage, Tokenizer

_KEPT = ("<think>", "</think>")
"""Special tokens in some vocabularies; kept in text because they delimit reasoning."""


class HuggingFaceTokenizer(Tokenizer):
    """``tokenizer.json``, ``tokenizer_config.json`` and the chat template of a directory.

    Renders the template as transformers' ``apply_chat_template`` does, in jinja's sandbox. It
    fetches nothing and runs no code of the directory. Llama's templates read the date through
    ``strftime_now``; here that formats ``founded_at``, so the text is equal on all machines and
    days. Raises ``ValueError`` if a file is missing, jinja cannot parse the template, or the
    vocabulary has more than ``vocabulary_max`` tokens.
    """

    def __init__(self, directory: Path, vocabulary_max: int, founded_at: datetime) -> None:
        from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - takes seconds

        if not (directory / "tokenizer.json").is_file():
            # Without this check transformers asks for unrelated libraries.
            raise ValueError(
                "the model has no tokenizer: there is no tokenizer.json; download it, or save one "
                "with AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
            )
        try:
            self._tokenizer = PreTrainedTokenizerFast.from_pretrained(
                directory, local_files_only=True
            )
        except Exception as error:  # noqa: BLE001 - the library raises the base class
            raise ValueError(f"the model has no tokenizer: {_line(error)}") from None
        self._template = self._compiled(founded_at)
        if len(self._tokenizer) > vocabulary_max:
            raise ValueError(
                f"the tokenizer has {len(self._tokenizer)} tokens, the model {vocabulary_max}; "
                "use the tokenizer of this model"
            )
        kept = set(self._tokenizer.convert_tokens_to_ids(list(_KEPT)))
        self._left_out = set(self._tokenizer.all_special_ids) - kept

    def _compiled(self, founded_at: datetime) -> Any:
        """Compile the default template; ``apply_chat_template`` accepts no other clock."""
        from transformers.utils import chat_template_utils  # noqa: PLC0415 - takes seconds

        if not self._tokenizer.chat_template:
            raise ValueError(
                "the model has no chat template; use its instruct version, or write a "
                "chat_template.jinja"
            )
        try:
            text = self._tokenizer.get_chat_template()
            template = chat_template_utils._cached_compile_jinja_template(text)  # noqa: SLF001
        except Exception as error:  # noqa: BLE001 - jinja raises many types
            raise ValueError(
                f"the chat template cannot be read: {_line(error)}; correct chat_template.jinja"
            ) from None
        template.environment.globals["strftime_now"] = founded_at.strftime
        return template

    @property
    @override
    def vocabulary_size(self) -> int:
        return len(self._tokenizer)

    @override
    def encode_chat(self, question: str, before: Sequence[ChatMessage] = ()) -> tuple[int, ...]:
        return self.encode(self.render_chat(question, before))

    def render_chat(self, question: str, before: Sequence[ChatMessage] = ()) -> str:
        """Return the text of a chat, up to the start of the assistant's answer.

        Raises ``ValueError`` if the template raises, such as for an unknown role.
        """
        try:
            return str(
                self._template.render(
                    messages=[
                        message._asdict() for message in (*before, ChatMessage("user", question))
                    ],
                    # As transformers passes them: a template may test whether they are None.
                    tools=None,
                    documents=None,
                    add_generation_prompt=True,
                    **self._tokenizer.special_tokens_map,
                )
            )
        except Exception as error:  # noqa: BLE001 - templates raise many types
            kind = type(error).__name__
            raise ValueError(f"the chat template raised {kind}: {_line(error)}") from None

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a text, without special tokens around them."""
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    @override
    def decode(self, tokens: tuple[int, ...]) -> str:
        known = range(self.vocabulary_size)
        kept = [token for token in tokens if token in known and token not in self._left_out]
        return str(self._tokenizer.decode(kept, clean_up_tokenization_spaces=False))


def of_bundle(path: Path, vocabulary_max: int, founded_at: datetime) -> HuggingFaceTokenizer:
    """Load the tokenizer of a run's bundle; raises ``ValueError`` as its class does."""
    files = decode_bundle(path.read_bytes())
    if isinstance(files, Fault):
        raise ValueError(f"{path}: {files}")  # noqa: TRY004 (a value, ours)
    with tempfile.TemporaryDirectory(prefix="prime-node-bundle-") as directory:
        for name, content in files.items():
            (Path(directory) / name).write_bytes(content)
        return HuggingFaceTokenizer(Path(directory), vocabulary_max, founded_at)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
