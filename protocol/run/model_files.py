"""Bundle of a run: the small files of its model, identical on every node.

Canonical msgpack, a map of file name to bytes: ``config.json`` as its author wrote it, generation
configuration, tokenizer, chat template, model card and licence. Weights are not part of it.
"""

from collections.abc import Mapping

from protocol.core.codec import decode, encode
from protocol.core.faults import Fault, FaultCode

BUNDLE_FILES = (
    "LICENSE",
    "LICENSE.txt",
    "NOTICE",
    "README.md",
    "added_tokens.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
)
"""Names as on Hugging Face; a bundle holds no other, so none of them is a path."""

BUNDLE_BYTES_MAX = 64 * 1024 * 1024
"""Published tokenizers take up to 33 MB (a vocabulary of 262,144)."""


def encode_bundle(files: Mapping[str, bytes]) -> bytes:
    """Return the bundle of some files; raises ``ValueError`` for other names or excess size."""
    others = [name for name in files if name not in BUNDLE_FILES]
    if others:
        raise ValueError(f"a bundle holds no {others[0]!r}")
    encoded = encode(dict(files))
    if len(encoded) > BUNDLE_BYTES_MAX:
        raise ValueError(
            f"the model's small files take {len(encoded)} bytes in all, limit {BUNDLE_BYTES_MAX}"
        )
    return encoded


def decode_bundle(data: bytes) -> dict[str, bytes] | Fault:
    """Return the files of a bundle by name."""
    files = decode(data, bytes_max=BUNDLE_BYTES_MAX)
    if isinstance(files, Fault):
        return files
    if not isinstance(files, dict) or not all(
        name in BUNDLE_FILES and isinstance(content, bytes) for name, content in files.items()
    ):
        return Fault(FaultCode.BAD_BUNDLE, "not a map of known names to bytes")
    return files
