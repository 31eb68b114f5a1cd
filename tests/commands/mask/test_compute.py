"""Wrong masks: every mutant of a model is caught, with its layer and position, and its healthy twin holds."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
import torch
from transformers.modeling_utils import AttentionInterface

import attnctl
from attnctl.commands.mask.result import MaskCheck
from attnctl.errors import AttnctlError, UsageError
from tests.commands.mask.sweep import FINDINGS, checks, inputs_of
from tests.conftest import Run
from tests.models.huggingface.test_picture_prompts import saved
from tests.tools.sweep.families import Family, build, class_of
from tests.tools.sweep.modes import N, ids

LOWEST = torch.finfo(torch.float32).min
GAP = torch.arange(N)[:, None] - torch.arange(N)  # how far a key is before its query
CAUSAL = GAP >= 0
EVERYTHING = torch.ones(N, N, dtype=torch.bool)
PICTURES = torch.tensor([[0, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0]])  # two pictures, tokens 1 to 3, and 5 and 6
INSIDE = ((PICTURES[0][:, None] & PICTURES[0]) > 0) & ((torch.arange(N) < 4)[:, None] == (torch.arange(N) < 4))
Mutate = Callable[[Any], Any]  # makes a network wrong, within a context


def layers_of(network: Any) -> Any:
    """Return the network's list of layers that read the text."""
    lists = [part for part in network.modules() if isinstance(part, torch.nn.ModuleList) and len(part) > 1]
    return lists[-1]


def with_mask(shown: torch.Tensor, layer: int = 1) -> Mutate:
    """Give the attention of one layer another mask, (n, n), true where a query sees a key."""

    def mutate(network: Any) -> Any:
        def change(_: Any, args: Any, keywords: dict[str, Any]) -> Any:
            mask = (
                shown[None, None]
                if network.config._attn_implementation == "sdpa"
                else torch.zeros(1, 1, N, N).masked_fill(~shown, LOWEST)
            )
            return args, keywords | {"attention_mask": mask}

        module = layers_of(network)[layer]
        module = getattr(module, "self_attn", None) or module.attention.self
        return module.register_forward_pre_hook(change, with_kwargs=True)

    return mutate


def looking_ahead(name: str, layer: int = 1) -> Mutate:
    """Let a part of one layer (or the embedding) add the next token's output to each token's."""

    def mutate(network: Any) -> Any:
        part = network.get_input_embeddings() if name == "embedding" else layers_of(network)[layer].get_submodule(name)
        return part.register_forward_hook(lambda _, __, output: output + output.roll(-1, 1))

    return mutate


