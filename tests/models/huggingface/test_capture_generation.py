"""The forwards of a whole `generate` as one trace, held against one eager forward of the finished text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

from attnctl.api.captures import Captures
from attnctl.api.capturing import capture
from attnctl.errors import UsageError
from attnctl.formats.storage import load
from attnctl.trace import Trace

pytestmark = pytest.mark.usefixtures("no_gradients", "quiet")

SIZES: dict[str, Any] = {
    "num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 100, "max_position_embeddings": 64,
}  # fmt: skip
WINDOW = {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 8}
BART = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 100,
}  # fmt: skip
BLOOM = {"n_layer": 2, "n_head": 2, "hidden_size": 32, "vocab_size": 100}
CLASSES = {"Llama": "ForCausalLM", "Gemma3Text": "", "Bloom": "ForCausalLM", "Bart": "ForConditionalGeneration"}
STATIC = {"cache_implementation": "static"}


def built(family: str, **settings: Any) -> Any:
    torch.manual_seed(1)
    name = "Gemma3ForCausalLM" if family == "Gemma3Text" else f"{family}{CLASSES[family]}"
    model = getattr(transformers, name)(getattr(transformers, f"{family}Config")(**settings)).eval()
    for parameter in model.parameters():
        parameter.mul_(3 if parameter.ndim > 1 else 1)  # weights far from even
    model.generation_config.update(eos_token_id=None, pad_token_id=0, forced_eos_token_id=None)
    return model


def written(model: Any, given: dict[str, torch.Tensor], options: dict[str, Any], **chosen: Any) -> tuple[Captures, Any]:
    with capture(model, **chosen) as traces:
        text = model.generate(**given, **({"max_new_tokens": 5, "do_sample": False, "num_beams": 1} | options))
    return traces, text


def inputs(batch: int = 1, n: int = 5, padding: int = 0) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 90, (batch, n), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[-1, :padding] = 0
    return {"input_ids": ids, "attention_mask": mask}


def largest_difference(trace: Trace, right: Any, item: int = 0, first: int = 0) -> float:
    """How far the rows of all layers are from what transformers put out for one text, without its padding."""
    gaps = [
        np.abs(layer.weights - weights[item, :, slice(first, None), first:].numpy()[list(layer.heads)]).max()
        for layer, weights in zip(trace.layers, right, strict=True)
    ]
    return float(max(gaps))


@pytest.mark.parametrize(
    ("family", "settings", "options"),
    [
        ("Llama", SIZES, {}),
        ("Llama", SIZES, STATIC),
        ("Llama", SIZES, {"prefill_chunk_size": 2}),  # the prompt in three forwards
        ("Gemma3Text", SIZES | WINDOW, {}),  # a cache of the last three keys in one layer
        ("Gemma3Text", SIZES | WINDOW, STATIC),
        ("Bloom", BLOOM, {}),  # outside the interface
    ],
)
def test_all_forwards_are_one_map_of_the_whole_text(
    family: str, settings: dict[str, Any], options: dict[str, Any], tmp_path: Any
) -> None:
    model = built(family, **settings)
    if family == "Bloom":
        model.set_attn_implementation("eager")
    traces, text = written(model, inputs(), options)
    names = [f"t{number}" for number in text[0].tolist()]
    trace = traces.trace(names)
    model.set_attn_implementation("eager")
    right = model(text[:, :-1], output_attentions=True, use_cache=False).attentions
    assert [token.text for token in trace.tokens] == names[:-1]  # no forward read the last new token
    assert largest_difference(trace, right) < 1e-6
    trace.save(tmp_path / "run.json")  # its rows, masks and context are checked when it is read
    assert len(load(tmp_path / "run.json").layers) == 2
    if family == "Bloom":
        return
    whole = capture(model)
    with whole as once:
        model(text[:, :-1], use_cache=False)
    for joined, single in zip(trace.layers, once.trace().layers, strict=True):
        for step in ("queries", "keys", "values", "context"):
            assert np.abs(getattr(joined, step) - getattr(single, step)).max() < 1e-5
        assert joined.mask is not None and np.array_equal(joined.mask, single.mask)


def test_padding_rows_heads_and_steps_are_chosen_as_in_one_forward() -> None:
    model, given = built("Llama", **SIZES), inputs(2, padding=2)
    traces, text = written(model, given, STATIC, layer=1, head=[2, 0], keep=("queries",))
    trace = traces.trace(attention_mask=given["attention_mask"], item=1)
    rows, _ = written(model, given, {}, layer=1, rows=-1)
    model.set_attn_implementation("eager")
    mask = torch.cat([given["attention_mask"], torch.ones(2, 4, dtype=torch.long)], 1)
    right = model(text[:, :-1], attention_mask=mask, output_attentions=True, use_cache=False).attentions[1:]
    assert largest_difference(trace, right, item=1, first=2) < 1e-6
    assert trace.layers[0].queries is not None and trace.layers[0].keys is None and len(trace.tokens) == 7
    last = rows.trace(item=0).layers[0]
    assert last.rows == (4, 5, 6, 7, 8)  # the last of the prompt, and each new token
    assert np.abs(last.weights - right[0][0, :, 4:].numpy()).max() < 1e-6
    assert traces.trace(step=0, item=1).layers[0].weights.shape[1] == 5  # the prompt alone, as it was


def test_a_decoder_writes_over_its_source() -> None:
    model, given = built("Bart", **BART), inputs()
    traces, text = written(model, given, {})
    model.set_attn_implementation("eager")
    right = model(**given, decoder_input_ids=text[:, :-1], output_attentions=True)
    for kind in ("decoder", "cross", "encoder"):
        weights = getattr(right, f"{kind}_attentions")
        assert largest_difference(traces.trace(kind=kind), weights) < 1e-6
    crossed = traces.trace(list("abcdef"), key_tokens=list("vwxyz"), kind="cross")
    assert [token.text for token in crossed.tokens] == list("abcde")


def test_what_cannot_be_joined_says_why() -> None:
    model = built("Llama", **SIZES)
    beams, _ = written(model, inputs(2), {"num_beams": 3, "max_new_tokens": 9})
    crossed, _ = written(built("Bart", **BART), inputs(), {"num_beams": 4, "max_new_tokens": 9}, attention="cross")
    for traces in (beams, crossed):
        with pytest.raises(
            UsageError, match=r"does not go on from the cache .* as with beams .* name a forward with step"
        ):
            traces.trace()
        assert traces.trace(step=0).layers
    anew, text = written(model, inputs(), {"use_cache": False})
    assert "the first of 5 forwards, each of which begins anew; step=4 is the last" in anew.trace().notes[-1]
    assert len(anew.trace(step=4).tokens) == 9
    with pytest.raises(UsageError, match="10 names for 5 positions: This is the first of 5 forwards"):
        anew.trace([str(number) for number in text[0].tolist()])
    traces, _ = written(model, inputs(), {})
    with pytest.raises(
        UsageError, match=r"5 names for 9 positions: the prompt and each new token.*step=0 is the prompt"
    ):
        traces.trace(list("abcde"))
