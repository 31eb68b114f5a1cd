"""Leaks between packed documents: every one that is planted is found, with its cause, and no clean batch is accused."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
import torch
from transformers import DataCollatorWithFlattening

import attnctl
from attnctl.errors import UsageError
from tests.tools import architectures as zoo

DOCUMENTS = [[5, 9, 33, 17, 28], [41, 12, 7, 55, 23, 36, 50], [19, 44, 8]]
N = sum(map(len, DOCUMENTS))
OWNERS = torch.tensor([[at for at, one in enumerate(DOCUMENTS) for _ in one]])
SAME = OWNERS[:, :, None] == OWNERS[:, None, :]  # (1, n, n)
CAUSAL = torch.ones(N, N, dtype=torch.bool).tril()

STATE = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64, "state_size": 8, "pad_token_id": 0}
JAMBA = zoo.GROUPED | {
    "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
    "expert_layer_offset": 1, "num_experts": 4, "mamba_d_state": 8, "mamba_dt_rank": 4,
}  # fmt: skip
NEW = {
    "mamba": ("mamba", "MambaForCausalLM", STATE),
    "jamba": ("jamba", "JambaForCausalLM", JAMBA),
    "bert, words": ("bert", "BertForMaskedLM", zoo.TINY),
}


@cache
def network(case: str, kernel: str = "sdpa") -> Any:
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setattr(zoo, "ALL", zoo.ALL | NEW)
        if case not in NEW or case == "bert, words":
            return zoo.build(case, kernel)
        torch.manual_seed(0)
        module, name, settings = NEW[case]
        family = __import__(f"transformers.models.{module}.modeling_{module}", fromlist=[name])
        made = getattr(family, name)._from_config(getattr(family, name).config_class(**settings)).eval()
        with torch.no_grad():
            for parameter_name, parameter in made.named_parameters():
                if parameter.ndim > 1 and not any(part in parameter_name for part in ("embed", "A_log", "conv")):
                    parameter.mul_(0.2 / (parameter.std() + 1e-6))
        return made


# --- collators: what they make of the documents --------------------------------------------------------------------


def flattened(**more: Any) -> dict[str, Any]:
    """Padding-free, by transformers' own collator: position_ids restart, labels of first tokens are -100."""
    return dict(DataCollatorWithFlattening(**more)([{"input_ids": one} for one in DOCUMENTS]))


def trl() -> dict[str, Any]:
    """As TRL packs: rows of one length, position_ids of seq_lengths, no mask."""
    rows = [[*DOCUMENTS[0], *DOCUMENTS[1]], [*DOCUMENTS[1], *DOCUMENTS[0]]]
    places = [[*range(5), *range(7)], [*range(7), *range(5)]]
    return {"input_ids": torch.tensor(rows), "labels": torch.tensor(rows), "position_ids": torch.tensor(places)}


def padded(side: str, **more: Any) -> dict[str, Any]:
    longest = max(map(len, DOCUMENTS))
    rows, masks = [], []
    for one in DOCUMENTS:
        gap = longest - len(one)
        rows.append([0] * gap + one if side == "left" else one + [0] * gap)
        masks.append([0] * gap + [1] * len(one) if side == "left" else [1] * len(one) + [0] * gap)
    return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks)} | more


def blind_to_padding() -> dict[str, Any]:
    """Left padding without its mask."""
    made = padded("left")
    mask = made.pop("attention_mask")
    return made | {"segments": mask - 1}


def bare(**more: Any) -> dict[str, Any]:
    """Documents one behind the other, and who they are."""
    return {"input_ids": flattened()["input_ids"], "segments": OWNERS} | more


def square(seen: torch.Tensor, **more: Any) -> dict[str, Any]:
    """A mask of (1, 1, n, n), true where a query may look."""
    return bare(attention_mask=seen.expand(1, N, N)[:, None], **more)


def added(seen: torch.Tensor, hidden: float) -> dict[str, Any]:
    """The same as numbers that are added to the scores."""
    return bare(attention_mask=torch.zeros(1, 1, N, N).masked_fill(~seen.expand(1, N, N)[:, None], hidden))


def one_more(query: int, key: int, seen: torch.Tensor) -> torch.Tensor:
    """A mask with one more pair of tokens."""
    more = seen.expand(1, N, N).clone()
    more[0, query, key] = True
    return more


def restarting(start: int = 0) -> torch.Tensor:
    return torch.tensor([[start + at for one in DOCUMENTS for at in range(len(one))]])


def prefix(tokens: int) -> torch.Tensor:
    """Causal within each document, but for its first tokens, which see each other."""
    place = restarting()[0]
    return SAME & (CAUSAL | ((place[:, None] < tokens) & (place < tokens)))


