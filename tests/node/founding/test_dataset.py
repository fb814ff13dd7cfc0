import csv
import json
from decimal import Decimal

import pyarrow as pa
import pytest
from pyarrow import parquet

from node.founding import dataset_files
from node.founding.dataset import DatasetError, prepare_dataset
from node.founding.dataset_files import format_of
from node.founding.dataset_rows import run_row
from protocol.run.recipe import Recipe
from protocol.run.toml import load_recipe
from roles.engines.task_loader import task_of
from roles.environments import jail
from roles.environments.rows import ParquetRows, chat_of
from roles.environments.runtime import PACKAGES
from simulations.runtime.loop import SimBackground
from tests.worlds import runtimes
from tests.worlds.messages import RECIPE, run_manifest
from tests.worlds.text import byte_tokenizer, exchange, needs_jail, program_row, write_rows

POSITIONS, TOKENS_MAX = 264, 64
ROOM = POSITIONS - TOKENS_MAX
CODE = ("prompt", "tests")
MATH = ("prompt", "answer")
TESTS = [exchange("1 2", "3")]
SUM = program_row("Add.", *TESTS)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return byte_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture
def prepare(tmp_path, tokenizer):
    """Return a function that prepares a file as a data set; ``prepare.lines`` has its output."""

    def prepared(source, name="code/sums", *, skip_bad_rows=False, evaluation=None, **section):
        values = load_recipe(RECIPE.read_text()).model_dump()
        values["model"]["config"]["max_position_embeddings"] = POSITIONS
        values["sampling"] |= {"tokens_max": TOKENS_MAX, "length_targets": ()}
        values["environment"] |= {"name": name, **section}
        values["evaluation"] = evaluation
        if name.partition("/")[0] in PACKAGES:
            values["environment"]["runtime"] = runtimes.section(name).runtime
        prepared.lines = []
        return prepare_dataset(
            source,
            tmp_path / "dataset",
            Recipe(**values),
            tokenizer,
            skip_bad_rows=skip_bad_rows,
            say=prepared.lines.append,
        )

    return prepared


def kept(tmp_path, columns=CODE):
    rows = ParquetRows(tmp_path / "dataset", columns)
    return [rows.row(n) for n in range(rows.count)]


def json_lines(path, *rows):
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def chat(*messages):
    return [{"role": role, "content": content} for role, content in messages]


def good(count):
    return [program_row(f"Add {n}.", *TESTS) for n in range(count)]


# Data sets with all rows usable, or all but one


@needs_jail
def test_answers_that_are_integers_become_text(prepare, tmp_path):
    rows = [{"prompt": f"2 + {n % 2}?", "answer": 2 + n % 2} for n in range(8)]
    report = prepare(write_rows(tmp_path / "rows", rows), "math/sums")
    assert (report.rows_kept, report.rows_bad, report.answers_scored) == (8, 0, 2)
    assert [row["answer"] for row in kept(tmp_path, MATH)] == ["2", "3"] * 4


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("5", "5"),
        ("5.0", "5"),
        ("0.1", "0.1"),
        ("1.10", "1.1"),
        ("-0.0", "0"),
        ("1e22", f"1{'0' * 22}"),
        ("1E-7", "0.0000001"),
        ("12345678901234567890123", "12345678901234567890123"),
        ('"1.10"', "1.10"),
    ],
)
def test_numbers_are_written_in_decimal(tmp_path, written, text):
    path = tmp_path / "rows"
    path.write_text(f'{{"prompt": "?", "answer": {written}}}')
    assert answer_of(path, "JSON lines") == text


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (5, pa.int64(), "5"),
        (5.0, pa.float64(), "5"),
        (0.1, pa.float32(), "0.1"),
        (Decimal("4.00"), pa.decimal128(9, 2), "4"),
        ("1/2", pa.dictionary(pa.int8(), pa.string()), "1/2"),
        ("1/2", pa.large_string(), "1/2"),
    ],
)
def test_numbers_of_any_type_are_written_in_decimal(tmp_path, value, kind, text):
    path = tmp_path / "rows"
    parquet.write_table(pa.table({"prompt": ["?"], "answer": pa.array([value], kind)}), path)
    assert answer_of(path, "parquet") == text


