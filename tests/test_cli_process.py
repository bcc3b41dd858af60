"""The command line as a process: pipes that close, disks that are full, terminals that are narrow or know no Unicode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from specmodel.cli import app
from tests.cli_runs import Run

ROOT = Path(__file__).parent.parent
MODULE = [sys.executable, "-m", "specmodel"]


def process(*arguments: str, shell: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """The command, optionally followed by shell text such as a pipe; standard streams as bytes."""
    quoted = " ".join(f"'{word}'" for word in [*MODULE, *arguments])
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {quoted} {shell}"],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("arguments", [("devices", "--json"), ("devices",)])
def test_a_reader_that_leaves_is_no_error(arguments: tuple[str, ...]) -> None:
    ended = process(*arguments, shell="| head -1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("arguments", [("exact", "--p", "1", "--q", "1", "--json"), ("devices",)])
def test_a_full_disk_is_one_line(arguments: tuple[str, ...]) -> None:
    ended = process(*arguments, shell="> /dev/full")
    assert ended.returncode == 1
    assert ended.stderr.count(b"\n") == 1
    assert b"cannot be written" in ended.stderr


def test_a_closed_standard_output_is_no_error() -> None:
    ended = process("devices", "--json", shell=">&-")
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_a_terminal_without_unicode_shows_what_it_can(tmp_path: Path) -> None:
    folder = tmp_path / "mödel"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 128,
                "vocab_size": 100,
            }
        )
    )
    plain = process("memory", "--model", str(folder), PYTHONIOENCODING="ascii", PYTHONUTF8="0", LC_ALL="C")
    assert plain.returncode == 0, plain.stderr
    assert b"?del" in plain.stdout
    as_json = process("memory", "--model", str(folder), "--json", PYTHONIOENCODING="ascii")
    assert json.loads(as_json.stdout)["inputs"]["model"] == "mödel"


def test_a_config_may_come_through_a_pipe(shared: Path) -> None:
    config = shared / "cases" / "configs" / "llama-3.1-8b.json"
    ended = process("memory", "--json", shell=f"--model <(cat {config})")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["inputs"]["kv_bytes_per_token"] == 131072


def test_colour_is_left_out_where_it_was_refused() -> None:
    for environment in ({"NO_COLOR": "1", "FORCE_COLOR": ""}, {"TERM": "dumb"}):
        assert b"\x1b[" not in process("exact", "--p", "1", "--q", "1", **environment).stdout


@pytest.mark.parametrize("columns", ["20", "40", "80", "200"])
def test_no_width_of_terminal_hides_a_digit(run: Run, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for arguments in (
        ("breakeven", "--ctx", "640"),
        ("optimize", "--alpha", "0.8", "--draft-cost", "0.15"),
        ("step",),
    ):
        code, out, _ = run(*arguments)
        assert code == 0
        assert "…" not in out
    code, out, _ = run("optimize", "--alpha", "0.8", "--draft-cost", "0.15")
    digits = "".join(out.split())
    assert "3.6893tokensperround" in digits


def test_names_are_whole_in_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for arguments, names in (
        (("validate",), ("attn_decode_h100_sxm.csv", "gemm_a100_sxm.csv", "allreduce")),
        (("drafts",), ("sparse-self", "early-exit", "ILLUSTRATIVE")),
        (("models",), ("nemotron-3-nano-30b-a3b", "deepseek-v3.1-nvfp4")),
        (("devices",), ("rtx-pro-6000-server",)),
    ):
        code, out, _ = run(*arguments)
        assert code == 0
        for name in names:
            assert name in out
        assert max(map(len, out.splitlines())) <= 80


def test_the_version_is_printed_and_nothing_else(run: Run) -> None:
    code, out, err = run("--version")
    assert (code, err) == (0, "")
    assert out.startswith("specmodel")


def test_a_fault_of_our_own_is_one_line_unless_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(**_: object) -> None:
        raise ZeroDivisionError("first line\nsecond line")

    monkeypatch.setattr(app, "app", faulty)
    code, out, err = run("devices")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "ZeroDivisionError: first line second line" in err
    monkeypatch.setenv("SPECMODEL_TRACEBACK", "1")
    monkeypatch.setattr(sys, "argv", ["specmodel", "devices"])
    with pytest.raises(ZeroDivisionError):
        app.main()


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("step",), "--batch"),
        (("step",), "--ctx"),
        (("step",), "--tp"),
        (("step",), "--kv-reread"),
        (("memory",), "--reserve"),
        (("memory",), "--memory-fraction"),
        (("breakeven",), "--max-k"),
        (("breakeven",), "--kv-bytes-per-token"),
        (("exact", "--p", "1", "--q", "1"), "--temperature"),
        (("compose",), "--baseline-ctx"),
        (("policy",), "--dwell-s"),
        (("alpha", "--plan"), "--icc"),
    ],
)
@pytest.mark.parametrize("value", ["-1", "nan", "inf", "abc", "", "1e400", "0x10"])
def test_impossible_numbers_name_option_and_value(
    run: Run, command: tuple[str, ...], option: str, value: str
) -> None:
    code, out, err = run(*command, f"{option}={value}")
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith(f"specmodel: {option} = "), err
