"""`attnctl sources` at a terminal: the numbers of its table, and their order."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

from tests.cli.test_without_torch import answers
from tests.conftest import Run
from tests.tools.screen import rows_below


def test_the_parts_stand_by_what_they_matter_with_the_numbers_of_the_json(at_terminal: Run) -> None:
    asked = ("sources", "--chat", "chat.json", "--model", "llama", "--answer", "w5")
    screen, document = at_terminal(*asked, columns=100).out, at_terminal(*asked, "--json").json
    parts = document["parts"]
    assert sorted(parts, key=lambda part: -part["matters"]) == parts and len(parts) == 3
    table = rows_below(screen, ["part", "looks", "writes", "matters", "without it"])[:3]
    for part, line in zip(parts, table, strict=True):
        assert line[:4] == [part["name"], f"{100 * part['looks']:.1f} %", *(f"{part[name]:+.2f}".replace("-", "−") for name in ("writes", "matters"))]  # fmt: skip
    told = " ".join(screen.split())
    assert all(f"{name} {100 * share:.1f} %" in told for name, share in document["apart"].items())
    assert sum(part["looks"] for part in parts) + sum(document["apart"].values()) == pytest.approx(1, abs=1e-3)


def test_without_torch_it_says_what_to_name_and_then_what_to_install() -> None:
    (_, code, why), (_, *then) = answers(
        (["sources", "Alice will eat"], ["sources", "Alice will eat", "--model", "gpt2"])
    )
    assert code == 2 and "name a checkpoint (smollm2" in why
    assert then == [1, "attnctl: checkpoints need transformers: pip install 'attnctl[hf]'\n"]