def answer_of(path, form):
    [(_, raw)] = dataset_files.read_rows(path, form, MATH, ())
    return run_row(raw, "math")["answer"]


def test_a_prompt_that_is_a_chat_keeps_its_messages(prepare, tmp_path):
    brief, question = ("system", "Be brief."), ("user", "Add.")
    example = (("user", "1 + 1?"), ("assistant", "2"))
    prompts = [chat(question), chat(brief, question), chat(brief, *example, question)]
    rows = [{"prompt": prompt, "tests": json.dumps(TESTS)} for prompt in prompts]
    for source in (
        write_rows(tmp_path / "rows", rows),
        json_lines(tmp_path / "lines", *rows),
        json_lines(
            tmp_path / "text", *(row | {"prompt": json.dumps(row["prompt"])} for row in rows)
        ),
    ):
        prepare(source)
        chats = [chat_of(row) for row in kept(tmp_path)]
        assert chats == [("Add.", ()), ("Add.", (brief,)), ("Add.", (brief, *example))]
    again = tmp_path / "again"
    (tmp_path / "dataset").rename(again)
    prepare(again)  # a run's data set is valid input
    assert (tmp_path / "dataset").read_bytes() == again.read_bytes()


PAIRS = [exchange("1", "3"), exchange("2", "4")]
APPS = {"inputs": ["1", "2"], "outputs": ["3", "4"]}
ASSERTS = ["assert f(1) == 2", "assert f(2) == 3"]
MIXED = [{"input": "1", "output": "3", "assert": None}, {"assert": "assert f(1) == 2"}]


@pytest.mark.parametrize(
    ("tests", "read"),
    [
        (PAIRS, PAIRS),
        (APPS, PAIRS),
        (APPS | {"fn_name": None}, PAIRS),
        (ASSERTS, [{"assert": one} for one in ASSERTS]),
        (MIXED, [exchange("1", "3"), {"assert": ASSERTS[0]}]),
        ([exchange(["1", "2"], ["3"])], [exchange("1\n2", "3")]),
        ([exchange(1, 0.5)], [exchange("1", "0.5")]),
        ([{**PAIRS[0], "testtype": "stdin"}, {**PAIRS[1], "type": "stdin_stdout"}], PAIRS),
    ],
)
def test_tests_are_read_in_the_forms_in_which_people_have_them(prepare, tmp_path, tests, read):
    row = {"prompt": "Add.", "tests": tests}
    for source in (
        json_lines(tmp_path / "lines", row),
        json_lines(tmp_path / "text", row | {"tests": json.dumps(tests)}),
        write_rows(tmp_path / "rows", [row]),
    ):
        assert prepare(source).rows_kept == 1
        assert [json.loads(row["tests"]) for row in kept(tmp_path)] == [read]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl", "rows.csv", "rows"])
def test_a_file_is_read_by_its_content(prepare, tmp_path, name):
    rows = [SUM | {"prompt": 'Add "two",\nnumbers: ü'}, SUM | {"prompt": "=SUM(A1)"}]
    source = tmp_path / name
    with source.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.DictWriter(file, [*CODE, "note"])
        writer.writeheader()
        writer.writerows(rows)
    assert prepare(source).format == "csv"
    assert kept(tmp_path) == rows
    json_lines(source, *rows)
    assert prepare(source).format == "JSON lines"
    assert kept(tmp_path) == rows
    write_rows(source, rows)
    assert prepare(source).format == "parquet"
    assert kept(tmp_path) == rows


def test_nothing_else_than_a_run_needs_is_in_its_data_set(prepare, tmp_path):
    rows = [SUM | {"solution": "x" * 10**6, "pass_rate": n / 10} for n in range(10)]
    source = write_rows(tmp_path / "rows", rows)
    prepare(source)
    names = parquet.read_schema(tmp_path / "dataset").names
    assert names == ["prompt", "tests", "chat_before"]
    report = prepare(source, pass_rates=(0.2, 0.5))
    assert (report.rows, report.rows_kept, report.rows_outside) == (10, 4, 6)
    table = parquet.read_table(tmp_path / "dataset")
    assert table.schema.names[-1] == "pass_rate"
    assert table.column("pass_rate").to_pylist() == [0.2, 0.3, 0.4, 0.5]


