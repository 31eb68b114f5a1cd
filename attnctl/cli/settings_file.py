"""A default written into the text of the defaults file: its line alone changes, comments and all else stay as they are."""

from __future__ import annotations

import json
import re
import tomllib

from attnctl.errors import AttnctlError, UsageError

_HEADING = re.compile(r"\s*\[")


def with_setting(text: str, table: str, key: str, value: bool | float | str | None) -> str:
    """The text of a TOML file with `key` of `table` ("" is the top) set to `value`, or without it for None.

    Raises UsageError for text that is not Unicode, and AttnctlError where the file holds the key in a way that no single
    line can change: over several lines, or in a table within a table.
    """
    lines = text.rstrip("\n").split("\n") if text.strip() else []
    first, last = _section(lines, table)
    named = re.compile(rf"""\s*["']?{re.escape(key).replace("_", "[_-]")}["']?\s*=""")
    found = [at for at in range(first, last) if named.match(lines[at])]
    if value is None and not found:
        return text
    line = [] if value is None else [f"{key} = {_toml_value(value)}"]
    if found:
        lines[found[0] : found[0] + 1] = line
    elif first > len(lines):  # there is no such table yet
        lines += [*([""] if lines else []), f"[{table}]", *line]
    else:
        while last > first and not lines[last - 1].strip():
            last -= 1
        lines[last:last] = line if last == len(lines) or not lines[last].strip() else [*line, ""]
    changed = "\n".join(lines).strip("\n") + "\n"
    _check_change(text, changed, table, key, value)
    return changed


def _section(lines: list[str], table: str) -> tuple[int, int]:
    """The lines of a table, its heading left out: from, to. Beyond the last line where there is no such table."""
    headings = [at for at, line in enumerate(lines) if _HEADING.match(line)]
    edges = [*headings, len(lines)]
    if not table:
        return 0, edges[0]
    for at, end in zip(headings, edges[1:], strict=True):
        if re.fullmatch(rf"""\s*\[\s*["']?{re.escape(table)}["']?\s*\]\s*(#.*)?""", lines[at]):
            return at + 1, end
    return len(lines) + 1, len(lines) + 1


def _toml_value(value: bool | float | str) -> str:
    """A value as TOML writes it. Raises UsageError for text that is not Unicode."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError(f"--set {value!r}: it is not UTF-8 text") from None
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)


def _check_change(before: str, after: str, table: str, key: str, value: bool | float | str | None) -> None:
    """Raise AttnctlError where a change changes anything else, or does not do what it is for."""
    wanted, own = tomllib.loads(before), f"{table}.{key}" if table else key
    within = wanted.setdefault(table, {}) if table else wanted
    try:
        got = tomllib.loads(after)
        if not isinstance(within, dict):
            raise ValueError(table)
        for name in [name for name in within if name.replace("-", "_") == key]:
            del within[name]
        if value is not None:
            within[key] = value
    except ValueError:
        got = None
    if got is None or (got | ({table: got.get(table, {})} if table else {})) != wanted:
        raise AttnctlError(f"the defaults file holds {own} in a way that cannot be changed here: change it by hand")
