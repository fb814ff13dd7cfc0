"""Validity of certificates, recomputed from the run's rules and the tree of pages.

A certificate names the page that draws its committee. Each signer belongs to that committee, counts
once, and signs the outcome of the certificate. All of the first committee accept; two thirds of the
larger one decide either way. All agree with the one that ranks first. A dissent contradicts more
than half of the seats of a larger committee's signers.
"""

from simulations.checkers.agreement import agree, contradict
from simulations.checkers.pages import Pages
from simulations.checkers.watch import Watch
from simulations.checkers.wire import VERDICT_BYTES_MAX, Opened, blake3_digest

Rank = tuple[int, int, bool, int, bytes]
"""Epoch of the page, place in its committee, outcome, minus dissents, digest of the verdicts."""


class Quorum:
    """Checks each certificate once."""

    def __init__(self, watch: Watch, pages: Pages) -> None:
        self._watch = watch
        self._pages = pages
        self._flaws: dict[bytes, str] = {}
        watch.on_forget(self._forget)

    def flaw(self, certificate: Opened) -> str:
        """Return the fault of a certificate; empty if it is valid."""
        if certificate.digest not in self._flaws:
            self._flaws[certificate.digest] = self._flaw(certificate)
        return self._flaws[certificate.digest]

    def rank(self, certificate: Opened) -> Rank:
        """Return the rank of a valid certificate: of two on one commit the lower one counts.

        A committee of an earlier page counts. Of one page, a first acceptance has the place of its
        last signer, a rejection that of its first signer, and an escalated acceptance comes last.
        At equality the rejection counts, then the one with more dissents.
        """
        fields, verdicts = certificate.fields, self.verdicts(certificate)
        commit = self._watch.wire.message(fields["commit"])
        ranking = "" if commit is None else self._pages.committee(commit, fields["page"])
        if isinstance(ranking, str):
            raise TypeError(f"an invalid certificate has no rank: {ranking}")
        places = sorted(ranking.index(verdict.signer) for verdict in verdicts)
        place = places[-1] if fields["accepted"] else places[0]
        if fields["accepted"] and fields["escalated"]:
            place = len(ranking)
        dissents = self.dissents(certificate)
        digests = [b"".join(sorted(one.digest for one in part)) for part in (verdicts, dissents)]
        content = blake3_digest(b"".join(digests))
        epoch = self._pages.epoch(fields["page"])
        return epoch, place, fields["accepted"], -len(dissents), content

    def verdicts(self, certificate: Opened) -> list[Opened]:
        """Return the readable verdicts inside a certificate."""
        return self._opened(certificate.fields["verdicts"])

    def dissents(self, certificate: Opened) -> list[Opened]:
        """Return the readable dissents inside a certificate."""
        return self._opened(certificate.fields["dissents"])

    def _opened(self, envelopes: tuple[bytes, ...]) -> list[Opened]:
        opened = [self._watch.wire.open(envelope, self._watch.now) for envelope in envelopes]
        return [item for item in opened if item is not None and item.kind == "verdict"]

    def signers(self, certificate: Opened) -> list[str]:
        """Return the signers of the verdicts inside a certificate."""
        return [verdict.signer for verdict in self.verdicts(certificate)]

    def _flaw(self, certificate: Opened) -> str:
        fields = certificate.fields
        commit = self._watch.wire.message(fields["commit"])
        if not certificate.well_signed:
            return "its signature is invalid"
        if commit is None or commit.kind != "rollout-commit":
            return "its commit is unknown"
        verdicts = self.verdicts(certificate)
        dissents = self.dissents(certificate)
        if len(verdicts + dissents) != len(fields["verdicts"] + fields["dissents"]):
            return "it holds a message that is no verdict"
        if any(verdict.signer == commit.signer for verdict in verdicts):
            return "a worker judges its own rollout"
        return (
            self._flaw_of(verdicts, dissents, certificate)
            or self._flaw_of_signers(verdicts, certificate, commit)
            or self._flaw_of_values(verdicts, dissents, certificate, commit)
        )

    def _flaw_of(self, verdicts: list[Opened], dissents: list[Opened], certificate: Opened) -> str:
        fields, every = certificate.fields, verdicts + dissents
        for verdict in every:
            if not verdict.well_signed:
                return "a verdict's signature is invalid"
            if verdict.length > VERDICT_BYTES_MAX:
                return f"a verdict of {verdict.length} bytes"
            if any(verdict.fields[key] != fields[key] for key in ("commit", "page")):
                return "a verdict is about another commit or page"
        if any(verdict.fields["accept"] is not fields["accepted"] for verdict in verdicts):
            return "a verdict contradicts it"
        if len({verdict.signer for verdict in every}) != len(every):
            return "a validator is counted twice"
        return ""

    def _flaw_of_values(
        self,
        verdicts: list[Opened],
        dissents: list[Opened],
        certificate: Opened,
        commit: Opened,
    ) -> str:
        rules = self._watch.rules
        ranking = self._pages.committee(commit, certificate.fields["page"])
        if isinstance(ranking, str):
            return ranking
        leading = min(verdicts, key=lambda one: ranking.index(one.signer)).fields
        if not all(agree(rules, leading, one.fields) for one in verdicts):
            return "its verdicts do not agree"
        members = ranking[: rules.escalated_size] if certificate.fields["escalated"] else []
        seats = sum(map(members.count, (one.signer for one in verdicts)))
        for dissent in dissents:
            against = sum(
                members.count(one.signer)
                for one in verdicts
                if contradict(rules, dissent.fields, one.fields)
            )
            if dissent.signer not in members or 2 * against <= seats:
                return "a dissent contradicts too few of its verdicts"
        return ""

    def _flaw_of_signers(self, verdicts: list[Opened], certificate: Opened, commit: Opened) -> str:
        rules, fields = self._watch.rules, certificate.fields
        if not fields["accepted"] and not fields["escalated"]:
            return "a first committee cannot reject"
        ranking = self._pages.committee(commit, fields["page"])
        if isinstance(ranking, str):
            return ranking
        if certificate.signer not in self._pages.council(fields["page"]):
            return "its author is not of the council"
        members = ranking[: rules.escalated_size if fields["escalated"] else rules.committee_size]
        needed = -(-2 * len(members) // 3) if fields["escalated"] else len(members)
        outside = [verdict.signer for verdict in verdicts if verdict.signer not in members]
        if outside:
            return f"{self._watch.swarm.name(outside[0])} is not of the committee"
        signers = {verdict.signer for verdict in verdicts}
        signed = sum(member in signers for member in members)
        if signed >= max(1, needed):
            return ""
        return f"{signed} of its committee signed, {needed} are needed"

    def _forget(self, _oldest: float) -> None:
        wire = self._watch.wire  # it has dropped older messages
        self._flaws = {key: flaw for key, flaw in self._flaws.items() if wire.message(key)}