# Data sets with one unusable row


HALF_PAIR = '{"prompt": "\\ud800", "tests": "[]"}'
BAD = {
    "a null prompt": (SUM | {"prompt": None}, "prompt is null"),
    "no prompt": ({"tests": "[]", "question": "?"}, "no prompt; it has tests, question"),
    "a blank prompt": (SUM | {"prompt": "\n"}, "prompt is blank"),
    "a prompt that is a number": (SUM | {"prompt": 5}, "of the type int, neither text nor a chat"),
    "a chat that a model ends": (
        SUM | {"prompt": chat(("user", "Add."), ("assistant", "3"))},
        "must end with a message of a user",
    ),
    "an empty chat": (SUM | {"prompt": []}, "must end with a message of a user"),
    "a chat with an image": (
        SUM | {"prompt": [{"role": "user", "content": [{"type": "image"}]}]},
        "a content that is text",
    ),
    "a prompt beyond the positions": (
        SUM | {"prompt": "p" * (ROOM - 1)},
        f"the prompt takes {ROOM + 1} tokens, and {ROOM} are left of the model's positions",
    ),
    "a row of more than a MiB": (
        program_row("Add.", exchange("1" * (1 << 20), "")),
        "bytes of text, the limit is 1,048,576",
    ),
    "no tests": (SUM | {"tests": "[]"}, "tests must be a list of 1 to"),
    "null tests": (SUM | {"tests": None}, "tests is null"),
    "tests that are no JSON": (SUM | {"tests": "assert f(1) == 2"}, "tests are not JSON"),
    "tests that are a number": (SUM | {"tests": "5"}, "tests are of the type int, not a list"),
    "a test without an output": (SUM | {"tests": [{"input": "1"}]}, "invalid test"),
    "a test of another kind": (SUM | {"tests": [TESTS[0] | {"testtype": "functional"}]}, "invalid"),
    "too many tests": (SUM | {"tests": TESTS * 1000}, "tests must be a list of 1 to"),
    "tests that call a function": (
        SUM | {"tests": APPS | {"fn_name": "add"}},
        "tests call the function 'add': write them as asserts",
    ),
    "more inputs than outputs": (
        SUM | {"tests": APPS | {"inputs": ["1"]}},
        "neither a list nor inputs and as many outputs",
    ),
    "a list for a row": ([SUM], "not a JSON object"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_row_is_named_and_left_out_if_so_said(prepare, tmp_path, kind):
    row, reason = BAD[kind]
    source = json_lines(tmp_path / "rows.jsonl", *good(24), row, *good(25))
    with pytest.raises(
        DatasetError, match=r"1 of 50 rows cannot be used, the first is line 25: "
    ) as e:
        prepare(source)
    assert reason in str(e.value) and "\n" not in str(e.value)
    assert "repair them, or leave them out with --skip-bad-rows" in str(e.value)
    [line] = [line for line in prepare.lines if reason in line]
    assert line.startswith(f"{source}, line 25: ")
    [named] = e.value.report.bad_rows
    assert (named.place.number, named.reason in str(e.value)) == (25, True)
    report = prepare(source, skip_bad_rows=True)
    assert (report.rows, report.rows_kept, report.rows_bad) == (50, 49, 1)
    assert len(kept(tmp_path)) == 49


@needs_jail
def test_expected_answers_are_scored_against_themselves(prepare, tmp_path):
    answers = ["5", "", None, True, ["5"], "3:00", "5", "x" * (TOKENS_MAX + 1), float("nan"), "5"]
    source = json_lines(tmp_path / "rows", *({"prompt": "?", "answer": one} for one in answers))
    with pytest.raises(DatasetError) as told:
        prepare(source, "math/sums")
    report = told.value.report
    assert [str(bad) for bad in report.bad_rows[:4]] == [
        "line 2: answer is blank",
        "line 3: answer is null",
        "line 4: answer is of the type bool, neither text nor a number",
        "line 5: answer is of the type list, neither text nor a number",
    ]
    assert report.rows_bad in {6, 7}  # as the task scores clock times
    assert report.answers_scored == 3
    assert prepare(source, "math/sums", skip_bad_rows=True).rows_kept == 10 - report.rows_bad
    assert kept(tmp_path, MATH)[0]["answer"] == "5"


@needs_jail
def test_an_answer_that_the_task_does_not_score_one_is_a_bad_row(prepare, tmp_path):
    right = {"prompt": "?", "answer": "5"}
    wrong = {"prompt": "?", "answer": "</think>"}  # the end marker of a model's thoughts
    source = json_lines(tmp_path / "rows", right, wrong)
    with pytest.raises(
        DatasetError, match="1 of 2 rows cannot be used, the first is line 2: "
    ) as e:
        prepare(source, "math/sums")
    assert "against its own answer" in str(e.value)


def test_the_first_five_bad_rows_are_named_and_the_others_counted(prepare, tmp_path):
    rows = [SUM, *[SUM | {"prompt": None}] * 8]
    source = write_rows(tmp_path / "rows", rows)
    with pytest.raises(DatasetError, match="8 of 9 rows cannot be used, the first is row 1: "):
        prepare(source)
    assert prepare.lines == [
        *(f"{source}, row {n}: prompt is null" for n in range(1, 6)),
        f"{source}: 3 more rows cannot be used",
    ]


def test_what_a_row_holds_does_not_reach_the_terminal(prepare, tmp_path):
    row = SUM | {"tests": [{"\x1b[2J": "\n\n"}]}
    with pytest.raises(DatasetError):
        prepare(json_lines(tmp_path / "rows", row))
    assert all(line.isprintable() for line in prepare.lines)


def test_answers_need_a_jail(prepare, tmp_path, monkeypatch):
    monkeypatch.setattr(jail, "TOOLS", ("absent-tool",))
    source = write_rows(tmp_path / "rows", [{"prompt": "?", "answer": "1"}])
    with pytest.raises(ValueError, match="absent-tool not installed: answers are scored in a jail"):
        prepare(source, "math/sums")


@pytest.mark.parametrize("skip_bad_rows", [False, True])
def test_a_data_set_without_a_row_that_can_be_used_is_an_error(prepare, tmp_path, skip_bad_rows):
    source = write_rows(tmp_path / "rows", [SUM | {"prompt": " "}] * 3)
    with pytest.raises(
        DatasetError, match="no row that can be used, of 3; the first is row 0: pro"
    ):
        prepare(source, skip_bad_rows=skip_bad_rows)
    source = write_rows(source, [SUM | {"pass_rate": None}])
    with pytest.raises(DatasetError, match=r"has no row with a pass rate from 0\.5 to 1\.0"):
        prepare(source, pass_rates=(0.5, 1.0), skip_bad_rows=skip_bad_rows)


def test_a_data_set_without_a_row_for_evaluations_is_an_error(prepare, tmp_path):
    rule = {"every_versions": 5, "rows_per_held_out_row": 6}
    source = write_rows(tmp_path / "rows", good(5))
    with pytest.raises(DatasetError, match=r"has 5 rows and none can be held out: set .* most 5$"):
        prepare(source, evaluation=rule)
    assert prepare(write_rows(source, good(6)), evaluation=rule).rows_kept == 6


def test_a_pass_rate_that_is_none_is_a_bad_row(prepare, tmp_path):
    rates = [0.5, "0.5", "", None, "half", 1.5, True]
    source = json_lines(tmp_path / "rows", *(SUM | {"pass_rate": rate} for rate in rates))
    report = prepare(source, pass_rates=(0.25, 0.75), skip_bad_rows=True)
    assert (report.rows_kept, report.rows_outside, report.rows_bad) == (2, 2, 3)


# Files that are not data sets


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty; a data set is a parquet file, JSON lines, or csv with a header"),
        (b"\xef\xbb\xbf \n", "is empty"),
        (b"\x1f\x8b\x08\x00rows", "is compressed: unpack it first"),
        (b"[\n{}]", "is one JSON array: write a row a line, such as with jq -c"),
        (b"\x00\x01\x02", "neither text in UTF-8 nor parquet"),
        ("prompt,tests\n".encode("utf-16"), "neither text in UTF-8 nor parquet"),
        (b"PAR1 and then nothing", "is not a complete parquet file, row 0: "),
        (b"question,tests\n1,[]\n", "no column prompt; it has question, tests: rename"),
        (b"prompt;tests\n1;[]\n", "no column prompt, tests; it has prompt;tests"),
        (b"prompt,tests,prompt\n1,[],2\n", "has the column prompt twice"),
        (b'prompt,tests\n"1,[]\n', "is not valid csv, line 2: unexpected end of data"),
        (b"prompt,tests\n", "has no row"),
    ],
)
def test_a_file_that_is_no_data_set_is_told_in_one_line(prepare, tmp_path, content, told):
    source = tmp_path / "rows"
    source.write_bytes(content)
    with pytest.raises(ValueError, match="rows") as raised:
        prepare(source)
    assert told in str(raised.value) and "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read_is_told_in_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read the data set .*: No such file"):
        format_of(tmp_path / "absent")
    with pytest.raises(ValueError, match=r"cannot read the data set .*: Is a directory"):
        format_of(tmp_path)


