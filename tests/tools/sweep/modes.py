"""The ways in which a model is run in the sweep: what it is given, and what counts as its answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.tools.sweep.families import Family

N, TARGET, NEW = 11, 5, 3  # tokens of the text (beyond every window), of the decoder's text, and generated ones


class NotMeantError(Exception):
    """This mode does not apply to this family."""


Run = Callable[[Family, Any], list[torch.Tensor]]


@dataclass(frozen=True)
class Mode:
    """One way to run a model: `run(family, model)` answers tensors that must not change while one looks on."""

    name: str
    run: Run
    dtype: str = "float32"
    narrow: bool = False  # one head of one layer is looked at, not all
    stop: bool = False  # and the forward left early
    commands: bool = False  # looked at as by a command: a trace of a text, and the check


def ids(batch: int = 1, n: int = N, seed: int = 1) -> torch.Tensor:
    """Token ids that are no special ones (batch, n)."""
    return torch.randint(5, 100, (batch, n), generator=torch.Generator().manual_seed(seed))


def given(family: Family, model: Any, batch: int = 1) -> dict[str, Any]:
    """What a model of the family is called with."""
    inputs: dict[str, Any] = {"input_ids": ids(batch).to(model.device)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids(batch, TARGET, 2).to(model.device)
    return inputs


def tensors(output: Any) -> list[torch.Tensor]:
    """The first floating-point answers of a model: logits, or hidden states."""
    found = [part for part in output.to_tuple() if isinstance(part, torch.Tensor) and part.is_floating_point()]
    return found[:2]


def plain(family: Family, model: Any) -> list[torch.Tensor]:
    return tensors(model(**given(family, model)))


def padded(side: str) -> Run:
    def run(family: Family, model: Any) -> list[torch.Tensor]:
        inputs = given(family, model, batch=2)
        there = torch.ones(2, N, dtype=torch.long)
        there[1, slice(0, 4) if side == "left" else slice(N - 4, N)] = 0
        return tensors(model(**inputs, attention_mask=there.to(model.device)))

    return run


def mask_4d(family: Family, model: Any) -> list[torch.Tensor]:
    if family.head != "causal" or not takes(model, "attention_mask") or model.config.is_encoder_decoder:
        raise NotMeantError
    mask = torch.tril(torch.ones(N, N))
    mask[N - 2, 3] = 0  # one edge is cut
    dark = torch.finfo(torch.float32).min
    return tensors(model(**given(family, model), attention_mask=((1 - mask) * dark)[None, None].to(model.device)))


def embedded(family: Family, model: Any) -> list[torch.Tensor]:
    if not takes(model, "inputs_embeds"):
        raise NotMeantError
    inputs = given(family, model)
    rows = model.get_input_embeddings()(inputs.pop("input_ids"))
    return tensors(model(inputs_embeds=rows, **inputs))


def generated(**how: Any) -> Run:
    def run(family: Family, model: Any) -> list[torch.Tensor]:
        if family.head not in ("causal", "seq2seq") or not model.can_generate():
            raise NotMeantError
        text = ids(how.get("batch", 1)).to(model.device)
        settings = {name: value for name, value in how.items() if name != "batch"}
        made = model.generate(
            input_ids=text,
            attention_mask=torch.ones_like(text),
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
            **settings,
        )
        return [made.float()]

    return run


def takes(model: Any, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters


MODES = (
    Mode("plain", plain),
    Mode("one head", plain, narrow=True),
    Mode("stop", plain, narrow=True, stop=True),
    Mode("left-padded", padded("left")),
    Mode("right-padded", padded("right")),
    Mode("4-D mask", mask_4d),
    Mode("embeddings", embedded),
    Mode("half", plain, dtype="bfloat16"),
    Mode("generate", generated()),
    Mode("beams", generated(num_beams=2)),
    Mode("static cache", generated(cache_implementation="static")),
    Mode("commands", plain, commands=True),
)
