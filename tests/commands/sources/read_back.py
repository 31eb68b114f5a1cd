"""The files that `sources` reads, for tests.tools.read_back."""

from __future__ import annotations

TEXTS: dict[str, str] = {}
MADE_BY: tuple[list[str], ...] = ()
READERS = {
    "chat.json": (["sources", "--chat", "chat.json", "--model", "ckpt", "--generate", "2", "--json"],),
}
