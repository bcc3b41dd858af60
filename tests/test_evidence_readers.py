"""Every format that engines print gives the same statistics.

The samples are one invented run written as each engine would write it; expected.json holds its statistics.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specmodel import evidence
from specmodel.errors import InputError
from specmodel.evidence import alpha, read
from specmodel.evidence.reading import sniff

SAMPLES = Path(__file__).parent / "evidence_samples"
EXPECTED = json.loads((SAMPLES / "expected.json").read_text(encoding="utf-8"))
SURVIVAL = EXPECTED["per_position_unconditional"]

# file(s), rounds, whether the format tells the rates per position
RUN = [
    (("vllm_metrics_t0.txt", "vllm_metrics_t1.txt"), 1000, True),
    (("vllm_server.log",), 2000, True),  # two lines, both of the same run
    (("vllm_bench_serve.json",), 1000, True),
    (("llamacpp_metrics.txt",), 1000, True),
    (("llamacpp_server.log",), 1000, True),
    (("llamacpp_timings.json",), 100, False),  # one of ten equal requests
    (("sglang_metrics.txt",), 1000, False),
    (("sglang_server.log",), None, False),  # the line does not say how many rounds it stands for
    (("sglang_bench_serving.jsonl",), 1000, False),
    (("trtllm_bench_report.json",), 1000, False),
    (("trtllm_metrics.txt",), 1000, False),
]
NO_ACCEPTANCE = [
    ("llama_bench.jsonl", "llama-bench timings"),
    ("sglang_adaptive.json", "adaptive steps"),
    ("sglang_dspark_sps_table.json", "step-time table"),
    ("sglang_dspark_sps_table_additive.json", "step-time table"),
    ("trtllm_options.yaml", "no line that any engine prints"),
]


@pytest.mark.parametrize(
    ("names", "rounds", "by_position"), RUN, ids=lambda x: x[-1] if isinstance(x, tuple) else ""
)
def test_every_format_gives_the_statistics_of_the_run(
    names: tuple[str, ...], rounds: int | None, by_position: bool
) -> None:
    found = alpha(read([SAMPLES / name for name in names]))
    assert found.k == EXPECTED["k"]
    assert found.rounds == rounds
    assert found.tokens_per_round.pooled == pytest.approx(EXPECTED["mean_length_incl_bonus"], abs=1e-9)
    assert found.lesson.value == pytest.approx(EXPECTED["draft_acceptance_rate"], abs=1e-9)
    assert found.by_position is by_position
    if rounds is not None:
        share = rounds / EXPECTED["num_drafts"]
        assert found.drafted == pytest.approx(EXPECTED["num_draft_tokens"] * share)
        assert found.accepted == pytest.approx(EXPECTED["num_accepted_tokens"] * share)
    if by_position:
        assert list(found.survival) == pytest.approx(SURVIVAL, abs=1e-12)
        assert list(found.conditional) == pytest.approx(EXPECTED["per_position_conditional"], abs=1e-12)
        # alpha over tested tokens: 1550 accepted of 1000 + 700 + 500 tested
        assert found.alpha.value == pytest.approx(1550 / 2200)
    else:
        assert found.alpha.value is not None
        assert sum(found.alpha.value**i for i in range(4)) == pytest.approx(2.55, abs=1e-9)
        assert any("no rates per position" in text for text in found.warnings)


@pytest.mark.parametrize("name", ["vllm_response_metrics.json", "specbench_answers.jsonl"])
def test_formats_per_request_give_the_ten_step_request(name: str) -> None:
    """Histogram 3, 2, 1, 4: length 2.6, 16 accepted of 30; the answer file holds it twice."""
    found = alpha(read(SAMPLES / name))
    assert found.tokens_per_round.pooled == pytest.approx(2.6)
    assert list(found.survival) == pytest.approx([0.7, 0.5, 0.4])
    assert found.k == 3
    assert found.rounds in (10, 20)
    assert found.lesson.value == pytest.approx(16 / 30)


@pytest.mark.parametrize(("name", "what"), NO_ACCEPTANCE)
def test_files_without_acceptance_are_refused_by_what_they_are(name: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        read(SAMPLES / name)


def test_the_samples_are_those_of_the_reference_folder(shared: Path) -> None:
    for path in (shared / "samples" / "synthetic").iterdir():
        assert (SAMPLES / path.name).read_bytes() == path.read_bytes()


def test_the_name_of_a_file_does_not_matter(tmp_path: Path) -> None:
    for name in ("vllm_server.log", "vllm_bench_serve.json", "llamacpp_metrics.txt"):
        other = tmp_path / "data.bin"
        other.write_bytes((SAMPLES / name).read_bytes())
        assert alpha(read(other)).survival == pytest.approx(SURVIVAL)


def test_gzip_and_streams_are_read_as_the_file_is() -> None:
    data = (SAMPLES / "vllm_server.log").read_bytes()
    for stream in (io.BytesIO(data), io.BytesIO(gzip.compress(data)), io.BytesIO(b"\xef\xbb\xbf" + data)):
        assert alpha(read(stream)).survival == pytest.approx(SURVIVAL)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.BytesIO((SAMPLES / "specbench_answers.jsonl").read_bytes())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(data))
    assert alpha(read("-")).rounds == 20


def test_spec_bench_categories_are_workloads() -> None:
    parts = read(SAMPLES / "specbench_answers.jsonl").by("workload")
    assert sorted(parts) == ["math_reasoning", "writing"]
    assert all(alpha(part).rounds == 10 for part in parts.values())
    with pytest.raises(InputError, match="not a label"):
        read(SAMPLES / "vllm_server.log").by("workload")


def test_several_engines_of_one_server_add_up() -> None:
    one = (SAMPLES / "vllm_metrics_t1.txt").read_text(encoding="utf-8")
    both = io.BytesIO((one + one.replace('engine="0"', 'engine="1"')).encode())
    assert alpha(read(both)).rounds == 2200


def test_created_series_and_other_ranks_are_ignored() -> None:
    text = (SAMPLES / "sglang_metrics.txt").read_text(encoding="utf-8")
    ranks = text + text.replace('tp_rank="0"', 'tp_rank="1"').replace("spec_verify_calls", "other")
    assert alpha(read(io.BytesIO(ranks.encode()))).tokens_per_round.pooled == pytest.approx(2.55)


def test_a_restart_counts_from_zero_and_is_named(tmp_path: Path) -> None:
    """t1 holds 1100 drafts; a later scrape that shows 100 comes from a new process."""
    first, second = SAMPLES / "vllm_metrics_t1.txt", SAMPLES / "vllm_metrics_t0.txt"
    found = alpha(read([first, second]))
    assert found.rounds == 100
    assert any("vllm_metrics_t0.txt:3" in text and "fell from 1100 to 100" in text for text in found.warnings)


def test_separate_servers_are_added() -> None:
    found = alpha(read([SAMPLES / "vllm_metrics_t0.txt", SAMPLES / "vllm_metrics_t1.txt"], separate=True))
    assert found.rounds == 1200


def test_many_scrapes_in_one_file_are_differenced_pair_by_pair() -> None:
    text = (SAMPLES / "vllm_metrics_t0.txt").read_text(encoding="utf-8")
    later = (SAMPLES / "vllm_metrics_t1.txt").read_text(encoding="utf-8")
    found = alpha(read(io.BytesIO((text + later + text + later).encode())))
    assert found.rounds == 1000 + 100 + 1000  # a restart between the second and the third


def test_the_last_scrape_may_be_cut_off() -> None:
    whole = (SAMPLES / "vllm_metrics_t0.txt").read_text(encoding="utf-8")
    cut = "".join((SAMPLES / "vllm_metrics_t1.txt").read_text(encoding="utf-8").splitlines(keepends=True)[:7])
    stream = io.BytesIO((whole + whole + cut).encode())
    found = read(stream, lenient=True)
    assert found.lost == 1
    assert "incomplete" in str(found.dropped[0])


def test_log_lines_before_and_after_0_11_are_equal() -> None:
    lines = (SAMPLES / "vllm_server.log").read_bytes().splitlines()
    new, old = (alpha(read(io.BytesIO(line))) for line in lines[1:])
    assert new.survival == old.survival == pytest.approx(SURVIVAL)
    assert new.rounds == old.rounds == 1000


def test_an_idle_interval_is_no_error() -> None:
    busy = (SAMPLES / "vllm_server.log").read_text(encoding="utf-8")
    idle = (
        "INFO SpecDecoding metrics: Mean acceptance length: nan, Accepted throughput: 0.00 tokens/s, Drafted "
        "throughput: 0.00 tokens/s, Accepted: 0 tokens, Drafted: 0 tokens, "
        "Per-position acceptance rate: nan, nan, nan, "
        "Avg Draft acceptance rate: nan%\n"
    )
    evidence_ = read(io.BytesIO((idle + busy).encode()))
    assert evidence_.lost == 0
    assert alpha(evidence_).rounds == 2000
    alone = alpha(read(io.BytesIO(idle.encode())))
    assert alone.alpha.value is None
    assert alone.tokens_per_round.pooled == 1.0


CONSOLE = """\
Acceptance rate (%):                     51.67
Acceptance length:                       2.55
Drafts:                                  1000
Draft tokens:                            3000
Accepted tokens:                         1550
Per-position acceptance (%):
  Position 0:                            70.00
  Position 1:                            50.00
  Position 2:                            35.00
