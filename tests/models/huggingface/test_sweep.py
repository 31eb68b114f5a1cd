"""A fast part of the sweep (python -m tests.tools.sweep): the families that were shown wrongly once, and one of each usual kind."""

from __future__ import annotations

import pytest

from tests.tools.sweep import families
from tests.tools.sweep.families import Family
from tests.tools.sweep.modes import MODES
from tests.tools.sweep.verdict import EXACT, REFUSED, UNBUILT, verdicts

EXACTLY = {
    "albert masked": "one module for all layers",
    "bert causal": "a static cache, which the two kernels read differently",
    "big_bird masked": "modules taken for others while it runs",
    "bigbird_pegasus seq2seq": "an encoder outside the interface, a decoder inside",
    "deepseek_v4 causal": "arithmetic on the mask, keys that hold several tokens",
    "diffllama causal": "two calls a layer",
    "doge causal": "a mask of numbers with blind rows",
    "falcon causal": "outside the interface",
    "gemma2 causal": "soft cap, window, no fused kernel",
    "gemma4_text causal": "sizes that differ from layer to layer, shared keys",
    "git causal": "outside the interface, in a file that names it",
    "glm_moe_dsa causal": "keys picked by an indexer",
    "gpt2 causal": "learned positions",
    "gpt_oss causal": "sinks",
    "granite_swa causal": "sinks after the context",
    "jamba causal": "attention in some layers only",
    "led seq2seq": "the columns of a window",
    "longcat_flash causal": "two attentions a layer",
    "minimax_m3_vl_text causal": "blocks of keys picked for each group of heads apart, in half precision too",
    "nllb-moe seq2seq": "no fused kernel",
    "prophetnet seq2seq": "scores put out as weights",
    "recurrent_gemma causal": "a recurrence over padding",
    "roformer masked": "outside the interface, looks ahead",
    "squeezebert masked": "scores put out as weights",
    "t5 seq2seq": "a bias by position",
    "t5gemma2 seq2seq": "decoder and cross attention in one",
}
REFUSES = {
    "mamba causal": "no attention",
    "yoso masked": "hidden states put out as weights",
}


@pytest.mark.grid
@pytest.mark.parametrize("name", [*EXACTLY, *REFUSES])
def test_what_is_shown_is_what_the_model_does(name: str) -> None:
    found = list(verdicts(Family(*name.rsplit(" ", 1)), MODES))
    assert [verdict for verdict in found if verdict.outcome not in (EXACT, REFUSED, UNBUILT)] == []
    plain = [verdict.outcome for verdict in found if verdict.mode == "plain"]
    assert set(plain) == {EXACT if name in EXACTLY else REFUSED}
    if name in EXACTLY:
        spared = {"led seq2seq": "static cache"}.get(name)  # of which it puts out other columns
        assert [one for one in found if one.outcome == REFUSED and one.mode not in ("commands", spared)] == []


def test_gpt2_that_scales_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under eager it attends in code of its own, and tells its weights; under sdpa by the interface, each layer's scale its own."""
    reordered = {"reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True}
    monkeypatch.setitem(families.NEEDS, "gpt2", reordered)
    modes = [mode for mode in MODES if mode.name in ("plain", "generate", "commands", "one head")]
    found = list(verdicts(Family("gpt2", "causal"), modes))
    assert len(found) == 8 and [verdict for verdict in found if verdict.outcome != EXACT] == []
