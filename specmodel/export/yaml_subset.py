"""The part of YAML that an options file needs: nested mappings, scalars, lists, comments.

Written by hand so that no YAML package is needed for one file format. What is not in the subset (anchors, tags,
several documents, text blocks, tabs) is refused by name rather than misread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from specmodel.errors import InputError

_WHOLE = re.compile(r"[-+]?\d+")
_REAL = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?")
_WORDS: Mapping[str, object] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
_SAFE = re.compile(r"[A-Za-z_./][A-Za-z0-9_./+-]*")
# Words that other YAML readers take for truth values or numbers.
_TRAPS = {"yes", "no", "on", "off", "y", "n", "true", "false", "null", ".inf", ".nan"}
_REFUSED = {
    "&": "an anchor",
    "*": "an alias",
    "!": "a tag",
    "|": "a text block",
    ">": "a text block",
    "%": "a directive",
    "@": "a reserved character",
    "`": "a reserved character",
}


def dump(content: Mapping[str, object], comments: Iterable[str] = ()) -> str:
    """Nested mappings, two spaces deep each; comments above.

    Examples
    --------
    >>> print(dump({"a": {"b": [1, 2], "c": "x"}}, ["note"]), end="")
    # note
    a:
      b: [1, 2]
      c: x
    """
    lines = [f"# {comment}" for comment in comments]
    _dump(content, "", lines)
    return "\n".join(lines) + "\n"


def _dump(content: Mapping[str, object], indent: str, lines: list[str]) -> None:
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            lines.append(f"{indent}{_shown(key)}:")
            _dump(value, indent + "  ", lines)
        else:
            lines.append(f"{indent}{_shown(key)}: {_shown(value)}")


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = repr(value)
        return text if "." in text or "e" not in text else text.replace("e", ".0e", 1)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_shown(entry) for entry in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_shown(key)}: {_shown(entry)}" for key, entry in value.items()) + "}"
    text = str(value)
    if _SAFE.fullmatch(text) and text.casefold() not in _TRAPS:
        return text
    return json.dumps(text)


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    indent: int
    text: str


def load(text: str, field: str = "YAML") -> dict[object, object]:
    """A document of the subset.

    Raises
    ------
    InputError
        With the number of the line that cannot be read.
    """
    lines: list[_Line] = []
    for number, raw in enumerate(text.splitlines(), start=1):
        where = f"{field}, line {number}"
        bare = _without_comment(raw).rstrip()
        if not bare.strip():
            continue
        if bare.strip() == "---" and not lines:
            continue
        if "\t" in bare[: len(bare) - len(bare.lstrip())]:
            raise InputError(where, raw, "is indented by a tab; use spaces")
        if bare in ("---", "...") or bare.lstrip().startswith("? "):
            raise InputError(where, raw, "one document of plain mappings only")
        lines.append(_Line(number, len(bare) - len(bare.lstrip()), bare.strip()))
    if not lines:
        return {}
    content, rest = _mapping(lines, field)
    if rest:
        raise InputError(
            f"{field}, line {rest[0].number}", rest[0].text, "is indented less than the block it is in"
        )
    return content


def _mapping(lines: list[_Line], field: str) -> tuple[dict[object, object], list[_Line]]:
    """The mapping that begins with the first line, and the lines after it."""
    indent = lines[0].indent
    content: dict[object, object] = {}
    while lines and lines[0].indent >= indent:
        line, lines = lines[0], lines[1:]
        where = f"{field}, line {line.number}"
        if line.indent > indent:
            raise InputError(where, line.text, "is indented more than the line above allows")
        key, value = _split(line.text, where)
        if key in content:
            raise InputError(where, key, "is given twice")
        if value:
            content[key] = _value(value, where)
        elif lines and lines[0].text.startswith("- ") and lines[0].indent >= indent:
            content[key], lines = _list(lines, field)
        elif lines and lines[0].indent > indent:
            content[key], lines = _mapping(lines, field)
        else:
            content[key] = None
    return content, lines


def _list(lines: list[_Line], field: str) -> tuple[list[object], list[_Line]]:
    indent = lines[0].indent
    entries = []
    while lines and lines[0].indent == indent and lines[0].text.startswith("- "):
        entries.append(_value(lines[0].text[2:].strip(), f"{field}, line {lines[0].number}"))
        lines = lines[1:]
    return entries, lines


def _split(text: str, where: str) -> tuple[object, str]:
    """Key and the rest of ``key: rest``."""
    if text.startswith("- "):
        raise InputError(where, text, "a list is not allowed here")
    place = _outside_quotes(text, ":")
    if place is None:
        raise InputError(where, text, "must be `key: value`")
    return _scalar(text[:place].strip(), where), text[place + 1 :].strip()


def _outside_quotes(text: str, sign: str) -> int | None:
    """Where a colon that ends a key stands (before a space or the end)."""
    for place in _plain_places(text):
        if text[place] == sign and text[place + 1 : place + 2] in ("", " "):
            return place
    return None


def _without_comment(raw: str) -> str:
    """The line up to a ``#`` at its start or after a space."""
    for place in _plain_places(raw):
        if raw[place] == "#" and (place == 0 or raw[place - 1] in " \t"):
            return raw[:place]
    return raw


