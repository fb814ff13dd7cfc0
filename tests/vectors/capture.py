"""Writer of ``messages.json``: a message of each kind, an exchange of each stream protocol.

``python -m tests.vectors.capture`` writes it anew. A change of its content is a change of the wire
format: see section 17 of ``docs/protocol.md``.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from protocol.consensus.council import encode_chain
from tests.vectors.made import (
    BODY,
    BOOK,
    INDEX,
    MANIFEST,
    SIGNED_MANIFEST,
    encodings,
    messages,
    version_of_round,
)
from tests.vectors.spoken import directory, exchanges, gossip

PATH = Path(__file__).with_name("messages.json")


def capture() -> dict[str, Any]:
    return {
        "run_id": MANIFEST.run_id.hex(),
        "manifest": SIGNED_MANIFEST.encoded().hex(),
        "messages": {
            kind: {
                "envelope": signed.envelope.hex(),
                "id": signed.digest.hex(),
                "fields": shown(signed.message.model_dump()),
            }
            for kind, signed in messages().items()
        },
        "version_of_round": version_of_round().envelope.hex(),
        "chain": encode_chain(BOOK.chain(1, 2)).hex(),
        "body": BODY.hex(),
        "index": INDEX.hex(),
        "encodings": {name: data.hex() for name, data in encodings().items()},
        "streams": asyncio.run(exchanges()),
        "gossip": gossip(),
        "directory": directory(),
    }


def shown(value: Any) -> Any:
    """Return a value with its bytes as hexadecimal text, for JSON."""
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    return value.hex() if isinstance(value, bytes) else value


def main() -> None:
    PATH.write_text(json.dumps(capture(), indent=1) + "\n")


if __name__ == "__main__":
    main()