==================================================
"""


def test_the_console_block_is_in_percent() -> None:
    assert alpha(read(io.BytesIO(CONSOLE.encode()))).survival == pytest.approx(SURVIVAL)


def test_percent_and_fraction_are_decided_by_the_format(tmp_path: Path) -> None:
    """The bench file writes the rate in percent; a fraction there contradicts its own counts and is not guessed."""
    record = json.loads((SAMPLES / "vllm_bench_serve.json").read_text(encoding="utf-8"))
    record["spec_decode_acceptance_rate"] = 0.5166666
    with pytest.raises(InputError, match="percent in this format"):
        read(io.BytesIO(json.dumps(record).encode()))
    record["spec_decode_acceptance_rate"] = 51.66666
    record["spec_decode_per_position_acceptance_rates"] = [70.0, 50.0, 35.0]
    with pytest.raises(InputError, match="position 1 is 70, outside 0 to 1"):
        read(io.BytesIO(json.dumps(record).encode()))
    log = (SAMPLES / "vllm_server.log").read_text(encoding="utf-8").replace("51.7%", "0.517")
    with pytest.raises(InputError, match="not in percent"):
        read(io.BytesIO(log.encode()))


def test_a_list_of_rates_must_say_what_it_is() -> None:
    row = {"per_position": [0.844, 0.599, 0.385, 0.271], "rounds": 1000}

    def stream() -> io.BytesIO:
        return io.BytesIO(json.dumps(row).encode())

    with pytest.raises(InputError, match=r"'survival' .* or 'conditional'"):
        read(stream())
    as_survival = alpha(read(stream(), convention="survival"))
    as_conditional = alpha(read(stream(), convention="conditional"))
    assert as_survival.tokens_per_round.pooled == pytest.approx(3.099)
    assert as_conditional.tokens_per_round.pooled == pytest.approx(
        1 + 0.844 * (1 + 0.599 * (1 + 0.385 * 1.271))
    )


def rounds_text(
    form: str, drafted: list[int], accepted: list[int], requests: list[str] | None = None
) -> bytes:
    """Rounds as CSV or JSON lines."""
    names = requests or [""] * len(drafted)
    if form == "csv":
        rows = [f"{r},{d},{a}" for r, d, a in zip(names, drafted, accepted, strict=True)]
        return ("request,drafted,accepted\n" + "\n".join(rows) + "\n").encode()
    rows = [
        json.dumps({"drafted": d, "accepted": a, **({"request": r} if r else {})})
        for r, d, a in zip(names, drafted, accepted, strict=True)
    ]
    return ("\n".join(rows) + "\n").encode()


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_tables_of_rounds_equal_counting_by_hand(form: str) -> None:
    rng = np.random.default_rng(5)
    drafted = rng.integers(0, 6, 30_000)
    accepted = np.minimum(rng.integers(0, 6, 30_000), drafted)
    requests = [f"r{i % 50}" for i in range(30_000)]
    found = alpha(read(io.BytesIO(rounds_text(form, drafted.tolist(), accepted.tolist(), requests))))
    use = drafted > 0
    d, a = drafted[use], accepted[use]
    assert found.rounds == use.sum()
    assert found.drafted == d.sum()
    assert found.accepted == a.sum()
    tested = [int(((d >= i) & (a >= i - 1)).sum()) for i in range(1, 6)]
    survived = [int((a >= i).sum()) for i in range(1, 6)]
    assert found.tested == sum(tested)
    assert found.conditional == pytest.approx([s / t for s, t in zip(survived, tested, strict=True)])
    assert found.survival == pytest.approx(np.cumprod(np.array(survived) / np.array(tested)))
    assert found.tokens_per_round.pooled == pytest.approx(1 + a.mean())
    own = [1 + a[np.arange(len(drafted))[use] % 50 == i].mean() for i in range(50)]
    assert found.tokens_per_round.per_request == pytest.approx(np.mean(own))
    assert any("mixed k" in text for text in found.warnings)


def test_workloads_and_sources_of_a_table() -> None:
    text = "drafted;accepted;workload;source\n3;1;chat;a\n3;3;code;a\n3;2;chat;b\n"
    found = read(io.BytesIO(text.encode()))
    assert {name: alpha(part).accepted for name, part in found.by("workload").items()} == {
        "chat": 3,
        "code": 3,
    }
    assert {name: alpha(part).accepted for name, part in found.by("source").items()} == {"a": 4, "b": 2}


OTHER: list[tuple[str, Callable[[], bytes], dict[str, Any]]] = [
    (
        "sglang response",
        lambda: json.dumps(
            {
                "meta_info": {
                    "spec_verify_ct": 10,
                    "spec_num_correct_drafts": 16,
                    "spec_num_proposed_drafts": 30,
                    "spec_correct_drafts_histogram": [3, 2, 1, 4],
                }
            }
        ).encode(),
        {"rounds": 10, "pooled": 2.6, "survival": [0.7, 0.5, 0.4]},
    ),
    (
        "aiperf record",
        lambda: json.dumps(
            {
                "engine": "x",
                "acceptance_histogram": {"0": 3, "1": 2, "2": 1, "3": 4},
                "num_accepted_draft_tokens": 16,
                "num_draft_tokens": 30,
                "num_spec_steps": 10,
                "num_spec_tokens": 3,
            }
        ).encode(),
        {"rounds": 10, "pooled": 2.6, "survival": [0.7, 0.5, 0.4]},
    ),
    (
        "trtllm iterations",
        lambda: b"\n".join(
            json.dumps(
                {
                    "iter": i,
                    "specDecodingStats": {
                        "numDraftTokens": 24,
                        "numAcceptedTokens": 12,
                        "numRequestsWithDraftTokens": 8,
                        "acceptanceLength": 2.5,
                    },
                }
            ).encode()
            for i in range(4)
        ),
        {"rounds": 32, "pooled": 2.5, "k": 3},
    ),
    (
        "eagle alpha mode",
        lambda: json.dumps(
            {
                "question_id": 1,
                "choices": [
                    {"index": 0, "turns": ["x"], "idxs": [9], "alpha": [7, 5, 4], "alpha_num": [10, 7, 5]}
                ],
            }
        ).encode(),
        {"rounds": 10, "pooled": 2.6, "survival": [0.7, 0.5, 0.4]},
    ),
    (
        "llama.cpp example",
        lambda: b"n_draft   = 3\nn_predict = 255\nn_drafted = 300\nn_accept  = 155\naccept    = 51.667%\n",
        {"rounds": 100, "pooled": 2.55, "k": 3},
    ),
    (
        "llama.cpp statistics line alone",
        lambda: (SAMPLES / "llamacpp_server.log").read_bytes().splitlines()[2],
        {"rounds": 1000, "pooled": 2.55, "survival": SURVIVAL},
    ),
    (
        "trtllm metrics of the newer build",
        lambda: (SAMPLES / "trtllm_metrics.txt").read_bytes().replace(b"decode_num_", b"decode_"),
        {"rounds": 1000, "pooled": 2.55, "k": 3},
    ),
    (
        "sglang log with times",
        lambda: b"\n".join(
            (SAMPLES / "sglang_server.log")
            .read_bytes()
            .splitlines()[0]
            .replace(b"10:00:00", f"10:00:{s:02d}".encode())
            for s in (0, 4, 8)
        ),
        {"rounds": 3 * 400, "pooled": 2.55, "k": 3},  # 255 tokens/s x 4 s / 2.55 per round, each line
    ),
]


@pytest.mark.parametrize(("make", "expected"), [row[1:] for row in OTHER], ids=[row[0] for row in OTHER])
def test_forms_that_the_samples_lack(make: Callable[[], bytes], expected: dict[str, Any]) -> None:
    found = alpha(read(io.BytesIO(make())))
    assert found.rounds == pytest.approx(expected["rounds"])
    assert found.tokens_per_round.pooled == pytest.approx(expected["pooled"])
    if "survival" in expected:
        assert found.survival == pytest.approx(expected["survival"])
    if "k" in expected:
        assert found.k == expected["k"]


def test_k_can_be_given_where_the_source_is_silent() -> None:
    old = b"draft acceptance rate = 0.51667 ( 1550 accepted /  3000 generated)\n"
    with pytest.raises(InputError, match="no rounds that could be used"):
        read(io.BytesIO(old))
    assert alpha(read(io.BytesIO(old), k=3)).tokens_per_round.pooled == pytest.approx(2.55)
    bench = json.dumps({"run_name": "x", "batch_size": 4, "output_len": 101, "acc_length": 2.5}).encode()
    silent = alpha(read(io.BytesIO(bench)))
    assert silent.alpha.value is None
    assert any("needs k" in text for text in silent.warnings)
    assert alpha(read(io.BytesIO(bench), k=3)).alpha.value is not None


def test_the_same_run_in_two_forms_is_not_added_silently() -> None:
    found = alpha(read([SAMPLES / "vllm_bench_serve.json", SAMPLES / "llamacpp_metrics.txt"]))
    assert found.rounds == 2000
    assert any("same run" in text for text in found.warnings)


def test_short_drafts_make_lower_bounds_and_say_so() -> None:
    text = (SAMPLES / "vllm_server.log").read_text(encoding="utf-8").splitlines()[1]
    text = text.replace("Drafted: 3000", "Drafted: 2500").replace("51.7%", "62.0%")
    found = alpha(read(io.BytesIO("\n".join([text] * 5).encode())))
    assert (found.k_min, found.k) == (2, 3)
    (warning,) = [text for text in found.warnings if "lower bounds" in text]
    assert "5 times" in warning


def test_progress_reports_bytes(tmp_path: Path) -> None:
    path = tmp_path / "rounds.csv"
    path.write_bytes(rounds_text("csv", [3] * 300_000, [1] * 300_000))
    calls: list[tuple[int, int | None]] = []
    read(path, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (path.stat().st_size, path.stat().st_size)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_sniffing_looks_at_content() -> None:
    assert sniff('{"a": 1}\n{"a": 2}\n') == "lines"
    assert sniff('{"a": 1') == "document"
    assert sniff('{\n "a": 1\n}') == "document"
    assert sniff('[{"a": 1}]') == "document"
    assert sniff("drafted,accepted\n1,1\n") == "csv"
    assert sniff("timestamp,tokens\n1,1\n") == "table"
    assert sniff("INFO starting: wait, please\nINFO ready: go, on\n") == "text"


def test_public_names_resolve() -> None:
    assert all(getattr(evidence, name) is not None for name in evidence.__all__)
    assert dir(evidence) == sorted(evidence.__all__)
    with pytest.raises(AttributeError):
        evidence.nothing  # noqa: B018
