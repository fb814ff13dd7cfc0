"""Types of the fields of messages, and limits that several kinds have."""

from typing import Annotated

from pydantic import AfterValidator, Field

from protocol.core.crypto import SIGNATURE_BYTES
from protocol.core.types import DIGEST_BYTES, RATE_CLASS_MAX
from protocol.core.vrf import PROOF_BYTES
from protocol.messages.node_names import NODE_NAME_CHARACTERS_MAX, check_node_name

BATCH_MAX = 256
"""Maximum commits in a version's batch; their digests take half of an envelope."""

OMITTED_MAX = 64
"""Maximum commits that a version names as left out of its batch: a quarter of the largest batch."""


COUNCIL_MAX = 200
"""Maximum seats. A draw of 200 keys among which 20 % are dishonest holds a third of dishonest ones
once in 500,000 draws."""


DigestBytes = Annotated[bytes, Field(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
SignatureBytes = Annotated[bytes, Field(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


def _digest_or_empty(value: bytes) -> bytes:
    if len(value) not in (0, DIGEST_BYTES):
        raise ValueError("neither a digest nor empty")
    return value


def _proof_or_empty(value: bytes) -> bytes:
    if len(value) not in (0, PROOF_BYTES):
        raise ValueError("neither a proof nor empty")
    return value


OptionalDigest = Annotated[bytes, AfterValidator(_digest_or_empty)]
UInt = Annotated[int, Field(ge=0, le=2**53)]
EpochOrNone = Annotated[int, Field(ge=-1, le=2**53)]
RevealProof = Annotated[bytes, AfterValidator(_proof_or_empty)]
Seats = Annotated[int, Field(ge=1, le=COUNCIL_MAX)]
RateClass = Annotated[int, Field(ge=0, le=RATE_CLASS_MAX)]
Millionths = Annotated[int, Field(ge=-(2**53), le=2**53)]
Billionths = Annotated[int, Field(ge=-(2**53), le=2**53)]
ShortText = Annotated[str, Field(max_length=200)]
NodeName = Annotated[
    str, Field(max_length=NODE_NAME_CHARACTERS_MAX), AfterValidator(check_node_name)
]
