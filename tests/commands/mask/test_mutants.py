"""A model of a user with one planted fault: rows that mix, a head, a border of blocks, a layer that hides too much."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import attnctl
from attnctl.commands.mask.result import MaskCheck
from attnctl.errors import UsageError
from tests.commands.mask.sweep import checks
from tests.conftest import Run, check_schema
from tests.tools.sweep.families import Family, build
from tests.tools.sweep.modes import ids

KERNELS = ("eager", "sdpa")
N = 12
CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()
HEADS = 4


class Faulty(LlamaForCausalLM):
    """A class of a user's own, in which each row gets the logits of the row before it."""

    def forward(self, *args: Any, **keywords: Any) -> Any:
        """Run with the fault."""
        output = super().forward(*args, **keywords)
        output.logits = output.logits + output.logits.roll(1, 0)
        return output


@contextmanager
def planted(network: Any, part: str, fault: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Change the output (batch, n, …) of a part within this context; `fault` gets it, and the part's input."""

    def change(_: Any, args: Any, keywords: dict[str, Any], output: Any) -> Any:
        rows = args[0] if args else keywords["hidden_states"]
        return (fault(output[0], rows), *output[1:]) if isinstance(output, tuple) else fault(output, rows)

    hook = network.get_submodule(part).register_forward_hook(change, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()


@functools.cache
def network(kernel: str) -> Any:
    """Return a tiny Llama with peaky attention."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 128}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    made = LlamaForCausalLM._from_config(LlamaConfig(**sizes, **heads), attn_implementation=kernel).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.ndim > 1 and "embed" not in name:
                parameter.mul_(0.2 / parameter.std())
    return made


def found_in(kernel: str, part: str = "", fault: Any = None, **inputs: Any) -> MaskCheck:
    with torch.no_grad():
        if fault is None:
            return attnctl.mask(network(kernel), **inputs)
        with planted(network(kernel), part, fault):
            return attnctl.mask(network(kernel), **inputs)


# --- rows of the batch ------------------------------------------------------------------------------------------------


def shown(batch: int, side: str) -> torch.Tensor:
    """Return a mask in which each row has two more tokens of padding."""
    place = torch.arange(N) if side == "left" else torch.arange(N).flip(0)
    return (place >= 2 * torch.arange(batch)[:, None]).long()


BATCHES = {
    "two rows": {"input_ids": ids(2, N)},
    "left padding": {"input_ids": ids(3, N), "attention_mask": shown(3, "left")},
    "right padding": {"input_ids": ids(3, N), "attention_mask": shown(3, "right")},
    "six rows": {"input_ids": ids(6, N)},
}
# part, fault → layer in which it is
MIXING: dict[str, tuple[str, Callable[[Any, Any], Any], int | None]] = {
    "an MLP": ("model.layers.1.mlp", lambda output, _: output + output.roll(1, 0), 1),
    "a mean over the batch": ("model.layers.0.mlp", lambda output, _: output + output.mean(0, keepdim=True), 0),
    "values": ("model.layers.0.self_attn.v_proj", lambda output, _: output + output.roll(1, 0), 0),
    "a thousandth": ("model.layers.1.mlp", lambda output, _: output + 1e-3 * output.flip(0), 1),
    "the first row": ("model.layers.1.self_attn", lambda output, _: output + 0.1 * output[:1], 1),
    "the embedding": ("model.embed_tokens", lambda output, _: output + output.roll(1, 0), None),
    "the head": ("lm_head", lambda output, _: output + output.roll(1, 0), None),
}


@pytest.mark.grid
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("batch", BATCHES)
def test_rows_that_mix_are_found(batch: str, kernel: str) -> None:
    inputs = BATCHES[batch]
    twin = found_in(kernel, **inputs)
    assert twin.holds is True and not twin.unchecked, str(twin)
    assert {"rows", "model-rows"} <= {one.what for one in twin.tested}
    for name, (part, fault, layer) in MIXING.items():
        found = found_in(kernel, part, fault, **inputs)
        assert found.holds is False and {one.how for one in found.violations} == {"mixes"}, (name, str(found))
        assert {one.layer for one in found.violations} == {layer}, (name, str(found))
        assert all(one.other_row != one.row and (one.change or 0) > found.limit for one in found.violations)


def test_the_other_row_is_named() -> None:
    """Row r gets row r - 1, so that row is named."""
    part, fault, _ = MIXING["an MLP"]
    found = found_in("sdpa", part, fault, **BATCHES["six rows"])
    assert {(one.row, one.other_row) for one in found.violations} == {(row, (row - 1) % 6) for row in range(6)}
    assert "Layer 1, row 3: token" in str(found) and "changes with row 2 of the batch" in str(found)


def test_rows_that_mix_in_a_class_of_the_users() -> None:
    for made, holds in ((LlamaForCausalLM, True), (Faulty, False)):
        check = attnctl.mask(made(network("sdpa").config).eval(), **BATCHES["right padding"])
        assert check.holds is holds and {one.how for one in check.violations} == set([] if holds else ["mixes"])


# --- heads ------------------------------------------------------------------------------------------------------------


def as_given(kernel: str, mask: torch.Tensor) -> torch.Tensor:
    """Return a mask of true and false as the kernel reads it."""
    return mask if kernel == "sdpa" else torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(torch.float32).min)


@contextmanager
def mask_of_layer(network: Any, mask: torch.Tensor) -> Iterator[None]:
    """Give layer 1 another mask (1, heads, n, n)."""
    hook = network.model.layers[1].self_attn.register_forward_pre_hook(
        lambda _, args, keywords: (args, keywords | {"attention_mask": mask}), with_kwargs=True
    )
    try:
        yield
    finally:
        hook.remove()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("head", "query", "key", "how"), [(2, 8, 3, "misses"), (1, 2, 6, "sees"), (3, 11, 0, "misses")]
)
def test_one_head_is_wrong(head: int, query: int, key: int, how: str, kernel: str) -> None:
    mask = CAUSAL.expand(1, HEADS, N, N).clone()
    with torch.no_grad(), mask_of_layer(network(kernel), as_given(kernel, mask)):
        assert attnctl.mask(network(kernel), input_ids=ids(1, N)).holds is True
        mask[0, head, query, key] = how == "sees"
    with torch.no_grad(), mask_of_layer(network(kernel), as_given(kernel, mask)):
        found = attnctl.mask(network(kernel), input_ids=ids(1, N))
    (one,) = found.violations
    assert (one.how, one.layer, one.heads, one.query, one.key) == (how, 1, (head,), query, key)
    assert {(group.layers, group.heads, group.holds) for group in found.groups} == {
        ((0,), None, True),
        ((1,), (head,), False),
        ((1,), tuple(other for other in range(HEADS) if other != head), True),
    }
    assert f"Layer 1, head {head}: token {query}" in str(found)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_mask_with_an_axis_of_heads_is_expected_of_each_head(kernel: str) -> None:
    mask = CAUSAL.expand(1, HEADS, N, N).clone()
    mask[0, 3] &= ~CAUSAL.tril(-2)  # a window of two tokens
    given = as_given(kernel, mask)
    found = found_in(kernel, input_ids=ids(1, N), attention_mask=given)
    assert found.holds is True
    sentences = {group.heads: group.sentence for group in found.groups}
    assert sentences == {(0, 1, 2): "causal", (3,): "causal, window 2"}
    union = as_given(kernel, mask.any(1, keepdim=True))
    with torch.no_grad(), mask_of_layer(network(kernel), union):  # layer 1 takes what any head may see for all of them
        found = attnctl.mask(network(kernel), input_ids=ids(1, N), attention_mask=given)
    (one,) = found.violations
    assert (one.how, one.layer, one.heads, one.pairs) == ("sees", 1, (3,), int((CAUSAL & ~mask[0, 3]).sum()))


def test_a_bias_that_falls_with_the_distance_hides_nothing() -> None:
    """ALiBi's bias of the steepest head, half a point a token, is below -1000 in a text of 2,048 tokens."""
    from attnctl.attention import Call
    from attnctl.commands.mask.call_masks import masks_of_call

    n, slopes = 2304, torch.tensor([0.5, 2**-8])
    gap = torch.arange(n)[:, None] - torch.arange(n)
    rows = torch.zeros(1, 2, n, 1)
    call = Call(rows, rows, rows, causal=True, offset=0, bias=-slopes[:, None, None] * gap.clamp(min=0))
    ((mask,),) = masks_of_call(call)
    assert mask.pairs == n * (n + 1) // 2


# --- borders of blocks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [40, 300])
def test_leaks_at_the_borders_of_a_kernels_blocks(n: int) -> None:
    """The last token of each block sees the first one of the next."""
    assert found_in("sdpa", input_ids=ids(1, n)).holds is True
    for size in (size for size in (16, 32, 64, 128, 256) if size < n):

        def leak(output: Any, rows: Any, size: int = size) -> Any:
            output = output.clone()
            last = torch.arange(size - 1, n - 1, size)
            output[:, last] += 0.05 * rows[:, last + 1]
            return output

        found = found_in("sdpa", "model.layers.1.self_attn", leak, input_ids=ids(1, n))
        assert [(one.how, one.layer) for one in found.violations] == [("sees", 1)], (size, str(found))
        (one,) = found.violations
        assert one.key == one.query + 1 and one.key % size == 0, (size, str(found))


def test_borders_at_the_back_of_a_window_are_exchanged() -> None:
    """A window of 100 tokens: some query whose window begins at a border, and some that ends before one."""
    from attnctl.commands.mask.intervals import band
    from attnctl.commands.mask.sets import chosen_queries

    queries = chosen_queries([band((700, 700), 99, 0)], 12)
    assert any((query + 1) % 256 == 0 for query in queries) and any((query - 99) % 256 == 0 for query in queries)


# --- what cannot be read ------------------------------------------------------------------------------------------------


def test_a_layer_that_may_hide_too_much_is_not_vouched_for(run: Run, room: Path, tmp_path: Path) -> None:
    """GPT-Neo attends in code of its own: a layer that sees itself alone changes no output of what is hidden."""
    with torch.no_grad():
        made = build(Family("gpt_neo", "causal"))
        twin = attnctl.mask(made, input_ids=ids())
        made.save_pretrained(tmp_path / "neo")
        made.transformer.h[1].attn.attention.bias = torch.eye(64, dtype=torch.bool)[None, None]
        found = attnctl.mask(made, input_ids=ids())
    for check in (twin, found):
        assert check.holds is None and not check.violations
        assert "no violation in what was tested" in str(check)
        assert {one.what for one in check.tested} == {"outputs", "model"}
    for file in (room / "llama").glob("tokenizer*"):
        shutil.copy(file, tmp_path / "neo")
    Path("a.json").write_text(json.dumps({"input_ids": ids().tolist()}))
    words = ["mask", "a.json", "--model", str(tmp_path / "neo")]
    done = run(*words, "--json")
    assert done.code == 0 and check_schema(done.json) == "mask"
    assert done.json["holds"] is None and {one["what"] for one in done.json["tested"]} == {"outputs", "model"}
    assert "no violation in what was tested" in run(*words).out


@pytest.mark.parametrize("name", ["deberta-v2", "xlnet", "big_bird", "longformer", "mpnet", "squeezebert"])
def test_nothing_had_to_be_hidden(name: str) -> None:
    """As of BERT; what the masks hide cannot be told."""
    results = list(checks(Family(name, "causal" if name == "xlnet" else "masked"), ("plain",)))
    for _, _, result in results:
        assert isinstance(result, MaskCheck) and result.holds is None, str(result)
        assert "nothing had to be hidden; the masks could not be read" in str(result)
    assert results


@pytest.mark.parametrize("command", [attnctl.mask, attnctl.leaks])
@pytest.mark.parametrize("name", ["seq_lengths", "document_ids", "sample_ids", "segment_ids"])
def test_what_numbers_documents_is_called_segments(name: str, command: Any) -> None:
    with pytest.raises(UsageError, match=f"takes no '{name}': .* number the document of each token in segments"):
        command(network("sdpa"), input_ids=ids(1, N), **{name: torch.zeros(1, N, dtype=torch.long)})
