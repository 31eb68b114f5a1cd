"""Other tools: BertViz, attnread, kvpress on what they do themselves. A row says where a tool is not installed.

Their requirements exclude each other and ours: install them without dependencies, in an environment of their own.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.tools.benchmarks.bench_checkpoint import network_of_size
from tests.tools.benchmarks.measuring import Row, benchmark, in_turn, peak_of

SENTENCE = "The cat that sat on the mat saw a dog, and Alice will eat a pizza with Bob in the garden. "


def compared(
    what: str, peer: str, ours: Callable[[], object], theirs: Callable[[], object], limit: str
) -> Iterator[Row]:
    """Yield the time and the memory of a call against those of a peer's."""
    yield in_turn(ours, theirs).row_of_speed(what, peer, limit=limit)
    mine, other = peak_of(ours), peak_of(theirs)
    times = {"ours": f"{mine:,.0f} MiB", "theirs": f"{other:,.0f} MiB"}
    yield Row(f"memory: {what}", peer, mine / other, **times)


@benchmark(quick=False)
def bertviz() -> Iterator[Row]:
    """Yield the page of every head of MiniLM over 100 words, from the text to the HTML, against BertViz's head_view."""
    import torch
    from bertviz import head_view

    import attnctl as package
    from attnctl.models import open_model

    torch.set_num_threads(1)
    text = SENTENCE * 5
    model: Any = open_model("minilm")
    eager: Any = open_model("minilm").network  # type: ignore[attr-defined]
    eager.set_attn_implementation("eager")
    tokens = model.tokenize(text)
    ids = torch.tensor([[token.id for token in tokens]])
    sizes = {}

    @torch.inference_mode()
    def theirs() -> None:
        attention = eager(input_ids=ids, output_attentions=True).attentions
        with contextlib.redirect_stdout(io.StringIO()):
            page = head_view(attention, [token.text for token in tokens], html_action="return")
        sizes["theirs"] = len(page.data)

    with TemporaryDirectory() as folder:
        file = Path(folder, "page.html")

        def ours() -> None:
            package.view(text, model=model, output=file)
            sizes["ours"] = file.stat().st_size

        ours(), theirs()
        pages = f"pages of {sizes['ours'] / 1e6:.1f} and {sizes['theirs'] / 1e6:.1f} MB"
        yield from compared(
            f"page of every head, MiniLM, {len(tokens)} tokens", "bertviz head_view", ours, theirs, pages
        )


@benchmark(quick=False)
def attnread() -> Iterator[Row]:
    """Yield one head of the middle layer of a network of GPT-2 small's size, 256 tokens, against attnread."""
    import torch
    from attnread import extract_attention

    import attnctl as package

    torch.set_num_threads(1)
    network, middle, _ = network_of_size("GPT-2")
    ids = torch.randint(0, 50257, (1, 256))
    weights = {}

    @torch.inference_mode()
    def ours() -> None:
        with package.capture(network, layer=[middle], head=[3]) as captured:
            network(ids, use_cache=False, logits_to_keep=1)
        weights["ours"] = torch.as_tensor(captured[0].weights)

    def theirs() -> None:
        weights["theirs"] = extract_attention(network, {"input_ids": ids}, heads=[(middle, 3)])["text", middle, 3]

    ours(), theirs()
    gap = float((weights["ours"].squeeze() - weights["theirs"].squeeze()).abs().max())
    yield from compared("one head, GPT-2, 256 tokens", "attnread", ours, theirs, f"largest difference {gap:.0e}")


@benchmark(quick=False)
def kvpress() -> Iterator[Row]:
    """Yield what each key of SmolLM2 receives from all queries, 1,024 tokens, against kvpress' observed attention."""
    import numpy as np
    import torch
    from kvpress import ObservedAttentionPress

    from attnctl.models import open_model
    from attnctl.readings.heatmap import GridReading
    from attnctl.readings.overview import TextPart
    from attnctl.source import TextSource, prepare

    torch.set_num_threads(1)
    n = 1024
    model: Any = open_model("smollm2")
    text = SENTENCE * 60
    tokens = model.tokenize(text)[:n]
    ids = torch.tensor([[token.id for token in tokens]])
    every_query, each_key = (TextPart("", ((0, n),)),), tuple(TextPart("", ((j, j + 1),)) for j in range(n))
    press, keys = ObservedAttentionPress(), torch.empty(1, 3, n, 64)
    scores: dict[str, Any] = {}

    def ours() -> None:
        scores["ours"] = prepare(TextSource(model, text, tokens)).read(GridReading(every_query, each_key))

    @torch.inference_mode()
    def theirs() -> None:
        model.network.set_attn_implementation("eager")
        attentions = model.network(ids, output_attentions=True, use_cache=False, logits_to_keep=1).attentions
        scores["theirs"] = [
            press.score(None, None, keys, keys, weights, {}) for weights in attentions
        ]  # (1, 3, n) each
        model.network.set_attn_implementation("sdpa")

    ours(), theirs()
    queries = torch.arange(n, 0, -1)  # queries that may look at key j, of (n,)
    grid = scores["ours"].weights.values()  # of every head, layer by layer: (1, n) each
    means = torch.as_tensor(np.stack([*grid])).reshape(-1, 9, n)  # (layers, 9, n)
    received = (means * n / queries).unflatten(1, (3, 3)).mean(2)  # (layers, 3, n), a mean for each key head
    gap = float((received - torch.cat(scores["theirs"])).abs().max())
    yield from compared(
        "what each key receives, SmolLM2, 1,024 tokens", "kvpress", ours, theirs, f"largest difference {gap:.0e}"
    )
