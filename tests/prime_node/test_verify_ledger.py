"""The standalone check of an exported ledger, against the protocol's own pages and accounts."""

import io
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import _cffi_backend
import blake3
import cffi
import msgpack
import nacl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.models.ledger_export import FORMAT, write_export, write_proof
from prime_node import verify_ledger
from protocol.consensus.council import Council, NotarisedPage, decode_notarised, vote_for
from protocol.core.codec import decode, encode
from protocol.core.crypto import (
    Identity,
    digest,
    peer_id_from_public_key,
    verify,
)
from protocol.core.rng import Rng
from protocol.ledger import accounts as protocol_accounts
from protocol.ledger.account_leaves import AMOUNT_MAX
from protocol.ledger.accounts import Accounts, CreditRules
from protocol.ledger.receipts import COUNT_MAX, PageWork, Receipt, Reversal, Step, decode_work
from protocol.ledger.reversals import MISJUDGED_MIN
from protocol.messages import OMITTED_MAX, OPENED_MAX, Opened, Page, Signed, open_envelope, seal
from protocol.rollout.agreement import CERTAIN_REASONS
from protocol.rollout.audit import SLASHABLE_REASONS
from tests.prime_node.exported_run import (
    COUNCIL,
    CREDIT,
    ExportedRun,
    base64_of,
    bytes_of,
    manifest_bytes,
    sample_run,
    text_of,
    work_of,
)
from tests.protocol.consensus.councils import KEYS, PEERS, key_of

SCRIPT = Path(verify_ledger.__file__)
A, _, _, _, E, *_ = PEERS


@cache
def sample() -> ExportedRun:
    return sample_run()


@cache
def sample_bytes() -> bytes:
    return text_of(sample().export())


def lines() -> list[dict]:
    """Return the lines of the sample, to be changed."""
    return [json.loads(line) for line in sample_bytes().splitlines()]


@pytest.fixture
def check(tmp_path, capsys):
    """Return a function that verifies an export in this process: exit code and output."""
    return lambda export, *options: checked(tmp_path, capsys, export, *options)