@contextmanager
def blind_kernel() -> Iterator[None]:
    """Let sdpa ignore its mask."""
    own = AttentionInterface._global_mapping["sdpa"]

    def ignoring(module: Any, query: Any, key: Any, value: Any, mask: Any, **more: Any) -> Any:
        return own(
            module,
            query,
            key,
            value,
            torch.ones_like(query[:, :1, :, :1] @ key[:, :1, :, :1].mT, dtype=torch.bool),
            **more,
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(AttentionInterface._global_mapping, "sdpa", ignoring)
        yield


# family, what it is given beside the text, mutant → kind of violation, layer, query, key
MUTANTS: dict[str, tuple[str, dict[str, Any], Mutate, tuple[Any, ...]]] = {
    "one layer without a mask": ("llama causal", {}, with_mask(EVERYTHING), ("sees", 1, 0, 1)),
    "one layer sees one token ahead": ("llama causal", {}, with_mask(GAP >= -1), ("sees", 1, 0, 1)),
    "one pair of tokens": ("llama causal", {}, with_mask(CAUSAL | (GAP == -10), 0), ("sees", 0, 0, 10)),
    "one direction": ("bert masked", {}, with_mask(CAUSAL), ("misses", 1, 0, 1)),
    "the other direction": ("llama causal", {}, with_mask(GAP <= 0), ("sees", 1, 0, 1)),
    "a window one token too wide": ("mistral causal", {}, with_mask(CAUSAL & (GAP < 5)), ("sees", 1, 4, 0)),
    "a window one token too narrow": ("mistral causal", {}, with_mask(CAUSAL & (GAP < 3)), ("misses", 1, 3, 0)),
    "a window that is full": ("gemma2 causal", {}, with_mask(CAUSAL, 0), ("sees", 0, 4, 0)),
    "image tokens crossing": ("gemma3 causal", {"token_type_ids": PICTURES}, with_mask(CAUSAL | ((PICTURES[0][:, None] & PICTURES[0]) > 0)), ("sees", 1, 1, 5)),
    "image tokens causal": ("gemma3 causal", {"token_type_ids": PICTURES}, with_mask(CAUSAL), ("misses", 1, 1, 2)),
    "padding visible": ("llama causal", {"attention_mask": (torch.arange(N) > 2)[None].long()}, with_mask(CAUSAL), ("sees", 1, 3, 0)),
    "padding visible to an encoder": ("bert masked", {"attention_mask": (torch.arange(N) < 8)[None].long()}, with_mask(EVERYTHING), ("sees", 1, 0, 8)),
    "an MLP that looks ahead": ("llama causal", {}, looking_ahead("mlp"), ("sees", 1, 9, 10)),
    "a state that looks ahead": ("mamba causal", {}, looking_ahead("mixer.out_proj"), ("sees", 1, 9, 10)),
    "an embedding that looks ahead": ("llama causal", {}, looking_ahead("embedding"), ("reaches", None, 9, 10)),
}  # fmt: skip


def checked(
    family: str, kernel: str = "eager", mutate: Mutate | None = None, expect: Any = None, **more: Any
) -> MaskCheck:
    """Return the check of a tiny family, or of its mutant."""
    kind, head = family.split()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        network = build(Family(kind, head), kernel if class_of(Family(kind, head))._supports_sdpa else "eager")
        hook = None if mutate is None else mutate(network)
        try:
            return attnctl.mask(network, expect=expect, **{"input_ids": ids()} | more)
        finally:
            if hook is not None:
                hook.remove()


TWINS: dict[tuple[str, str, str], MaskCheck] = {}


def twin_of(name: str, kernel: str) -> MaskCheck:
    """Return the check of the family of a mutant, without its fault; mutants of the same family and inputs share it."""
    family, more, _, _ = MUTANTS[name]
    inputs = str({key: value.tolist() for key, value in more.items()})
    if (family, kernel, inputs) not in TWINS:
        TWINS[family, kernel, inputs] = checked(family, kernel, **more)
    return TWINS[family, kernel, inputs]


@pytest.mark.grid
@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("name", MUTANTS)
def test_mutant_is_caught_and_its_twin_holds(name: str, kernel: str) -> None:
    family, more, mutate, expected = MUTANTS[name]
    twin, mutant = twin_of(name, kernel), checked(family, kernel, mutate, **more)
    assert twin.holds and not twin.unchecked, str(twin)
    worst = [(one.how, one.layer, one.query, one.key) for one in mutant.violations]
    if expected[2:] == (9, 10):  # every token moves with the next one: the farthest is named
        assert [one[:2] for one in worst] == [expected[:2]] and worst[0][3] == worst[0][2] + 1, str(mutant)
    else:
        assert worst[0] == expected and len({one[0] for one in worst}) == len(worst), str(mutant)
    assert all((one.change or 0) > mutant.limit for one in mutant.violations if one.how != "misses")


def test_sdpa_alone_is_wrong() -> None:
    """The masks are right, and eager is right: only the outputs of sdpa tell."""
    with blind_kernel():
        assert checked("mistral causal", "eager").holds
        found = checked("mistral causal", "sdpa")
    assert [(one.how, one.layer) for one in found.violations] == [("sees", 0), ("sees", 1)]
    assert all(one.change and one.change > 1e-3 for one in found.violations)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("padding visible", ("token 3 sees padding, token 0", "expected causal, padding hidden")),
        ("padding visible to an encoder", ("token 0 sees padding, token 8", "expected bidirectional, padding hidden")),
    ],
)
def test_padding_is_called_padding(name: str, words: tuple[str, ...]) -> None:
    family, more, mutate, _ = MUTANTS[name]
    twin, mutant = twin_of(name, "eager"), checked(family, mutate=mutate, **more)
    assert mutant.violations[0].padding and all(word in str(mutant) for word in words), str(mutant)
    assert [group.expected for group in twin.groups] == [words[1].removeprefix("expected ")]


