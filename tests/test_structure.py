"""The shape of the house: import direction, packages listed, start-up, public names."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import specmodel

ROOT = Path(__file__).parent.parent
FORBIDDEN = {
    "specmodel": ("specmodel.hardware", "specmodel.cli"),
    "hardware": ("specmodel.cli",),
    "cli": (),
}
# `optimize` is the command that must start at once; none of these may be loaded by it.
HEAVY = ("numpy", "scipy", "sympy")


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("folder", ["specmodel", "hardware", "cli"])
def test_imports_point_one_way(folder: str) -> None:
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).parts
        if folder == "specmodel" and (parts[1] in ("cli", "hardware") or path.name == "__main__.py"):
            continue  # the links to the other two folders, and the door to the command line
        names = imported(path)
        for above in FORBIDDEN[folder]:
            assert not any(name == above or name.startswith(above + ".") for name in names), (
                f"{path} imports {above}"
            )
        assert not any(name.split(".")[0] in ("hardware", "cli") for name in names), path


def test_every_package_is_listed_for_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    found = set()
    for folder, name in (
        ("specmodel", "specmodel"),
        ("hardware", "specmodel.hardware"),
        ("cli", "specmodel.cli"),
    ):
        for init in (ROOT / folder).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / folder).parts
            if folder == "specmodel" and inner[:1] in (("cli",), ("hardware",)):
                continue
            found.add(".".join((name, *inner)))
    assert set(settings["packages"]) == found


def test_the_public_names_are_a_decision() -> None:
    expected = (ROOT / "tests" / "public_names.txt").read_text(encoding="utf-8").split()
    assert sorted(specmodel.__all__) == expected
    for name in specmodel.__all__:
        assert getattr(specmodel, name) is not None
    with pytest.raises(AttributeError):
        _ = specmodel.no_such_name


def test_optimize_starts_without_the_heavy_libraries() -> None:
    script = (
        "import sys\n"
        "sys.argv = ['specmodel', 'optimize', '--alpha', '0.8', '--draft-cost', '0.15']\n"
        "from specmodel.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print('LOADED', *sorted(name for name in sys.modules if '.' not in name))\n"
    )
    bare = "import sys, typer\napp = typer.Typer()\n@app.command()\ndef a() -> None: ...\napp(standalone_mode=False)\n"
    bare += "print('LOADED', *sorted(name for name in sys.modules if '.' not in name))\n"
    ours, typer_alone = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
        .stdout.split("LOADED")[1]
        .split()
        for code in (script, bare.replace("import sys, typer", "import sys, typer; sys.argv = ['a']"))
    )
    for heavy in HEAVY:
        assert heavy not in ours
    assert "pydantic" not in ours or "pydantic" in typer_alone