ONES = torch.ones(1, N, dtype=torch.long)
ENDS = torch.tensor([0, 5, 12, 15], dtype=torch.int32)
CAUSAL_MODELS = ("llama", "qwen2", "gemma3, window", "gpt_neox, partial rotary")
CLEAN: dict[str, tuple[str, dict[str, Any], str]] = {  # model, batch, expectation
    **{f"{model}: flattened": (model, flattened(), "segments") for model in CAUSAL_MODELS},
    **{f"{model}: trl": (model, trl(), "segments") for model in CAUSAL_MODELS},
    **{f"{model}: left padding": (model, padded("left"), "segments") for model in (*CAUSAL_MODELS, "mamba", "jamba")},
    **{f"{model}: square": (model, square(SAME & CAUSAL), "segments") for model in CAUSAL_MODELS},
    "llama: right padding": ("llama", padded("right"), "segments"),
    "mamba: right padding": ("mamba", padded("right"), "segments"),
    "bert: padding": ("bert", padded("right"), "segments"),
    "roberta: left padding": ("roberta", padded("left"), "segments"),
    "llama, eager: flattened": ("llama/eager", flattened(), "segments"),
    "llama: lowest number": ("llama", added(SAME & CAUSAL, torch.finfo(torch.float32).min), "segments"),
    "llama, eager: minus ten thousand": ("llama/eager", added(SAME & CAUSAL, -1e4), "segments"),
    "llama: square, and boundaries": ("llama", {
        "input_ids": flattened()["input_ids"], "position_ids": torch.arange(N)[None], "cu_seq_lens_q": ENDS,
        "attention_mask": (SAME & CAUSAL)[:, None],
    }, "segments"),
    "llama: positions from 2": ("llama", bare(position_ids=restarting(2)), "segments"),
    "llama: flash keywords too": ("llama", flattened(return_flash_attn_kwargs=True), "segments"),
    "llama: one text, causal": ("llama", {"input_ids": torch.tensor(DOCUMENTS[:1])}, "causal"),
    "mamba: one text, causal": ("mamba", {"input_ids": torch.tensor(DOCUMENTS[:1])}, "causal"),
    "llama: packed without a mask, causal": ("llama", bare(), "causal"),
    "llama: prefix": ("llama", square(prefix(3)), "prefix 3"),
    "bert: square": ("bert", square(SAME), "segments"),
    "bert, words: square": ("bert, words", square(SAME, labels=bare()["input_ids"]), "segments"),
    "t5: square": ("t5, bias", square(SAME), "segments"),
    "t5, eager: minus infinity": ("t5, bias/eager", added(SAME, -torch.inf), "segments"),
    "bert: table": ("bert", square(SAME | ((OWNERS[0][:, None] == 2) & (OWNERS[0] == 0))), "table"),
}  # fmt: skip
TABLE = [[1, 0, 0], [0, 1, 0], [1, 0, 1]]
# model, batch, the cause, and who looks at whom; one with itself is its future
AFTER = {(1, 0), (2, 0), (2, 1)}
EVERY = AFTER | {(key, query) for query, key in AFTER}
PLANTED: dict[str, tuple[str, dict[str, Any], str, set[tuple[int, int]]]] = {
    **{
        f"{model}: all-ones mask": (model, flattened() | {"attention_mask": ONES}, "mask-given", AFTER)
        for model in CAUSAL_MODELS
    },
    **{f"{model}: nothing given": (model, bare(), "nothing-given", AFTER) for model in CAUSAL_MODELS},
    **{f"{model}: mask of ids": (model, bare(attention_mask=OWNERS + 1), "mask-of-ids", AFTER) for model in CAUSAL_MODELS},
    "llama: cache": ("llama", flattened() | {"use_cache": True}, "cache", AFTER),
    "llama: flash keywords alone": (
        "llama", flattened(return_flash_attn_kwargs=True, return_position_ids=False), "kernel", AFTER
    ),
    "llama: causal mask": ("llama", square(CAUSAL.expand(1, N, N)), "given-mask", AFTER),
    "llama: mask off by one": ("llama", square(one_more(5, 4, SAME & CAUSAL)), "given-mask", {(1, 0)}),
    "llama: soft mask": ("llama/eager", added(SAME & CAUSAL, -3.0), "given-mask", EVERY | {(0, 0), (1, 1), (2, 2)}),
    "llama, eager: mask of truths": (
        "llama/eager", square(SAME & CAUSAL), "added-mask", EVERY | {(0, 0), (1, 1), (2, 2)}
    ),
    "llama: prefix": ("llama", square(prefix(3)), "prefix", {(0, 0), (1, 1), (2, 2)}),
    "llama: both sides": ("llama", square(SAME), "given-mask", {(0, 0), (1, 1), (2, 2)}),
    "llama: one pair ahead": ("llama", square(one_more(6, 7, SAME & CAUSAL)), "prefix", {(1, 1)}),
    "llama: padding": ("llama", blind_to_padding(), "padding", {(0, 1), (3, 4)}),
    "mamba: flattened": ("mamba", flattened(), "state", AFTER),
    "mamba: nothing given": ("mamba", bare(), "state", AFTER),
    "jamba: flattened": ("jamba", flattened(), "state", AFTER),
    "jamba: all-ones mask": ("jamba", flattened() | {"attention_mask": ONES}, "mask-given", AFTER),
    "bert: nothing given": ("bert", bare(), "positions-unread", EVERY),
    "bert: positions": ("bert", bare(position_ids=restarting()), "positions-unread", EVERY),
    "bert: all-ones mask": ("bert", bare(position_ids=restarting(), attention_mask=ONES), "positions-unread", EVERY),
    "bert: token types": ("bert", bare(token_type_ids=(OWNERS > 0).long()), "token-types", EVERY),
    "bert: padding": ("bert", blind_to_padding(), "padding", {(0, 1), (3, 4)}),
    "t5: all-ones mask": ("t5, bias", bare(attention_mask=ONES), "positions-unread", EVERY),
    "t5: off by one": ("t5, bias", square(one_more(5, 4, SAME)), "given-mask", {(1, 0)}),
}  # fmt: skip