def test_source_padding_that_a_decoder_sees() -> None:
    """Cross attention that sees the padding of its source."""
    more = {"attention_mask": (torch.arange(N) < 8)[None].long(), "decoder_input_ids": ids(1, 5, 2)}

    def mutate(network: Any) -> Any:
        cross = network.get_decoder().layers[1].encoder_attn
        return cross.register_forward_pre_hook(
            lambda _, args, keywords: (args, keywords | {"attention_mask": None}), with_kwargs=True
        )

    assert checked("bart seq2seq", **more).holds
    check = checked("bart seq2seq", mutate=mutate, **more)
    (found,) = check.violations
    assert "token 0 sees padding, token 8 of the source (15 pairs of tokens)" in str(check)
    assert "expected everything, padding hidden" in str(check)
    assert (found.how, found.kind, found.layer, found.query, found.key, found.pairs) == ("sees", "cross", 1, 0, 8, 15)


@pytest.mark.parametrize(
    ("family", "expect", "holds"),
    [
        ("llama causal", "causal", True),
        ("llama causal", "bidirectional", False),
        ("llama causal", "prefix 3", False),
        ("llama causal", "window 11", True),
        ("llama causal", "window 10", False),
        ("llama causal", CAUSAL.int().tolist(), True),
        ("llama causal", EVERYTHING.int().tolist(), False),
        ("mistral causal", "window 4", True),
        ("mistral causal", "window 5", False),
        ("mistral causal", "causal", False),
        ("bert masked", "bidirectional", True),
        ("bert masked", "causal", False),
    ],
)
def test_expectation(family: str, expect: Any, holds: bool) -> None:
    assert checked(family, expect=expect).holds == holds


def test_packed_documents_and_a_square_mask() -> None:
    """Positions that restart, and a mask of four dimensions, replace what the family says."""
    places = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]])
    same = (torch.arange(N) < 4)[:, None] == (torch.arange(N) < 4)
    packed = checked("llama causal", "sdpa", position_ids=places)
    assert packed.holds and packed.groups[0].sentence == "2 segments apart (0–3, 4–10), causal in each"
    assert not checked("llama causal", position_ids=places, attention_mask=torch.ones(1, N)).holds  # so it is ignored
    square = checked("mistral causal", "sdpa", attention_mask=(same & CAUSAL)[None, None])
    assert square.holds and square.groups[0].layers == (0, 1)
    assert not checked("mistral causal", "sdpa", attention_mask=(same & CAUSAL)[None, None], expect="causal").holds