def _plain_places(text: str) -> Iterator[int]:
    """The places outside of quotation marks; a mark opens only where a word may begin."""
    quote = ""
    place = 0
    while place < len(text):
        letter = text[place]
        if quote:
            if letter == "\\" and quote == '"':
                place += 1  # whatever is escaped does not close
            elif letter == quote:
                quote = ""
        elif letter in "'\"" and text[place - 1 : place] in ("", *" \t{[,:"):
            quote = letter
        else:
            yield place
        place += 1


def _value(text: str, where: str) -> object:
    if text[:1] not in ("{", "["):
        return _scalar(text, where)
    value, rest = _flow(text, where)
    if rest.strip():
        raise InputError(where, text, f"has {rest.strip()!r} after its end")
    return value


def _flow(text: str, where: str) -> tuple[object, str]:
    """A ``{...}`` or ``[...]`` or scalar at the start of a text, and what follows it."""
    text = text.lstrip()
    if text[:1] == "{":
        pairs: dict[object, object] = {}
        text = text[1:].lstrip()
        while text[:1] != "}":
            key, text = _flow(text, where)
            if text[:1] != ":":
                raise InputError(where, text, "must be `{key: value, ...}` on one line")
            if isinstance(key, (dict, list)) or key in pairs:
                raise InputError(where, str(key), "is no key, or is given twice")
            pairs[key], text = _flow(text[1:], where)
            text = _next(text, "}", where)
        return pairs, text[1:].lstrip()
    if text[:1] == "[":
        entries = []
        text = text[1:].lstrip()
        while text[:1] != "]":
            entry, text = _flow(text, where)
            entries.append(entry)
            text = _next(text, "]", where)
        return entries, text[1:].lstrip()
    if text[:1] in ("'", '"'):
        found = re.match(r'"(?:[^"\\]|\\.)*"' if text[0] == '"' else r"'(?:[^']|'')*'", text)
        if not found:
            raise InputError(where, text, "has a quotation mark that is not closed")
        return _scalar(found[0], where), text[found.end() :].lstrip()
    found = re.match(r"(?:[^,\[\]{}:]|:(?! |$))+", text)
    if not found:
        raise InputError(where, text, "must be closed on the same line")
    return _scalar(found[0].strip(), where), text[found.end() :].lstrip()


def _next(text: str, end: str, where: str) -> str:
    """Past a comma, or at the end sign."""
    if text[:1] == ",":
        return text[1:].lstrip()
    if text[:1] != end:
        raise InputError(where, text, f"must go on with a comma or {end!r} on the same line")
    return text


def _scalar(text: str, where: str) -> object:
    if text[:1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            raise InputError(where, text, "is not a well-formed quoted text") from None
    if text[:1] == "'":
        if not re.fullmatch(r"'(?:[^']|'')*'", text):
            raise InputError(where, text, "is not a well-formed quoted text")
        return text[1:-1].replace("''", "'")
    if text[:1] in _REFUSED:
        raise InputError(where, text, f"{_REFUSED[text[:1]]} is not read here; quote it if it is text")
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        if len(text) > 18:
            raise InputError(where, text, "is too large a number")
        return int(text)
    if _REAL.fullmatch(text):
        return float(text)
    return text
