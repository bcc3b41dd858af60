"""What README, docs and changelog name exists: files, commands and their options, page links."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer

from specmodel.cli.app import COMMANDS, app

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
COMMAND = re.compile(
    r"(?:^ {4}(?:\$ )?|`)(?:specmodel )?(" + "|".join(COMMANDS) + r")\b([^`\n#]*)", re.MULTILINE
)
# Files that a person has, or that an answer writes; not ours.
THEIRS = (
    "path/to/",
    "hf_quant_config.json",
    "config.json",
    "deployment.toml",
    "plan.json",
    "mine.toml",
    "here",
)


def commands() -> list[Any]:
    """Command, its options as written, and the page."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        for command, rest in COMMAND.findall(text):
            found.append(pytest.param(command, rest, id=f"{page.stem}: {command}{rest[:40]}"))
    return found


@pytest.mark.parametrize(("command", "written"), commands())
def test_every_command_written_down_takes_these_options(command: str, written: str) -> None:
    group: Any = typer.main.get_command(app)
    known = {option for parameter in group.get_command(None, command).params for option in parameter.opts}
    for option in re.findall(r"(?<!\S)--[a-z-]+", written):
        assert option in known, f"{command} has no {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_file_named_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for name in re.findall(r"(?<![\w./-])((?:[\w*-]+/)+[\w.*-]+\.(?:py|toml|md|csv|txt))", text):
        if not name.startswith(THEIRS):
            assert list(ROOT.glob(name)), f"{page.name} names {name}"


def test_every_page_of_the_docs_is_reached() -> None:
    """From README or from another page."""
    everything = {page: page.read_text(encoding="utf-8") for page in PAGES}
    for page in ROOT.glob("docs/*.md"):
        named = f"docs/{page.name}"
        assert any(named in text for other, text in everything.items() if other != page), named