def test_lines_that_cannot_be_read_are_bad_rows(prepare, tmp_path, monkeypatch):
    monkeypatch.setattr(dataset_files, "RAW_ROW_BYTES_MAX", 10_000)
    line = json.dumps(SUM).encode()
    long = json.dumps(SUM | {"solution": "x" * 25_000}).encode()
    source = tmp_path / "rows"
    odd = [b'{"prompt": "\xff"}', b'{"prompt', b"[" * 5000, b"{1" * 1000, HALF_PAIR.encode(), long]
    source.write_bytes(b"\n".join([line, b"", *odd, line]))
    with pytest.raises(DatasetError) as told:
        prepare(source)
    named = [str(bad) for bad in told.value.report.bad_rows]
    assert [line.split(": ", 2)[:2] for line in named] == [
        ["line 3", "text that is not UTF-8"],
        ["line 4", "not JSON"],
        ["line 5", "not JSON"],
        ["line 6", "not JSON"],
        ["line 7", "prompt holds text that is not Unicode"],
    ]
    report = prepare(source, skip_bad_rows=True)
    assert (report.rows, report.rows_kept, report.rows_bad) == (8, 2, 6)
    source.write_bytes(b'prompt,tests\n"a\xffb",[]\nalone\n"two\nlines",1,2\n')
    with pytest.raises(DatasetError) as told:
        prepare(source)
    assert [str(bad) for bad in told.value.report.bad_rows] == [
        "line 2: prompt holds text that is not Unicode",
        "line 3: 1 fields where the header has 2",
        "line 4: 3 fields where the header has 2",
    ]
    assert csv.field_size_limit() == 131072


