"""Checkpoints: one head captured against every weight under eager, heads switched off against a loop of hooks, memory."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.tools.benchmarks.measuring import Pair, Row, benchmark, best_of, in_turn, peak_of, seconds_of

TOKENS = 1024


def network_of_size(shape: str) -> tuple[Any, int, int]:
    """Return a random network of GPT-2 small's size or of SmolLM2's, its middle layer and its last."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    if shape == "GPT-2":
        return GPT2LMHeadModel(GPT2Config()).eval(), 5, 11
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30}
    sizes = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "tie_word_embeddings": True}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads)).eval(), 14, 29


def capture_rows(shape: str) -> Iterator[Row]:
    """Yield the capture of one head of the middle and of the last layer, which is its worst case."""
    import torch

    import attnctl

    torch.set_num_threads(1)
    model, middle, last = network_of_size(shape)
    ids = torch.randint(0, 49152, (1, TOKENS))

    @torch.inference_mode()
    def eager(**how: object) -> None:
        model.set_attn_implementation("eager")
        model(ids, output_attentions=True, **how)

    @torch.inference_mode()
    def captured(layer: int) -> None:
        model.set_attn_implementation("sdpa")
        with attnctl.capture(model, layer=[layer], head=[3], stop=True):
            model(ids)

    @torch.inference_mode()
    def bare() -> None:
        """Run every layer under the fused kernel, and read nothing."""
        model.set_attn_implementation("sdpa")
        model.base_model(ids, use_cache=False)

    layers, kept = model.config.num_hidden_layers, (("middle", middle, 0.25), ("last", last, 0.45))
    # before any other work, whose freed blocks glibc would use again and keep: they would count as memory of the next call
    peaks = {name: peak_of(partial(captured, layer)) for name, layer, _ in kept} | {"eager": peak_of(eager)}
    for name, layer, most in kept:
        pair = in_turn(partial(captured, layer), eager, 3)
        lean = seconds_of(partial(eager, use_cache=False, logits_to_keep=1))
        least = best_of(bare, 3) * (layer + 1) / layers / pair.theirs
        limit = f"{least:.2f} by fused layers up to it alone; {pair.ours / lean:.2f} against eager without logits"
        yield pair.row(f"capture, {name} layer, {shape}", "eager, output_attentions", most=most, limit=limit)
        yield Row(
            f"memory of capture, {name} layer, {shape}", "eager, output_attentions", peaks[name] / peaks["eager"],
            most=0.2, ours=f"{peaks[name]:,.0f} MiB", theirs=f"{peaks['eager']:,.0f} MiB",
        )  # fmt: skip


@benchmark()
def capture_gpt2() -> Iterator[Row]:
    """Yield the capture of a network of GPT-2 small's size, 1,024 tokens."""
    yield from capture_rows("GPT-2")


@benchmark(quick=False)
def capture_smollm2() -> Iterator[Row]:
    """Yield the capture of a network of SmolLM2's size, 1,024 tokens."""
    yield from capture_rows("SmolLM2")