def checked(folder, capsys, export, *options):
    path = folder / "export.jsonl"
    path.write_bytes(export if type(export) is bytes else text_of(export))
    code = verify_ledger.main([str(path), *options])
    output = capsys.readouterr()
    return code, output.out + output.err


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return a function that runs the script in a process without any of our packages."""
    site = tmp_path_factory.mktemp("site")
    for module in (blake3, cffi, msgpack, nacl):
        folder = Path(module.__file__).parent
        (site / folder.name).symlink_to(folder)
    backend = Path(_cffi_backend.__file__)
    (site / backend.name).symlink_to(backend)
    program = (
        "import runpy, sys; sys.path.append(sys.argv.pop(1)); del sys.argv[0];"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )

    def run(*arguments, stdin=None):
        command = [sys.executable, "-I", "-S", "-c", program, site, SCRIPT, *arguments]
        done = subprocess.run(
            [*map(str, command)],
            cwd=site,
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return run


# Valid exports


def test_the_sample_has_all_kinds_of_handovers():
    run = sample()
    assert [len(handover) for handover in run.tree.handovers] == [6, 3, 4]
    assert any(one.slashed >= 0 for one in run.accounts.all().values())
    assert any(one.forfeited for one in run.accounts.all().values())
    assert any(one.credit for one in run.accounts.all().values())
    assert any(one.partners for work in run.works.values() for one in work.steps)


def test_the_script_runs_alone(alone, tmp_path):
    path = tmp_path / "export.jsonl"
    path.write_bytes(sample_bytes())
    code, out, err = alone(path, "--json", "--run", sample().run_id.hex())
    assert (code, err) == (0, "")
    found, run = json.loads(out), sample()
    assert found["run"] == run.run_id.hex()
    assert found["root"] == run.accounts.root.hex()
    assert found["totals"] == run.accounts.totals._asdict()
    assert (found["epoch"], found["page"]) == (72, run.tree.root.digest.hex())
    assert (found["pages"], found["councils"]) == (len(run.final), 4)
    accounts = {one["peer"]: one for one in found["accounts"]}
    assert accounts.keys() == run.accounts.all().keys()
    for peer, account in run.accounts.all().items():
        shown = accounts[peer]
        assert shown["window"] == account.window.hex()
        fields = [name for name in shown if name not in {"peer", "held", "window"}]
        assert {name: shown[name] for name in fields} == {
            name: getattr(account, name) for name in fields
        }
        assert shown["held"] == account.held
    held = [one["held"] for one in found["accounts"]]
    assert held == sorted(held, reverse=True)
    code, out, err = alone(path)
    assert (code, err) == (0, "")
    assert found["accounts"][0]["peer"] in out


def test_the_script_imports_the_standard_library_and_three_packages():
    code = f"import runpy, sys; runpy.run_path({str(SCRIPT)!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert {"blake3", "nacl", "msgpack"} <= loaded
    assert not loaded & {"protocol", "node", "roles", "simulations", "pydantic", "base58"}


def test_an_export_from_a_later_page(check):
    run = sample()
    stated = {node.page.message.final_epoch for node in run.final}
    begun = 0
    for epoch in sorted(run.leaves)[1:]:
        later = [n for n in run.final if n.epoch > epoch and n.page.message.final_epoch == epoch]
        code, text = check(run.export(epoch), "--json")
        proof = run.tree.newest[-1].page.message
        assert (code == 0) == (bool(later) or proof.final_epoch == epoch), (epoch, text)
        if code == 0:
            begun += 1
            assert json.loads(text)["root"] == run.accounts.root.hex()
            assert json.loads(text)["start_epoch"] == epoch
        else:
            assert text == "refused: start: no page of the file states the root of these accounts\n"
    assert begun >= len(stated) - 1


def test_an_export_that_ends_with_a_council(check):
    run, rng = ExportedRun(), Rng(b"a council")
    for epoch in range(5):
        run.extend(epoch, work=work_of(epoch, rng))
    for epoch in (6, 7, 8):
        run.extend(epoch, joined=(E,) if epoch == 6 else ())
    assert run.tree.newest == ()
    assert "newest" not in [next(iter(line)) for line in run.export()]
    code, text = check(run.export(), "--json")
    assert code == 0
    assert json.loads(text)["root"] == run.accounts.root.hex()


def test_a_run_without_final_pages(check):
    run = ExportedRun()
    code, text = check(run.export(), "--json")
    assert (code, json.loads(text)["pages"]) == (0, 0)
    assert json.loads(text)["root"] == run.accounts.root.hex()
    assert check(run.export())[0] == 0


def test_a_manifest_that_leaves_out_its_credit(check):
    run = ExportedRun(manifest_bytes(credit={"slash": False}))
    assert check(run.export()) == (1, "refused: manifest: KeyError 'per_token'\n")


# Proofs


def proof_lines(peer: str = A) -> list[dict]:
    """Return the lines of a proof of an account in the sample."""
    run, stream = sample(), io.BytesIO()
    epoch = run.tree.root.page.message.final_epoch
    accounts = Accounts.restore(run.leaves[epoch], run.accounts.rules)
    proof = accounts.proof(peer)
    write_proof(stream, run.manifest, run.tree.handovers, run.tree.newest, proof)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_proof_shows_one_account_and_the_totals(check):
    code, output = check(proof_lines(), "--json")
    found = json.loads(output)
    run, epoch = sample(), sample().tree.root.page.message.final_epoch
    accounts = Accounts.restore(run.leaves[epoch], run.accounts.rules)
    mine = accounts.account(A)
    assert (code, found["epoch"], found["root"]) == (0, epoch, run.roots[epoch].hex())
    assert found["account"]["peer"] == A
    assert found["account"]["held"] == mine.credit + sum(amount for _, amount in mine.locked)
    assert {name: found[name] for name in ("rollouts", "tokens", "credit", "steps")} == (
        accounts.totals._asdict()
    )
    assert check(proof_lines())[1].count(A) == 1


def test_a_proof_beside_the_handovers_is_small():
    """With 20,000 accounts a path has 15 digests; the header and both paths stay below 8 kB."""
    *_, line = proof_lines()
    leaves = len(line["proof"]["account"]) + len(line["proof"]["header"])
    assert leaves + 2 * 15 * (4 * 33 // 3 + 4) < 8000


@pytest.mark.parametrize("name", ["account", "header"])
def test_a_changed_account_is_refused(check, name):
    lines = proof_lines()
    data = bytearray(bytes_of(lines[-1]["proof"][name]))
    data[-1] ^= 1
    lines[-1]["proof"][name] = base64_of(bytes(data))
    assert check(lines)[0] == 1
    assert "refused: proof: " in check(lines)[1]


@pytest.mark.parametrize(
    "change",
    [
        {"place": 0},
        {"place": 10**9},
        {"size": 2},
        {"size": "3"},
        {"account_path": []},
        {"account_path": None},
        {"header_path": [base64_of(bytes(31))]},
    ],
)
def test_a_changed_path_is_refused(check, change):
    lines = proof_lines()
    lines[-1]["proof"] |= change
    assert check(lines) == (1, "refused: proof: its paths lead to no root\n")


def test_a_proof_of_other_accounts_is_refused(check):
    """The accounts are well-formed, but no page states their root."""
    run, stream = sample(), io.BytesIO()
    proof = run.accounts.proof(A)
    write_proof(stream, run.manifest, run.tree.handovers, run.tree.newest, proof)
    said = "proof: of other accounts than the newest final page states"
    assert check(stream.getvalue()) == (1, f"refused: {said}\n")


def test_a_proof_takes_no_pages_and_comes_once(check):
    lines = proof_lines()
    page = sample().export()[-1]
    for more in (page, lines[-1]):
        assert check([*lines, more])[0] == 1


def test_start_must_be_accounts_after_a_page():
    for start in ([], [b""], Accounts(sample().accounts.rules).leaves):
        with pytest.raises(ValueError, match="not the leaves"):
            write_export(None, b"", start, [], [], [])


def test_the_table_names_the_first_accounts_only(check):
    run = ExportedRun()
    peers = sorted(peer_id_from_public_key(digest(b"worker %d" % number)) for number in range(25))
    step = Step(0, digest(b"version"), A, tuple((peer, 1, 10) for peer in peers), 0)
    run.extend(0, work=PageWork((), (step,)))
    run.extend(1)
    run.extend(2)
    code, text = check(run.export())
    assert code == 0
    shown = [peer for peer in (A, *peers) if peer in text]
    assert len(shown) == verify_ledger.SHOWN
    assert A in shown, "it has credit"
    assert text.endswith("and 6 more\n")


# The same accounts as the protocol's


def test_the_constants_are_those_of_the_protocol():
    assert verify_ledger.FORMAT == FORMAT
    assert verify_ledger.SLASHABLE_REASONS == SLASHABLE_REASONS
    assert verify_ledger.CERTAIN_REASONS == CERTAIN_REASONS
    assert verify_ledger.MISJUDGED_MIN == MISJUDGED_MIN
    assert verify_ledger.AMOUNT_MAX == AMOUNT_MAX
    for name in ("MARGIN_EPOCHS", "ERAS_KEPT"):
        assert getattr(verify_ledger, name) == getattr(protocol_accounts, name)
    assert verify_ledger.BUCKET_EPOCHS == protocol_accounts.LOCK_BUCKET_EPOCHS


@given(st.binary(min_size=32, max_size=32) | st.sampled_from([bytes(32), b"\xff" * 32]))
def test_peer_ids(key):
    assert verify_ledger.peer_id(key) == peer_id_from_public_key(key)
    assert verify_ledger.key_of(peer_id_from_public_key(key)) == key


@given(st.text(max_size=70) | st.text("123ABCDEFGHJKabc", min_size=50, max_size=54) | st.binary())
def test_other_texts_are_no_peer_ids(text):
    with pytest.raises(ValueError, match="not an Ed25519 peer id"):
        verify_ledger.key_of(text)


COUNTS = st.integers(0, 50) | st.just(COUNT_MAX)
PEER_SETS = st.sets(st.sampled_from(PEERS), max_size=4).map(lambda peers: tuple(sorted(peers)))
REASONS = st.sampled_from(["accepted"] * 6 + ["computation", "reward", "history"])
RECEIPTS = st.lists(
    st.builds(
        Receipt,
        st.binary(min_size=32, max_size=32),
        st.sampled_from(PEERS),
        COUNTS,
        st.integers(0, 9) | st.integers(0, 600) | st.just(COUNT_MAX),
        st.booleans(),
        COUNTS,
        REASONS,
        PEER_SETS,
    ),
    max_size=4,
    unique_by=lambda one: one.commit,
).map(tuple)
SHARES = PEER_SETS.flatmap(
    lambda peers: st.tuples(*(st.tuples(st.just(one), COUNTS, COUNTS) for one in peers))
)
REVERSALS = st.lists(
    st.builds(
        Reversal,
        RECEIPTS.filter(len).map(lambda some: some[0]),
        st.sampled_from(["accepted", "computation", "reward"]),
    ),
    max_size=2,
    unique_by=lambda one: one.receipt.commit,
).map(tuple)
STEPS = st.lists(
    st.builds(
        Step,
        COUNTS,
        st.just(digest(b"version")),
        st.sampled_from(PEERS),
        SHARES,
        st.integers(0, OMITTED_MAX),
        PEER_SETS,
    ).map(
        lambda one: one._replace(
            partners=tuple(peer for peer in one.partners if peer != one.trainer)
        )
    ),
    max_size=2,
    unique_by=lambda one: one.version,
).map(lambda steps: tuple(sorted(steps)))
WORK = st.builds(PageWork, RECEIPTS, STEPS, REVERSALS)
WORKS = st.lists(st.tuples(st.integers(1, 30), WORK), max_size=10)
CREDITS = st.sampled_from(
    [CREDIT, {**CREDIT, "lock_epochs": 0}, dict.fromkeys(CREDIT, 0), dict.fromkeys(CREDIT, 2**31)]
)


@given(WORKS, CREDITS, st.booleans(), st.sampled_from([None, 0.0, 0.1]), st.data())
def test_the_accounts_are_those_of_the_protocol(works, credit, slash, rate, data):
    stated = {} if rate is None else {"reward_disagreement_rate": rate}
    run = verify_ledger.Run.of(manifest_bytes(credit={**credit, "slash": slash, **stated}))
    era_epochs, rate = COUNCIL["era_epochs"], 0.001 if rate is None else rate
    accounts = Accounts(
        CreditRules(**credit, slash=slash, era_epochs=era_epochs, reward_disagreement_rate=rate)
    )
    ledger = verify_ledger.Ledger(run)
    cut = data.draw(st.integers(0, len(works)))
    epoch = -1
    for number, (gap, work) in enumerate(works):
        epoch += gap
        page, beacon = digest(b"page %d" % epoch), digest(b"beacon %d" % epoch)
        accounts.apply(page, epoch, beacon, page, work)
        decoded = verify_ledger.work_of(work.encoded(), "here")
        ledger.apply(page, epoch, beacon, page, decoded)
        if number == cut:
            ledger = verify_ledger.Ledger.of(accounts.leaves, run)
    assert ledger.leaves() == accounts.leaves
    assert ledger.root() == accounts.root
    assert ledger.totals == accounts.totals._asdict()


ENCODED = WORK.map(PageWork.encoded)


@given(st.binary(max_size=100) | ENCODED, st.data())
def test_work_of_any_bytes(data, draw):
    if data and draw.draw(st.booleans()):
        place = draw.draw(st.integers(0, len(data) - 1))
        data = data[:place] + bytes([draw.draw(st.integers(0, 255))]) + data[place + 1 :]
    try:
        parts = verify_ledger.work_of(data, "here")
    except verify_ledger.RefusedError:
        assert not isinstance(decode_work(data), PageWork)
    else:
        named = dict(zip(verify_ledger.WORK_PARTS, parts, strict=True))
        assert not data or encode(named) == data


def nested(value):
    """Yield the places in a decoded value."""
    yield ()
    if isinstance(value, dict | tuple):
        for place, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from ((place, *rest) for rest in nested(one))


def changed(value, where, new):
    if not where:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[where[0]] = changed(value[where[0]], where[1:], new)
    return copy


ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.binary(max_size=33)
    | st.text(max_size=3)
    | st.sampled_from([[], {}, [[1, 2]], [b"k" * 32]])
)


@given(st.data(), ANYTHING)
def test_work_with_any_value_inside_is_refused_or_counted(data, value):
    run = verify_ledger.Run.of(manifest_bytes())
    page = next(page for page, work in sample().works.items() if work.receipts and work.steps)
    good = decode(sample().works[page].encoded(), bytes_max=10**6)
    where = data.draw(st.sampled_from(list(nested(good))))
    encoded = encode(changed(good, where, value))
    try:
        work = verify_ledger.work_of(encoded, "here")
    except verify_ledger.RefusedError:
        return
    verify_ledger.Ledger(run).apply(b"p" * 32, 0, b"b" * 32, b"", work)


def test_an_entry_that_is_no_pair_is_refused():
    leaves = list(sample().accounts.leaves)
    number = next(n for n, leaf in enumerate(leaves[1:], 1) if unpacked(leaf)["eras"])
    leaves[number] = encode({**unpacked(leaves[number]), "eras": [[]]})
    with pytest.raises(verify_ledger.RefusedError, match="start: not the leaves of accounts"):
        verify_ledger.Ledger.of(leaves, verify_ledger.Run.of(sample().manifest))


def unpacked(leaf: bytes) -> dict:
    return decode(leaf, bytes_max=10**6)


@given(st.data(), ANYTHING)
def test_leaves_with_any_value_inside_are_refused_or_come_back(data, value):
    leaves = list(sample().accounts.leaves)
    number = data.draw(st.integers(0, len(leaves) - 1))
    good = decode(leaves[number], bytes_max=10**6)
    where = data.draw(st.sampled_from(list(nested(good))))
    leaves[number] = encode(changed(good, where, value))
    run = verify_ledger.Run.of(sample().manifest)
    try:
        ledger = verify_ledger.Ledger.of(leaves, run)
    except verify_ledger.RefusedError:
        return
    assert ledger.leaves() == leaves
    ledger.apply(b"p" * 32, 2**50, b"b" * 32, b"", ((), (), ()))
    ledger.root()


@pytest.mark.parametrize("text", ["QR==", "QQ", "QQ==\n", "Q Q==", "QQ=", "é", None, 7, ["QQ=="]])
def test_another_spelling_of_base64_is_refused(text):
    assert verify_ledger.unbase64("QQ==", "here") == b"A"
    with pytest.raises(verify_ledger.RefusedError, match="here: not base64"):
        verify_ledger.unbase64(text, "here")


# Changed exports


WRONG = (verify_ledger.RefusedError, verify_ledger.UnreadableError)
PLACES = ("line ", "page of epoch ", "handover ", "newest", "start", "manifest: ")


@given(st.data())
def test_a_changed_byte_is_refused_with_its_place(data):
    export = sample_bytes() if data.draw(st.booleans()) else text_of(sample().export(18))
    ends = [0] + [place + 1 for place, byte in enumerate(export) if byte == ord("\n")]
    number = data.draw(st.integers(0, len(ends) - 2))
    place = data.draw(st.integers(ends[number], ends[number + 1] - 1))
    byte = bytes([export[place] ^ data.draw(st.integers(1, 255))])
    stream = io.BytesIO(export[:place] + byte + export[place + 1 :])
    with pytest.raises(WRONG) as found:
        verify_ledger.verify(stream, sample().run_id.hex())
    assert str(found.value).startswith(PLACES)
    assert "\n" not in str(found.value)
    assert found.type is verify_ledger.RefusedError or number == 0


@given(st.data())
def test_a_file_that_is_cut_off_is_refused(data):
    export = sample_bytes()
    stream = io.BytesIO(export[: data.draw(st.integers(0, len(export) - 1))])
    with pytest.raises(WRONG):
        verify_ledger.verify(stream)


def line_of(export, epoch: int) -> int:
    """Return the place of the line with the page of an epoch."""
    pages = [n for n, line in enumerate(export) if "page" in line]
    return pages[[node.epoch for node in sample().final].index(epoch)]


def opened(data: bytes) -> NotarisedPage:
    return decode_notarised(data, sample().run_id, verify, Opened(OPENED_MAX))


def with_votes(export, number: int, place: int, change) -> None:
    """Change the votes of one page of a handover, or of the newest pages."""
    (items,) = export[number].values()
    page = opened(bytes_of(items[place]))
    items[place] = base64_of(NotarisedPage(page.page, change(page.votes)).encoded())


def without_line(epoch):
    def change(export):
        del export[line_of(export, epoch)]

    return change


def other_work(epoch, work):
    def change(export):
        export[line_of(export, epoch)]["work"] = base64_of(work)

    return change


def swapped(epoch, other):
    def change(export):
        one, two = line_of(export, epoch), line_of(export, other)
        export[one], export[two] = export[two], export[one]

    return change


def resigned(export):
    """Let the proposer of a page sign it with other work."""
    number = line_of(export, 64)
    page = open_envelope(bytes_of(export[number]["page"]), Page, sample().run_id, verify)
    other = page.message.model_copy(update={"work": b""})
    envelope = seal(other, sample().run_id, KEYS[page.signer]).envelope
    export[number] = {"page": base64_of(envelope), "work": ""}


def outsider(export):
    number = line_of(export, 64)
    page = open_envelope(bytes_of(export[number]["page"]), Page, sample().run_id, verify)
    envelope = seal(page.message, sample().run_id, Identity(digest(b"outsider"))).envelope
    export[number]["page"] = base64_of(envelope)


def fewer_votes(export):
    with_votes(export, 1, 0, lambda votes: votes[1:])


def forged_vote(export):
    with_votes(export, 1, 1, lambda votes: (*votes[:-1], (votes[-1][0], votes[0][1])))


def other_voter(export):
    last = lambda votes: (*votes[:-1], (votes[-1][0] + 1, votes[-1][1]))  # noqa: E731
    with_votes(export, 1, 0, last)


def other_voters(change):
    """Change the bit map of the voters of a page in another way than the number of votes."""

    def changed_voters(export):
        items = export[1]["handover"]
        values = decode(bytes_of(items[0]), bytes_max=10**6)
        items[0] = base64_of(encode({**values, "voters": change(values["voters"])}))

    return changed_voters


def longer_spelling(export):
    number = line_of(export, 64)
    envelope = bytes_of(export[number]["page"])
    assert envelope.count(b"\xa4page") == 1
    export[number]["page"] = base64_of(envelope.replace(b"\xa4page", b"\xd9\x04page"))


CHANGES = {
    "voters with a zero byte": (
        other_voters(lambda voters: voters + b"\x00"),
        "handover 1: not a page with votes",
    ),
    "voters outside the council": (
        other_voters(lambda voters: bytes([voters[0] | 128])),
        "handover 1, page of epoch 9: votes of another council",
    ),
    "an envelope in another spelling": (longer_spelling, "line 31: not canonical MessagePack"),
    "the work of another page": (
        other_work(64, sample().works[sample().final[1].digest].encoded()),
        "page of epoch 64: its work does not match the page",
    ),
    "no work": (other_work(64, b""), "page of epoch 64: its work does not match the page"),
    "work of a page that has none": (
        other_work(41, PageWork((), (Step(0, bytes(32), A, (), 0),)).encoded()),
        "page of epoch 41: its work does not match the page",
    ),
    "a page less": (
        without_line(18),
        "page of epoch 19: not the child of the page before it (line 15)",
    ),
    "no first page": (
        without_line(0),
        "page of epoch 1: not the child of the page before it (line 6)",
    ),
    "no last page": (
        without_line(72),
        "page of epoch 72: the file does not end with this final page",
    ),
    "two pages in another order": (
        swapped(18, 19),
        "page of epoch 19: not the child of the page before it (line 15)",
    ),
    "a page twice": (
        lambda export: export.append(export[-1]),
        "page of epoch 72: not the child of the page before it (line 39)",
    ),
    "another page by its own proposer": (
        resigned,
        "page of epoch 65: not the child of the page before it (line 32)",
    ),
    "a page by another key": (
        outsider,
        "page of epoch 64: not signed by a member of its council",
    ),
    "no first handover": (
        lambda export: export.pop(1),
        "handover 1, page of epoch 40: no handover seats its council",
    ),
    "no last handover": (
        lambda export: export.pop(3),
        "newest, page of epoch 71: no handover seats its council",
    ),
    "handovers in another order": (
        lambda export: export.insert(1, export.pop(2)),
        "handover 1, page of epoch 40: no handover seats its council",
    ),
    "no newest pages": (
        lambda export: export.pop(4),
        "page of epoch 58: the file does not end with this final page",
    ),
    "newest pages twice": (
        lambda export: export.insert(4, export[4]),
        "line 6: other keys than allowed there",
    ),
    "a handover after the pages": (
        lambda export: export.append(export[1]),
        "line 39: other keys than allowed there",
    ),
    "two newest pages": (
        lambda export: export[4]["newest"].pop(),
        "line 5: fewer than three pages",
    ),
    "older newest pages": (
        lambda export: export[4]["newest"].reverse(),
        "newest, page of epoch 72: not the child of the page before it",
    ),
    "a handover that does not show its page final": (
        lambda export: export[1]["handover"].pop(),
        "handover 1: does not end with three consecutive epochs",
    ),
    "a handover without its seating page": (
        lambda export: export[1]["handover"].pop(0),
        "handover 1: shows no page final that changes the council",
    ),
    "a vote less": (fewer_votes, "handover 1, page of epoch 9: too few votes"),
    "the vote of another member": (
        forged_vote,
        "handover 1, page of epoch 10: a vote with a bad signature",
    ),
    "the vote of a key outside the council": (
        other_voter,
        "handover 1, page of epoch 9: a vote with a bad signature",
    ),
    "another key": (
        lambda export: export[7].update(more=1),
        "line 8: other keys than allowed there",
    ),
    "an object that is none": (
        lambda export: export.insert(3, []),
        "line 4: not a line of an export, or cut off",
    ),
    "a number as a page": (
        lambda export: export[7].update(page=7),
        "line 8: not base64",
    ),
    "handovers that are no list": (
        lambda export: export[1].update(handover={"a": 1, "b": 2, "c": 3}),
        "line 2: fewer than three pages",
    ),
    "another manifest": (
        lambda export: export[0].update(manifest=base64_of(manifest_bytes(name="other"))),
        "handover 1, page of epoch 9: not signed by a member of its council",
    ),
    "no manifest": (
        lambda export: export[0].update(manifest=base64_of(encode({"council": 1}))),
        "manifest: KeyError 'credit'",
    ),
    "a start page without accounts": (
        lambda export: export[0].update(start_page=base64_of(bytes(32))),
        "start_page: not the page of the accounts in start",
    ),
    "no accounts": (
        lambda export: export[0].update(start=[]),
        "start: not the leaves of accounts",
    ),
    "accounts that are no list": (
        lambda export: export[0].update(start="AAAA"),
        "start: not the leaves of accounts",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_export_is_refused_with_its_place(name, check):
    change, expected = CHANGES[name]
    export = lines()
    change(export)
    assert check(export) == (1, f"refused: {expected}\n")


def test_another_run_is_refused(check):
    run = sample().run_id.hex()
    assert check(lines(), "--run", run.upper())[0] == 0
    assert check(lines(), "--run", "ab" * 32) == (
        1,
        f"refused: manifest: of run {run}, not {'ab' * 32}\n",
    )


def test_changed_accounts_at_the_start_are_refused(check):
    export = sample().export(18)
    assert check(export)[0] == 0
    leaves = [decode(bytes_of(leaf), bytes_max=10**6) for leaf in export[0]["start"]]
    leaves[0] = {**leaves[0], "credit": leaves[0]["credit"] + 5}
    leaves[1] = {**leaves[1], "credit": leaves[1]["credit"] + 5}
    export[0]["start"] = [base64_of(encode(leaf)) for leaf in leaves]
    code, text = check(export)
    assert (code, text) == (1, "refused: start: other accounts than the page of epoch 23 states\n")
    export = sample().export(18)
    export[0] |= {"start": None, "start_page": ""}
    assert check(export) == (
        1,
        "refused: page of epoch 19: not the child of the page before it (line 6)\n",
    )


def test_pages_that_state_other_accounts_are_refused(check):
    run = ExportedRun()
    for epoch in range(8):
        run.extend(epoch)
        if epoch == 6:
            run.roots[5] = digest(b"other accounts")
    code, text = check(run.export())
    assert code == 1
    assert text == (
        "refused: page of epoch 5: the accounts after it are not those that pages state\n"
    )


def test_an_export_of_a_later_start_without_its_council_is_refused(check):
    export = sample().export(44)
    assert check(export)[0] == 0
    del export[2:]
    export.extend(sample().export(44)[5:])
    code, text = check(export)
    assert (code, text) == (
        1,
        "refused: page of epoch 45: no handover seats its council\n",
    )


def forged_page(run_id: bytes, fields: dict) -> Signed[Page]:
    rest = {"final_epoch": -1, "seed": digest(b"beacon"), "reveals": (b"",)}
    return seal(Page(**{**rest, **fields}), run_id, KEYS[A])


def voted(page: Signed[Page], run_id: bytes, council: Council) -> NotarisedPage:
    votes = [seal(vote_for(page), run_id, KEYS[peer]) for peer in council.members]
    return NotarisedPage.of(page, votes, council)


def forged(*changes) -> list[dict]:
    """Return an export of pages with some fields, of which the council signed the last three."""
    manifest, parent, pages = manifest_bytes(), b"", []
    run_id, council = digest(manifest), Council(b"", tuple(PEERS[:4]))
    for number, fields in enumerate(changes):
        first = {"epoch": number, "council": b"", "parent": parent}
        page = forged_page(run_id, {**first, **fields})
        pages.append(voted(page, run_id, council))
        parent = page.digest
    stream = io.BytesIO()
    envelopes = [(one.page.envelope, b"") for one in pages[:-1]]
    write_export(stream, manifest, None, [], pages[-3:], envelopes)
    return [json.loads(line) for line in stream.getvalue().splitlines()]


FORGED = {
    "nothing wrong": ([{}, {}, {}, {}], ""),
    "a page before its parent": (
        [{"epoch": 9}, {"epoch": 1}, {"epoch": 2}, {"epoch": 3}],
        "page of epoch 1: not the child of the page before it (line 4)",
    ),
    "accounts after a page that is not there": (
        [{"epoch": 4}, {"epoch": 5}, {"epoch": 6, "final_epoch": 2, "ledger": bytes(32)}],
        "page of epoch 2: missing, and its accounts are stated",
    ),
    "two statements about one page": (
        [{}, {}, {"final_epoch": 0, "ledger": bytes(32)}, {"final_epoch": 0, "ledger": b"l" * 32}],
        "page of epoch 3: states other accounts than the pages before it",
    ),
    "other accounts at the beginning": (
        [{"ledger": bytes(32)}, {}, {}],
        "start: other accounts than the page of epoch 0 states",
    ),
    "newest pages after the end of their council": (
        [{"reveals": ()}] * 3,
        "newest: not three pages that show a page of this council final",
    ),
    "newest pages that change the council": (
        [{}, {"removed": (key_of(A),)}, {"reveals": ()}],
        "newest: not three pages that show a page of this council final",
    ),
    "newest pages of other epochs": (
        [{}, {}, {"epoch": 3}],
        "newest: does not end with three consecutive epochs",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_pages_that_no_honest_council_signs_are_refused(name, check):
    changes, expected = FORGED[name]
    code, text = check(forged(*changes))
    assert (code, text) == (1, f"refused: {expected}\n") if expected else code == 0


def test_a_council_that_is_not_seated_by_the_pages_of_the_file_is_refused(check):
    """Its members sign a chain that leaves out the page that seats them."""
    handover = forged({"joined": (key_of(E),)}, {"reveals": ()}, {"reveals": ()})[1]["newest"]
    run_id, cache = digest(manifest_bytes()), Opened(OPENED_MAX)
    chain = [decode_notarised(bytes_of(one), run_id, verify, cache) for one in handover]
    council = Council(chain[0].page.digest, tuple(PEERS[:5]))
    parent, pages = b"", []
    for epoch in range(4, 8):
        fields = {"epoch": epoch, "council": council.seat if epoch > 4 else b"", "parent": parent}
        page = forged_page(run_id, fields)
        pages.append(voted(page, run_id, council))
        parent = page.digest
    stream = io.BytesIO()
    envelopes = [(one.page.envelope, b"") for one in pages[:-1]]
    write_export(stream, manifest_bytes(), None, [chain], pages[-3:], envelopes)
    assert check(stream.getvalue()) == (
        1,
        "refused: page of epoch 5: of another council than the page before it leaves\n",
    )


def test_pages_without_votes_are_refused(check):
    export = forged({}, {}, {})
    del export[1]
    assert check(export) == (1, "refused: page of epoch 1: no votes show it final\n")


@pytest.mark.parametrize("data", [b"", b"{}\n", b"text", b'{"format": "other/1"}\n', b"[]\n"])
def test_another_file_is_unreadable(data, check):
    code, text = check(data)
    assert code == 2
    assert text.startswith("unreadable: ")
    assert text.count("\n") == 1


def test_a_missing_file_is_unreadable(alone, tmp_path):
    code, out, err = alone(tmp_path / "missing.jsonl")
    assert (code, out) == (2, "")
    assert err.startswith("unreadable: ")
    path = tmp_path / "cut.jsonl"
    path.write_bytes(sample_bytes()[:-1])
    code, out, err = alone(path)
    assert (code, out) == (1, "")
    assert err == "refused: line 38: not a line of an export, or cut off\n"