def test_block_mask_of_flex_attention() -> None:
    """A BlockMask given to a model on FlexAttention, which torch runs on a CPU, or not at all.

    As Python: its compiler takes half a minute, and is torch's own.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    made = create_block_mask(lambda _, __, query, key: query >= key, 1, 1, N, N, device="cpu")
    try:
        with torch.compiler.set_stance("force_eager"):
            found = checked("llama causal", "flex_attention", attention_mask=made)
    except attnctl.AttnctlError as error:
        pytest.skip(f"FlexAttention does not run here: {error}")
    assert found.holds and [group.sentence for group in found.groups] == ["causal"]


def test_rows_of_a_padded_batch_are_named() -> None:
    shown = (torch.arange(N) > torch.tensor([[-1], [2]])).long()
    found = checked("llama causal", input_ids=ids().expand(2, N), attention_mask=shown)
    assert "layers 0–1, row 0: causal\n" in str(found)
    assert "layers 0–1, row 1: causal, padding 0–2 hidden" in str(found)


def test_block_mask_needs_flex_attention() -> None:
    from torch.nn.attention.flex_attention import create_block_mask

    made = create_block_mask(lambda _, __, query, key: query >= key, 1, 1, N, N, device="cpu")
    with pytest.raises(UsageError, match="load the model with attn_implementation='flex_attention'"):
        checked("llama causal", "sdpa", attention_mask=made)


def test_compiled_model_runs_uncompiled() -> None:
    network = build(Family("llama", "causal"), "sdpa")
    with torch.no_grad():
        found = attnctl.mask(torch.compile(network), input_ids=ids())
    assert found.holds and [group.sentence for group in found.groups] == ["causal"]


def test_groups_are_the_masks_that_transformers_makes() -> None:
    check = checked("gemma2 causal")
    masks = {group.layers: group.mask for group in check.groups}
    assert torch.equal(torch.tensor(masks[(0,)]), CAUSAL & (GAP < 4)) and torch.equal(torch.tensor(masks[(1,)]), CAUSAL)
    assert [group.sentence for group in check.groups] == ["causal, window 4", "causal"]


SOME = ("llama causal", "gemma3_text causal", "gpt_neo causal", "jamba causal", "llama4 causal", "bert masked", "modernbert masked", "mamba2 causal", "t5 seq2seq", "t5gemma2 seq2seq", "bart seq2seq", "rwkv causal", "qwen3_next causal", "xlnet causal")  # fmt: skip


@pytest.mark.grid
@pytest.mark.parametrize("name", SOME)
def test_families_without_a_false_alarm(name: str) -> None:
    """A dozen of the families; `python -m tests.commands.mask.sweep` runs all."""
    kind, head = name.split()
    for way, kernel, result in checks(Family(kind, head), ("plain", "left")):
        unread = name in ("gpt_neo causal", "xlnet causal", "rwkv causal")  # they attend in code of their own
        assert isinstance(result, MaskCheck) and not result.violations, (way, kernel, str(result))
        assert result.holds is (None if unread else True), (way, kernel, str(result))


def test_findings_are_no_false_alarms() -> None:
    """Where the sweep finds something, transformers alone shows it."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        for kind, queries, keys in (("moshi", slice(4, 5), slice(0, 1)), ("prophetnet", slice(0, 1), slice(1, N))):
            assert kind in FINDINGS
            network = build(Family(kind, "causal"))
            if kind == "moshi":  # one layer, so that nothing comes by way of another one
                network.model.layers = network.model.layers[:1]
            inputs = inputs_of(Family(kind, "causal"), network, "plain")
            changed = inputs["input_ids"].clone()
            changed[:, keys] = (changed[:, keys] + 7) % 90 + 5
            before, after = (
                network(input_ids=tokens, use_cache=False).logits for tokens in (inputs["input_ids"], changed)
            )
            assert float((before - after)[:, queries].abs().max()) > 1e-4


def test_picture_beside_a_text(tmp_path: Path, run: Run) -> None:
    """Gemma 3's picture sees itself both ways, PaliGemma reads picture and prompt both ways, LLaVA all from left to right."""
    from PIL import Image

    picture = str(tmp_path / "picture.png")
    Image.new("RGB", (80, 40), (200, 30, 30)).save(picture)
    for family, sentences in (
        ("gemma3", ["causal, window 8, image tokens 3–6 both ways", "causal, image tokens 3–6 both ways"]),
        ("paligemma", ["full"]),
        ("llava", ["causal"]),
    ):
        folder = str(saved(tmp_path / family, family)[0])
        for expect, code in ((None, 0), ("window 4", 4)):
            given = ["What is this, and what is that?", "--image", picture, "--model", folder]
            made = run("mask", *given, *(["--expect", expect] if expect else []), "--json")
            assert made.code == code, made.err
            wrong = made.json["violations"]
            assert {one["kind"] for one in wrong} <= {"self"} and all(one.get("change", 1) > 0 for one in wrong)
        made = run("mask", *given, "--json")
        groups = made.json["groups"]
        assert [group["sentence"] for group in groups if group["kind"] == "self"] == sentences