# Runs founded by other software


@needs_jail
async def test_a_node_asks_and_scores_the_row_that_replaces_a_bad_one(tmp_path, tokenizer):
    from protocol.run.model_files import encode_bundle  # noqa: PLC0415

    byte_tokenizer(tmp_path / "model")
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    (tmp_path / "bundle").write_bytes(encode_bundle(files))
    rows = [program_row("p" * 500 if n % 2 else f"{n}", exchange("", f"{n}")) for n in range(10)]
    rows += [SUM | {"prompt": None}, SUM | {"tests": "[]"}]
    write_rows(tmp_path / "dataset", rows)
    config = {"vocab_size": 400, "eos_token_id": 256, "max_position_embeddings": 100}
    manifest = run_manifest(model={"config": config}, environment={"name": "code/x"})
    nodes = [task_of(manifest, tmp_path, SimBackground()) for _ in range(2)]
    for node in nodes:
        await node.open()
    asked = set()
    for seed in range(40):
        prompt = await nodes[0].prompt(seed, None)
        assert prompt == await nodes[1].prompt(seed, None)
        asked.add(tokenizer.decode(prompt))
        if seed < 3:
            program = f"```python\nprint({tokenizer.decode(prompt)})\n```"
            assert await nodes[1].grade(seed, program) == 1.0
    assert asked == {"0", "2", "4", "6", "8"}
