"""Trusted page: the page of a council that a node learned from its operator, not from peers.

Keys of a former council can sign another history from any page of their council on, and a node that
joins cannot tell both apart (weak subjectivity). Each page names the page that seated its council.
So the seats of a run are a chain of hashes, and the handovers, which every node keeps, show all of
it. A history with the trusted page in its seats is the same up to that page.
"""

import re
from dataclasses import dataclass

from protocol.consensus.pages import PageTree
from protocol.core.types import DIGEST_BYTES

_TEXT = re.compile(rf"(0|[1-9][0-9]{{0,15}}):([0-9a-fA-F]{{{2 * DIGEST_BYTES}}})")


@dataclass(frozen=True, slots=True)
class TrustedPage:
    """A final page that seated a council."""

    epoch: int
    digest: bytes

    @classmethod
    def parse(cls, text: str) -> "TrustedPage":
        """Parse what ``str`` returns; raises ``ValueError``."""
        match = _TEXT.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a page, which is EPOCH:DIGEST of a join command")
        return cls(int(match[1]), bytes.fromhex(match[2]))

    @classmethod
    def of(cls, tree: PageTree) -> "TrustedPage | None":
        """Return the page that seated the present council; None for that of the genesis."""
        council = tree.council
        return cls(council.since, council.seat) if council.seat else None

    def __str__(self) -> str:
        return f"{self.epoch}:{self.digest.hex()}"

    def is_in(self, tree: PageTree) -> bool:
        """Return whether the final chain of a tree contains this page."""
        return self.digest in tree.councils

    def contradicts(self, tree: PageTree) -> bool:
        """Return whether the final chain of a tree has passed its epoch without it."""
        return tree.root.epoch >= self.epoch and not self.is_in(tree)