def found_in(case: str, batch: dict[str, Any], expect: Any = "segments") -> Any:
    model, _, kernel = case.partition("/")
    return attnctl.leaks(network(model, kernel or "sdpa"), expect=TABLE if expect == "table" else expect, **batch)


@pytest.mark.grid
@pytest.mark.parametrize("case", CLEAN)
def test_a_clean_batch_passes(case: str) -> None:
    model, batch, expect = CLEAN[case]
    found = found_in(model, batch, expect)
    assert found.apart, found.wrong
    moved = [pair.change for pair in found.pairs if pair.state != "allowed" and pair.change is not None]
    assert moved
    if not model.startswith("jamba"):  # whose experts add up in another order where other tokens are beside a segment's
        assert max(moved) == found.floor == 0


@pytest.mark.grid
@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_leak_is_found(case: str) -> None:
    model, batch, cause, pairs = PLANTED[case]
    found = found_in(model, batch)
    assert {(pair.query, pair.key) for pair in found.wrong} == pairs
    causes = {pair.cause for pair in found.wrong}
    assert causes == {cause} or (cause == "prefix" and causes <= {"prefix", "given-mask"})
    strongest = found.wrong[0]
    assert strongest.change is not None and strongest.change > 100 * found.limit
    if cause not in ("state", "added-mask"):
        assert (
            strongest.first_layer == model.startswith("jamba")
            and strongest.largest is not None
            and strongest.largest > 0
        )


def test_rows_of_a_batch_and_half_precision() -> None:
    model = zoo.build("llama", dtype=torch.bfloat16)
    assert attnctl.leaks(model, **trl()).apart
    wrong = attnctl.leaks(model, **trl(), attention_mask=torch.ones(2, 12, dtype=torch.long)).wrong
    assert {(pair.query, pair.key) for pair in wrong} == {(1, 0), (3, 2)}


def test_what_is_reported_is_what_the_model_does() -> None:
    """Change, divergence, loss, weight and visibility against plain forwards of the model."""
    model, batch = network("llama", "eager"), flattened() | {"attention_mask": ONES}
    found = attnctl.leaks(model, **batch)
    assert str(found).count("Likely cause") == 3 and "3 leaks" in str(found)
    pair = next(pair for pair in found.pairs if (pair.query, pair.key) == (2, 1))
    with torch.no_grad():
        made = model(**batch, output_attentions=True, use_cache=False)
    crossing = torch.stack(made.attentions)[:, 0, :, 12:, 5:12].sum(-1)  # (layers, heads, queries)
    assert pair.visible == (1.0,) and pair.largest == pytest.approx(float(crossing.max()), abs=1e-6)
    assert float(crossing[pair.layer, pair.head].max()) == pytest.approx(pair.largest, abs=1e-6)
    assert pair.mean == pytest.approx(float(crossing.mean()), abs=1e-6)
    assert pair.change is not None and pair.divergence is not None and pair.divergence > 0


