"""What is known of a model's modules follows what a user changes in place, and keeps no model alive."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

from torch import nn

from attnctl.models.huggingface.attention_sites import attention_modules, attention_sites
from tests.tools import architectures as zoo


def layers_of(model: object) -> list[tuple[str, int]]:
    return [(site.name, site.layer) for site in attention_sites(model, "self")]  # type: ignore[arg-type]


def test_modules_that_a_user_changes_in_place_are_asked_again() -> None:
    model = zoo.build("llama")
    before = layers_of(model)
    assert [layer for _, layer in before] == list(range(len(before))) and len(before) > 1
    layers = model.model.layers

    model.model.layers = nn.ModuleList(list(layers)[:1])
    assert layers_of(model) == before[:1]
    model.model.layers = layers
    assert layers_of(model) == before

    block = layers[0]
    del model.model.layers
    model.model.add_module("tower_3_4", nn.ModuleDict({"3": nn.ModuleDict({"4": block})}))
    assert layers_of(model) == [("model.tower_3_4.3.4.self_attn", 3)]
    block.self_attn.layer_idx = 4  # as users do who take layers out
    assert layers_of(model) == [("model.tower_3_4.3.4.self_attn", 4)]


class OwnedAttention(nn.Module):
    """A module that knows the model which holds it."""

    owner: list[nn.Module]


def test_a_model_that_its_modules_know_is_not_kept_alive() -> None:
    gc.disable()  # all that is made here stays young, so that the youngest are enough to collect
    attention = OwnedAttention()
    model: Any = nn.ModuleDict({"attention": attention})
    attention.owner = [model]
    assert attention_modules(model) == {"attention": attention}
    dead = ref(model)
    del model, attention
    gc.collect(0)
    gc.enable()
    assert dead() is None