@benchmark(quick=False)
def ablate() -> Iterator[Row]:
    """Yield every head of SmolLM2 switched off on 15 tokens, against a loop of full forwards with hooks."""
    import torch

    from attnctl.models import open_model
    from attnctl.readings.rank_correlation import spearman_rho
    from attnctl.watched.measure import EffectRequest, measure_effects, watched_text

    text, target, against = "<|endoftext|>When Mary and John went to the store, John gave a drink to", " Mary", " John"
    torch.set_num_threads(1)
    model: Any = open_model("smollm2")
    ids = torch.tensor([[token.id for token in model.tokenize(text)]])
    mary, john = (model.pieces.tokenize_text(word)[-1].id for word in (target, against))
    reference = {}

    @torch.inference_mode()
    def loop_over_head(head: int) -> None:
        """Zero one head of each layer by a hook before the output projection: 30 of the 270 forwards."""
        for layer, block in enumerate(model.network.model.layers):

            def zero(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
                x = args[0].clone()
                x[..., head * 64 : (head + 1) * 64] = 0
                return (x,)

            handle = block.self_attn.o_proj.register_forward_pre_hook(zero)
            logits = model.network(ids).logits[0, -1]
            handle.remove()
            reference[layer, head] = float(logits[mary] - logits[john])

    def sweep(**how: Any) -> Any:
        return measure_effects(watched_text(model, text), EffectRequest(target, against, **how))

    def slopes() -> Any:
        watched = watched_text(model, text)
        return watched.gradients(watched.target_word(target), watched.target_word(against))

    effects = sweep()
    pair = in_turn(sweep, partial(loop_over_head, 0), clock=time.perf_counter)
    base = effects.baseline.logit_difference
    gap = max(
        abs(one.logit_difference - reference[one.layer, one.head] + base)
        for one in effects.heads
        if (one.layer, one.head) in reference
    )
    peer = "270 forwards with hooks"
    whole = Pair(pair.ours, 9 * pair.theirs, pair.ratio / 9)
    yield whole.row_of_speed(
        "ablate, every head of SmolLM2", peer, least=4, limit=f"largest difference of an effect {gap:.0e}"
    )
    first = in_turn(slopes, partial(loop_over_head, 0), clock=time.perf_counter)
    slope = slopes().heads
    rank = spearman_rho(
        [one.logit_difference for one in effects.heads],
        [float(slope[one.layer]["logit_difference"][one.head]) for one in effects.heads],
    )
    yield Pair(first.ours, 9 * first.theirs, first.ratio / 9).row_of_speed(
        "effects to first order", peer, limit=f"rank correlation with the exact ones {rank:+.2f}"
    )


@benchmark(quick=False)
def heads() -> Iterator[Row]:
    """Yield what every head of SmolLM2 does on a text, against its plain forward, on one thread and on two."""
    import torch

    import attnctl
    from attnctl.models import open_model

    model: Any = open_model("smollm2")
    text = " ".join(f"In {year} the {year % 97}th ship sailed from port {year % 13}." for year in range(1200, 1600))

    @torch.inference_mode()
    def plain(ids: torch.Tensor) -> None:
        model.network(ids, logits_to_keep=1, use_cache=False)

    for n, budgets in ((343, (2.0, 3.0)), (1370, (2.2, 2.5))):
        part = text[: model.tokenize(text)[n - 1].end]
        ids = torch.tensor([[token.id for token in model.tokenize(part)]])
        for threads, most in zip((1, 2), budgets, strict=True):
            torch.set_num_threads(threads)
            clock = time.process_time if threads == 1 else time.perf_counter
            pair = in_turn(partial(attnctl.heads, part, model=model), partial(plain, ids), 5, clock)
            count = "one thread" if threads == 1 else "two cores"
            yield pair.row(f"heads, SmolLM2, {ids.shape[1]:,} tokens, {count}", "plain forward", most=most)


@benchmark(quick=False)
def picture_prompt() -> Iterator[Row]:
    """Yield the memory of one query's weights, all heads, over a picture and a long text: LLaVA of random weights.

    It has 32 heads of 128 and 3 layers, and reads 576 tokens of a picture and text to 3,000 in all.
    """
    import torch

    from attnctl.models import open_model
    from attnctl.source import TextSource, prepare
    from attnctl.source.links import query_row

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_llava(Path(folder))
        model: Any = open_model(folder, image=f"{folder}/photo.png")
        source = TextSource(model, ("what is on the table and who put it there " * 3000)[: 3000 - 576 - 12])
        network, inputs = model.network, model.read(source.text, source.tokens).inputs
        for weight in network.parameters():
            weight.sum()  # read from the file now

        def row() -> None:
            assert len(query_row(prepare(source), len(source.tokens) - 1).weights) == 3 * 32

        @torch.inference_mode()
        def forward(kernel: str) -> None:
            network.set_attn_implementation(kernel)
            network(**inputs, use_cache=False, logits_to_keep=1, output_attentions=kernel == "eager")

        ours, plain, eager = peak_of(row), peak_of(partial(forward, "sdpa")), peak_of(partial(forward, "eager"))
        yield Row(
            f"memory of a row of {len(source.tokens):,} tokens, LLaVA", "plain forward", ours / plain,
            ours=f"{ours:,.0f} MiB", theirs=f"{plain:,.0f} MiB", limit=f"eager with every weight: {eager:,.0f} MiB",
        )  # fmt: skip


def write_llava(folder: Path, side: int = 336) -> None:
    """Write a checkpoint of random weights, its processor, and a picture; its pictures are 24 × 24 patches."""
    import numpy as np
    import torch
    import transformers
    from PIL import Image

    from tests.models.huggingface.test_picture_prompts import TEMPLATE, tokenizer

    words = tokenizer("<image>")
    sizes = {"hidden_size": 4096, "num_hidden_layers": 3, "num_attention_heads": 32, "intermediate_size": 1024}
    seeing = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    torch.manual_seed(0)
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**seeing, image_size=side, patch_size=14),
        text_config=transformers.LlamaConfig(**sizes, vocab_size=320, max_position_embeddings=4096),
        image_token_id=words.convert_tokens_to_ids("<image>"),
    )
    transformers.LlavaForConditionalGeneration(config).save_pretrained(folder)
    crop = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
    pictures = transformers.CLIPImageProcessorPil(**crop)
    how = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
    template = TEMPLATE.replace("MARK", "<image>")
    transformers.LlavaProcessor(pictures, words, **how, chat_template=template).save_pretrained(folder)
    pixels = np.random.default_rng(0).integers(0, 255, (480, 640, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")
