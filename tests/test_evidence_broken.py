"""Damaged input: each damage is named with file and line, good lines are kept, and losses are counted."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specmodel.errors import InputError
from specmodel.evidence import alpha, read

SAMPLES = Path(__file__).parent / "evidence_samples"
GOOD = '{"drafted": 3, "accepted": 2, "request": "a"}'

# what is wrong, the line, what the message must say
BAD_LINES = [
    ("truncated", '{"drafted": 3, "accep', "broken JSON"),
    ("nan", '{"drafted": 3, "accepted": NaN}', "accepted is nan"),
    ("infinity", '{"drafted": Infinity, "accepted": 1}', "drafted is inf"),
    ("negative", '{"drafted": 3, "accepted": -1}', "accepted is -1"),
    ("fraction", '{"drafted": 3, "accepted": 1.5}', "accepted is 1.5"),
    ("null", '{"drafted": 3, "accepted": null}', "accepted is None"),
    ("text", '{"drafted": "3", "accepted": 1}', "drafted is '3'"),
    ("list", '{"drafted": [3], "accepted": 1}', r"drafted is '\[3\]', not a number"),
    ("accepted above drafted", '{"drafted": 3, "accepted": 4}', "accepted 4 exceeds drafted 3"),
    ("absurd", '{"drafted": 1000000000000, "accepted": 0}', "drafted 1000000000000 in one round"),
    ("beyond 64 bits", '{"drafted": 1e40, "accepted": 0}', "drafted"),
    ("hundreds of digits", '{"drafted": 1' + "0" * 400 + ', "accepted": 0}', "drafted is inf"),
    ("thousands of digits", '{"drafted": 1' + "0" * 5000 + ', "accepted": 0}', "broken JSON"),
    ("true", '{"drafted": 3, "accepted": true}', "accepted is 'True'"),
    ("not an object", "[1, 2]", "a list where an object is expected"),
    ("another object", '{"hello": 1}', "not a record of a known kind; its keys: hello"),
    ("two objects", '{"drafted": 3, "accepted": 1},{"drafted": 3, "accepted": 1}', "broken JSON"),
]


@pytest.mark.parametrize(
    ("line", "message"), [row[1:] for row in BAD_LINES], ids=[row[0] for row in BAD_LINES]
)
def test_one_bad_line_is_named_and_the_good_ones_are_kept(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text("\n".join([GOOD] * 150 + [line] + [GOOD] * 50) + "\n", encoding="utf-8")
    found = read(path)
    assert found.lost == 1
    assert found.records == 201
    assert alpha(found).rounds == 200
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(str(found.dropped[0]))
    assert found.dropped[0].line == 151
    assert str(found.dropped[0]).startswith(f"{path}:151: ")
    assert any("1 of 201 records dropped (0.50%)" in text for text in found.warnings)


def test_more_than_one_percent_is_an_error_unless_lenient(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text("\n".join([GOOD] * 97 + ['{"dra'] * 3), encoding="utf-8")
    with pytest.raises(
        InputError, match=r"3 of 100 records dropped \(3.0%, .*rounds.jsonl:98: broken JSON"
    ) as error:
        read(path)
    assert "\n" not in str(error.value)
    found = read(path, lenient=True)
    assert (found.lost, alpha(found).rounds) == (3, 97)
    assert alpha(found).to_dict()["lost"] == 3


def test_every_line_bad_is_an_error_even_if_lenient(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    path.write_text("nonsense\n" * 3, encoding="utf-8")
    for lenient in (False, True):
        with pytest.raises(InputError, match="holds no rounds"):
            read(path, lenient=lenient)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("3,2\n3,nan\n", "accepted is nan"),
        ("3,2\n3,inf\n", "accepted is inf"),
        ("3,2\n3,x\n", "accepted is 'x'"),
        ("3,2\n3\n", "1 fields, the header has 2"),
        ("3,2\n3,2,1\n", "3 fields"),
        ("3,2\n2,3\n", "accepted 3 exceeds drafted 2"),
    ],
)
def test_bad_rows_of_a_csv(rows: str, message: str) -> None:
    found = read(io.BytesIO(f"drafted,accepted\n{rows}".encode()), lenient=True)
    assert found.lost == 1
    assert message in str(found.dropped[0])
    assert found.dropped[0].line == 3
    assert alpha(found).rounds == 1


def test_a_damaged_first_line_does_not_hide_what_the_file_is() -> None:
    for first in ('{"draf', "cut 3}", "\x00\x01".replace("\x00", "?")):
        found = read(io.BytesIO("\n".join([first, *[GOOD] * 200]).encode()))
        assert (found.lost, alpha(found).rounds) == (1, 200)
        assert found.dropped[0].line == 1


def test_mixed_k_is_named_where_it_begins() -> None:
    text = "drafted,accepted\n3,1\n3,2\n5,2\n"
    found = alpha(read(io.BytesIO(text.encode())))
    assert (found.k_min, found.k) == (3, 5)
    assert any("standard input:4: drafted changes from 3 to 5: mixed k" in text for text in found.warnings)
    assert any("draft lengths from 3 to 5" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty file"),
        (b"\n \n", "empty file"),
        (b"\x7fELF\0\0\0\1", "binary file"),
        (bytes(range(128, 256)) * 20, "binary file"),
        ("drafted".encode("utf-16"), "UTF-16"),
        (b"PK\x03\x04rest", "zip file; unpack"),
        (b"\x28\xb5\x2f\xfdrest", "zstd file; unpack"),
        (gzip.compress(b""), "empty file"),
        (b"\x1f\x8b\x08\x00garbage after the magic", "gzip stream is damaged"),
    ],
)
def test_files_that_are_no_text(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "thing"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message) as error:
        read(path)
    assert str(path) in str(error.value)


def test_a_gzip_stream_that_breaks_off_keeps_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl.gz"
    rows = [json.dumps({"drafted": 3, "accepted": i % 4, "request": str(i)}) for i in range(20_000)]
    path.write_bytes(gzip.compress("\n".join(rows).encode())[:-2000])
    found = read(path)
    assert 0 < found.lost <= 2
    assert 15_000 < (alpha(found).rounds or 0) < 20_000
    assert any("cut off" in str(drop) or "broken JSON" in str(drop) for drop in found.dropped)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "none.log")
    with pytest.raises(InputError, match="a folder"):
        read(tmp_path)
    with pytest.raises(InputError, match="at least one file"):
        read([])


def metrics(name: str, value: str, position: str = "") -> str:
    """The sample scrape with one value replaced."""
    text = (SAMPLES / "llamacpp_metrics.txt").read_text(encoding="utf-8")
    key = f'llamacpp:{name}{{position="{position}"}} ' if position else f"llamacpp:{name} "
    lines = [f"{key}{value}" if line.startswith(key) else line for line in text.splitlines()]
    assert lines != text.splitlines()
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (metrics("spec_decode_num_drafts_total", "NaN"), ":2: spec_decode_num_drafts_total is NaN"),
        (metrics("spec_decode_num_accepted_tokens_total", "+Inf"), r":6: .* is \+Inf"),
        (metrics("spec_decode_num_accepted_tokens_total", "3001"), "accepted 3001 exceeds drafted 3000"),
        (
            metrics("spec_decode_num_accepted_tokens_per_pos_total", "800", "1"),
            "survival rises: 800 .* position 2",
        ),
        (
            metrics("spec_decode_num_accepted_tokens_per_pos_total", "1001", "0"),
            "survival rises: 1001 .* position 1",
        ),
        (metrics("spec_decode_num_accepted_tokens_per_pos_total", "400", "1"), "positions sum to 1450"),
        (metrics("spec_decode_num_drafts_total", "100"), "mean length 16.5 exceeds"),
    ],
)
def test_counters_that_contradict_each_other(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(io.BytesIO(text.encode()))


def test_a_scrape_with_a_hole_is_left_out_and_the_others_stay_aligned() -> None:
    """Counters at 1, 2, 3 and 4 times the sample; the second scrape lacks a number, the third two lines."""
    lines = (SAMPLES / "llamacpp_metrics.txt").read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if not line.startswith("#")]
    scrapes = [
        [f"{line.rsplit(' ', 1)[0]} {n * int(line.rsplit(' ', 1)[1])}" for line in lines]
        for n in (1, 2, 3, 4)
    ]
    scrapes[1][0] = scrapes[1][0].rsplit(" ", 1)[0] + " NaN"
    scrapes[2] = scrapes[2][:-2]
    found = read(io.BytesIO("\n".join(line for scrape in scrapes for line in scrape).encode()), lenient=True)
    assert alpha(found).rounds == 3000
    assert alpha(found).survival == pytest.approx([0.7, 0.5, 0.35])
    assert found.lost == 2
    only = "\n".join([*scrapes[1], *scrapes[0]])
    with pytest.raises(InputError, match="NaN"):
        read(io.BytesIO(only.encode()), lenient=True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0.700, 0.500, 0.350", "0.700, 0.800, 0.350", "survival rises from 0.7 to 0.8 at position 2"),
        ("0.700, 0.500, 0.350", "1.700, 0.500, 0.350", "position 1 is 1.7, outside 0 to 1"),
        ("0.700, 0.500, 0.350", "nan, 0.500, 0.350", "not a finite number"),
        ("Accepted: 1550", "Accepted: 3550", "disagrees|exceeds"),
        ("Mean acceptance length: 2.55", "Mean acceptance length: 0.55", "below 1"),
        ("Mean acceptance length: 2.55", "Mean acceptance length: 5.55", "exceeds k|drafted in"),
        (", Per-position", ", Perpos", "cut off"),
    ],
)
def test_log_lines_that_contradict_themselves(old: str, new: str, message: str) -> None:
    good = (SAMPLES / "vllm_server.log").read_text(encoding="utf-8").splitlines()[1]
    bad = good.replace(old, new)
    assert bad != good
    found = read(io.BytesIO("\n".join([good] * 3 + [bad]).encode()), lenient=True)
    assert (found.lost, alpha(found).rounds) == (1, 3000)
    assert found.dropped[0].line == 4
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(found.dropped[0].reason)


def test_a_histogram_must_agree_with_its_totals() -> None:
    record = json.loads((SAMPLES / "vllm_response_metrics.json").read_text(encoding="utf-8"))
    block = record["metrics"]["speculative_decoding"]
    block["acceptance_histogram"] = [3, 2, 1, 5]
    with pytest.raises(InputError, match="11 steps, num_spec_steps says 10"):
        read(io.BytesIO(json.dumps(record).encode()))


def test_zero_steps_in_an_answer_file_are_impossible() -> None:
    text = (SAMPLES / "specbench_answers.jsonl").read_text(encoding="utf-8").replace("[4, 1, 2,", "[4, 0, 2,")
    with pytest.raises(InputError, match="the bonus token is included"):
        read(io.BytesIO(text.encode()))


RECORDS = [
    json.loads(text)
    for name in (
        "vllm_bench_serve.json",
        "vllm_response_metrics.json",
        "llamacpp_timings.json",
        "trtllm_bench_report.json",
        "specbench_answers.jsonl",
        "sglang_bench_serving.jsonl",
    )
    for text in [(SAMPLES / name).read_text(encoding="utf-8")]
    for text in ([text] if name.endswith(".json") else text.splitlines()[:1])
] + [
    {"survival": [0.7, 0.5], "rounds": 10},
    {
        "iter": 1,
        "specDecodingStats": {"numDraftTokens": 3, "numAcceptedTokens": 1, "numRequestsWithDraftTokens": 1},
    },
    {"question_id": 1, "choices": [{"turns": ["x"], "alpha": [7, 5], "alpha_num": [10, 7]}]},
    {"meta_info": {"spec_verify_ct": 1, "spec_num_correct_drafts": 1, "spec_num_proposed_drafts": 3}},
    {"internal_states": [{"avg_spec_accept_length": 2.5}], "speculative_num_steps": 3},
    {"acc_length": 2.0, "batch_size": 1, "output_len": 10},
    {"drafted": 3, "accepted": 2, "request": "a"},
]
WRONG = st.sampled_from([None, True, "x", -1, 0, 2.5, 1e300, 10**400, float("nan"), [], [[1]], {}, {"a": 1}])


def replaced(value: object, path: list[int], new: object) -> object:
    """A copy of a JSON value with the part at the end of `path` replaced."""
    if not path or not isinstance(value, dict | list) or not value:
        return new
    if isinstance(value, dict):
        key = list(value)[path[0] % len(value)]
        return {**value, key: replaced(value[key], path[1:], new)}
    at = path[0] % len(value)
    return [*value[:at], replaced(value[at], path[1:], new), *value[at + 1 :]]


@settings(max_examples=150, deadline=None)
@given(record=st.sampled_from(RECORDS), path=st.lists(st.integers(0, 40), min_size=1, max_size=4), new=WRONG)
def test_no_wrong_value_in_a_record_ends_in_a_traceback(record: object, path: list[int], new: object) -> None:
    data = json.dumps(replaced(record, path, new)).encode()
    try:
        found = alpha(read(io.BytesIO(data), lenient=True), resamples=100, describe=False)
    except InputError as error:
        refused = str(error)
        found = None
    if found is None:
        assert "\n" not in refused
        return
    json.dumps(found.to_dict(), allow_nan=False)
    assert list(found.survival) == sorted(found.survival, reverse=True)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(path.name for path in SAMPLES.iterdir())),
    cut=st.floats(0.0, 1.0),
    junk=st.binary(max_size=8),
)
def test_no_damage_ends_in_anything_but_counts_or_one_line(name: str, cut: float, junk: bytes) -> None:
    """Cut every sample anywhere and put bytes into the cut: counts that hold together, or an InputError."""
    data = (SAMPLES / name).read_bytes()
    at = int(cut * len(data))
    for damaged in (data[:at], data[:at] + junk + data[at:]):
        try:
            found = alpha(read(io.BytesIO(damaged), lenient=True), resamples=100, describe=False)
        except InputError as error:
            refused = str(error)
            found = None
        if found is None:
            assert "\n" not in refused
            continue
        assert list(found.survival) == sorted(found.survival, reverse=True)
        assert all(0.0 <= rate <= 1.0 for rate in found.survival)
        assert found.tokens_per_round.pooled is not None
        assert found.tokens_per_round.pooled >= 1.0
        json.dumps(found.to_dict(), allow_nan=False)