def test_model_of_states_has_no_mask() -> None:
    from attnctl.commands.mask.show import mask_panels

    found = checked("mamba causal")
    assert found.holds and not found.attends and not found.groups and found.exchanges
    assert str(found) == "MambaForCausalLM: no attention, so no mask to measure; no output changes"
    with pytest.raises(AttnctlError, match="MambaForCausalLM has no attention, so no mask to measure"):
        mask_panels(found)
    alone = checked("mamba causal", input_ids=ids()[:, :1])
    assert str(alone) == "MambaForCausalLM: no attention, so no mask to measure"


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
@pytest.mark.parametrize("command", [attnctl.mask, attnctl.leaks])
@pytest.mark.parametrize("convert", [torch.Tensor.long, torch.Tensor.float, torch.Tensor.half])
@pytest.mark.parametrize("shown", [CAUSAL, CAUSAL & ((torch.arange(N) < 4)[:, None] == (torch.arange(N) < 4))])
def test_square_mask_of_0_and_1_is_refused(shown: torch.Tensor, convert: Any, command: Any, kernel: str) -> None:
    """Transformers adds it to the scores, which hides nothing."""
    network = build(Family("llama", "causal"), kernel)
    mask = convert(shown[None, None])
    more = {"segments": torch.zeros(1, N, dtype=torch.long)} if command is attnctl.leaks else {}
    with torch.no_grad():
        changed = ids().clone()
        changed[0, -1] += 1
        first, second = (network(input_ids=i, attention_mask=mask.float()).logits for i in (ids(), changed))
    assert float((first - second)[:, 0].abs().max()) > 1e-5  # token 0 sees the last one
    with pytest.raises(UsageError, match="holds 0 and 1, but the model adds it to the scores"):
        command(network, input_ids=ids(), attention_mask=mask, **more)


def test_square_masks_that_hide_are_read() -> None:
    dark = torch.zeros(1, 1, N, N).masked_fill(~CAUSAL, LOWEST)
    assert checked("llama causal", attention_mask=dark).holds
    assert checked("llama causal", attention_mask=torch.zeros(1, 1, N, N)).groups[0].sentence == "full"
    assert checked("llama causal", "sdpa", attention_mask=CAUSAL[None, None]).holds
    assert not checked("llama causal", "eager", attention_mask=CAUSAL[None, None]).holds  # eager adds true as 1
    with pytest.raises(UsageError, match="holds integers"):
        checked("llama causal", attention_mask=torch.where(CAUSAL, 0, -10000)[None, None])


def test_masks_that_cannot_be_read_are_not_as_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family that attends in code of its own, and one whose calls of attention cannot be read."""
    found = checked("gpt_neo causal")
    assert found.holds is None and not found.groups and found.exchanges
    words = "no violation in what was tested; the masks could not be read"
    assert all(words in text for text in (str(found), repr(found)))
    assert {(one.what, one.layers) for one in found.tested} == {("outputs", (0, 1)), ("model", ())}
    alone = checked("gpt_neo causal", input_ids=ids()[:, :1])  # one token: nothing is exchanged
    assert alone.holds is None and "nothing had to be hidden; the masks could not be read" in str(alone)

    def fail(*_: Any) -> None:
        raise AttnctlError("no such call")

    monkeypatch.setattr("attnctl.commands.mask.compute.masks_of_call", fail)
    assert "the masks could not be read" in repr(checked("llama causal"))
    assert "nothing had to be hidden; the masks could not be read" in repr(checked("bert masked"))


def test_broken_inputs_are_refused() -> None:
    for more, why in (
        ({"input_ids": torch.tensor([[1, 999]])}, "integers from 0 to 127"),
        ({"attention_mask": torch.ones(1, 3)}, "shape"),
        ({"segments": torch.zeros(1, 3, dtype=torch.long)}, "shape"),
        ({"foo": 3}, "LlamaForCausalLM takes no 'foo': leave it out"),
        ({"atention_mask": torch.ones(1, N)}, "takes no 'atention_mask'"),
        ({"expect": "everyone"}, "it is causal, bidirectional"),
        ({"expect": "window"}, "a window needs its number"),
        ({"expect": [[1, 0], [1, 1]]}, "11 × 11"),
        ({"expect": "segments"}, "says where a segment ends"),
    ):
        with pytest.raises(UsageError, match=why):
            checked("llama causal", **more)