def test_a_pair_that_nothing_moves_is_told_from_rounding() -> None:
    states = {pair.state for pair in found_in("llama", flattened()).pairs}
    assert states == {"apart"}
    jamba = found_in("jamba", padded("left"))
    assert {pair.state for pair in jamba.pairs} <= {"apart", "rounding"} and jamba.floor == 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "one segment"),
        ({"segments": OWNERS[:, :-1]}, "segments has shape (1, 14), and input_ids (1, 15)"),
        ({"segments": OWNERS.float()}, "not integers"),
        ({"segments": [["a"] * N]}, "segments does not hold numbers"),
        ({"segments": [[0, 1], [1]]}, "segments does not hold numbers"),
        ({"segments": OWNERS, "attention_mask": SAME}, "attention_mask has shape (1, 15, 15)"),
        ({"segments": OWNERS, "attention_mask": torch.zeros(1, 1, N, N - 1)}, "attention_mask has shape"),
        ({"segments": OWNERS, "attention_mask": torch.full((1, 1, N, N), torch.nan)}, "attention_mask holds NaN"),
        ({"segments": OWNERS, "length": torch.tensor([15])}, "LlamaForCausalLM takes no 'length'"),
        ({"input_ids": torch.tensor([[5, 64]]), "segments": [[0, 1]]}, "from 0 to 63"),
        ({"input_ids": torch.tensor([[5.0, 6.0]]), "segments": [[0, 1]]}, "from 0 to 63"),
        ({"input_ids": None}, "no input_ids"),
        ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, "no input_ids"),
        ({"cu_seq_lens_q": [0, 4, 14]}, "boundaries"),
        ({"segments": torch.arange(N)[None] // 1, "expect": TABLE}, "a table of 15 × 15"),
        ({"segments": OWNERS, "expect": [[1, 2], [0, 1]]}, "a table of 0 and 1"),
        ({"segments": OWNERS, "expect": [[1, 0], [0, 0]]}, "1 on its diagonal"),
        ({"segments": OWNERS, "expect": "prefix"}, "a prefix needs its number of tokens"),
        ({"segments": OWNERS, "expect": "everyone"}, "it is segments, causal"),
    ],
)
def test_what_cannot_be_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        attnctl.leaks(network("llama"), **{"input_ids": flattened()["input_ids"]} | more)
    assert said in str(refused.value) and len(str(refused.value)) < 300


def test_labels_across_a_boundary_are_noted() -> None:
    batch = flattened()
    assert not any("labels" in note for note in found_in("llama", batch).notes)
    notes = found_in("llama", batch | {"labels": batch["input_ids"]}).notes
    assert any(note.startswith("labels: the first token of 2 segments") for note in notes)


def test_a_kernel_that_is_not_seen_is_judged_by_its_outputs() -> None:
    """As FlashAttention is told of boundaries: its mask is another one than torch's kernel has in its place."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **how: Any) -> Any:
        key, value = (part.repeat_interleave(module.num_key_value_groups, 1) for part in (key, value))
        hidden = SAME & CAUSAL
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, hidden[:, None]).transpose(
            1, 2
        ), None

    AttentionInterface.register("flash_pretended", attend)
    AttentionMaskInterface.register("flash_pretended", lambda *args, **how: None)
    model = zoo.build("llama")
    model.config._attn_implementation = "flash_pretended"
    found = attnctl.leaks(model, **bare())
    assert found.apart and max(max(pair.visible) for pair in found.pairs) == 1
    assert any("instead of flash_pretended" in note for note in found.notes)


@pytest.mark.parametrize("seed", range(12))
def test_any_mask_is_judged_as_its_pairs_of_tokens_say(seed: int) -> None:
    """Documents that need not lie together, a random mask: two layers pass on what the second token of a way of two sees."""
    generator = torch.Generator().manual_seed(seed)
    n = 14
    owners = torch.randint(3 + seed % 3, (1, n), generator=generator)
    seen = (owners[:, :, None] == owners[:, None]) & torch.ones(n, n, dtype=torch.bool).tril()
    seen |= (torch.rand(1, n, n, generator=generator) < 0.02) | torch.eye(n, dtype=torch.bool)
    ids = torch.randint(3, 64, (1, n), generator=generator)
    found = attnctl.leaks(network("llama"), input_ids=ids, attention_mask=seen[:, None], segments=owners)
    places = {at: owners[0] == owners[0, one.first] for at, one in enumerate(found.segments)}
    two = (seen[0].float() @ seen[0].float()) > 0
    for pair in found.pairs:
        direct, any_way = (bool(grid[places[pair.query]][:, places[pair.key]].any()) for grid in (seen[0], two))
        if pair.query != pair.key:
            assert any(pair.visible) == direct and (pair.state == "leak") == any_way, pair
            assert (pair.change == 0) == (not any_way)
            assert pair.cause == (None if not any_way else "given-mask" if direct else "relayed")
        else:
            ahead = seen[0] & torch.ones(n, n, dtype=torch.bool).triu(1)
            assert any(pair.visible) == bool(ahead[places[pair.query]][:, places[pair.key]].any())


def test_a_window_relays() -> None:
    """The last document does not see the first one, but tokens that do."""
    owners = torch.tensor([[0] * 5 + [1] * 3 + [2] * 4])
    wrong = found_in("mistral, window", {"input_ids": torch.arange(5, 17)[None], "segments": owners}).wrong
    causes = {(pair.query, pair.key): pair.cause for pair in wrong}
    assert causes == {(1, 0): "nothing-given", (2, 1): "nothing-given", (2, 0): "relayed"}


# of transformers 5.23: these do not look where position_ids restart
UNREAD = {"opt", "gpt_oss, sinks"}


@pytest.mark.grid
@pytest.mark.parametrize("case", zoo.DECODERS)
def test_every_architecture_that_packs(case: str) -> None:
    found = found_in(case, flattened())
    assert {pair.cause for pair in found.wrong} == ({"positions-unread"} if case in UNREAD else set())
    assert found.layers and found_in(case, padded("left")).apart
    assert {(pair.query, pair.key) for pair in found_in(case, flattened() | {"attention_mask": ONES}).wrong} >= {
        (1, 0),
        (2, 1),
    }


def test_a_model_of_pictures_is_refused() -> None:
    with pytest.raises(UsageError, match="ViTModel reads pixel values, not tokens"):
        attnctl.leaks(zoo.build("vit"), **bare())


@pytest.mark.parametrize("batch", [bare(), bare(attention_mask=ONES), flattened() | {"attention_mask": ONES}])
def test_advice_is_what_helps_this_model(batch: dict[str, Any]) -> None:
    """gpt-oss was told to let position_ids restart, or to leave the mask out, of which it makes no mask either."""
    for case, cause in (("gpt_oss, sinks", "positions-unread"), ("llama", None)):
        found = found_in(case, batch)
        causes = {pair.cause for pair in found.wrong}
        assert causes == {cause} if cause else causes <= {"nothing-given", "mask-given"}
        helps = (
            {"position_ids": restarting()}
            if case == "llama"
            else {"attention_mask": added(CAUSAL & (OWNERS[0][:, None] == OWNERS[0]), -1e9)["attention_mask"]}
        )
        assert found_in(case, bare(**helps)).apart, case
        assert not any("use_cache" in note for note in found.notes) or case == "llama"


@pytest.mark.parametrize("planes", [3, 4])
def test_positions_in_planes_are_read(planes: int) -> None:
    """Qwen2-VL has time, height and width of each token, and reads documents off a plane of places before them alone."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    torch.manual_seed(0)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    text = zoo.TINY | {"num_key_value_heads": 2, "rope_parameters": rope}
    config = Qwen2VLConfig(
        text_config=text, vision_config={"depth": 1, "embed_dim": 32, "hidden_size": 32, "num_heads": 2}
    )
    model = Qwen2VLForConditionalGeneration(config).eval()
    ids = flattened()["input_ids"]
    found = attnctl.leaks(model, input_ids=ids, position_ids=restarting().expand(planes, 1, N))
    assert [segment.tokens for segment in found.segments] == [len(one) for one in DOCUMENTS]
    assert {pair.cause for pair in found.wrong} == ({"positions-in-planes"} if planes == 3 else set())
    still = restarting().expand(3, 1, N).clone()
    still[0, 0, 1:4] = 1  # a picture of three patches, at one time
    assert len(attnctl.leaks(model, input_ids=ids, position_ids=still).segments) == len(DOCUMENTS)


@pytest.mark.parametrize("case", ["llama", "gpt2"])
def test_a_network_whose_weights_are_kept_elsewhere_answers_alike(case: str) -> None:
    """Its inputs go where accelerate has the weights until a module runs."""
    accelerate = pytest.importorskip("accelerate")
    model = zoo.build(case)
    wanted = attnctl.leaks(model, **bare())
    accelerate.cpu_offload(model, execution_device="cpu")
    assert model.device.type == "meta"
    found = attnctl.leaks(model, **bare())
    assert [pair.visible for pair in found.pairs] == [pair.visible for pair in wanted.pairs] and not found.apart
