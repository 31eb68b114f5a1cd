"""Sentences a second of a census: 32 that share a pass against one at a time, and against transformers' eager loop.

python -m tests.tools.benchmarks.bench_census CORPUS.conllu [MODEL] [SENTENCES]: CPU seconds of one thread, the best of two runs.
The eager loop is one sentence at a time with output_attentions=True: bare, without counting anything; and with the very
counts of a census made of each sentence's weights.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

from attnctl.batching.engines import LOCAL
from attnctl.batching.items import Item
from attnctl.commands.evaluate.compute import CensusWork, census_chunks
from attnctl.commands.evaluate.counting import Census, tally_shape
from attnctl.commands.evaluate.tally import CensusTally
from attnctl.commands.evaluate.treebank import Treebank, sentence_of
from attnctl.commands.evaluate.words import align_words
from attnctl.models import open_model


def eager_rates(model: Any, items: Sequence[Item]) -> dict[str, float]:
    """Sentences a second of a plain loop over eager weights, without counting and with it."""
    import torch

    model.network.set_attn_implementation("eager")
    parsed = [sentence_of(item) for item in items if item.error is None]
    rates: dict[str, float] = {}
    for counting in (False, True, False, True):
        start = time.process_time()
        for sentence in parsed:
            aligned = align_words(sentence, model.tokenize(sentence.text))
            with torch.inference_mode():
                ids = torch.tensor([[token.id for token in aligned.tokens]])
                weights = model.network(input_ids=ids, output_attentions=True).attentions
            if counting:
                census = Census([aligned], (model.info.n_layers, model.info.n_heads))
                for layer, own in enumerate(weights):
                    census.count_layer(layer, own)
                census.tallies()
        name = "counted" if counting else "bare"
        rates[name] = max(rates.get(name, 0.0), len(parsed) / (time.process_time() - start))
    return rates


def main() -> None:
    import torch

    torch.set_num_threads(1)
    corpus, name = sys.argv[1], (sys.argv[2:] or ["minilm"])[0]
    items = list(islice(Treebank([corpus]), int((sys.argv[3:] or ["384"])[0])))
    model = open_model(name)
    rates = {}
    for together in (32, 1, 32, 1):
        tally = CensusTally(tally_shape(model))
        start = time.process_time()
        work = CensusWork({"name": name}, batch_size=together)
        for chunk in LOCAL.results(work, census_chunks(items), None, model):
            for result in chunk:
                tally.merge_tally(result.made["census"])
        rate = len(items) / (time.process_time() - start)
        rates[together] = max(rate, rates.get(together, 0.0))
    tokens = [model.tokenize(sentence_of(item).text) for item in items if item.error is None]
    print(f"{len(items)} sentences of {sum(map(len, tokens)) / len(tokens):.0f} tokens, {name}, one thread")
    print(f"32 together  {rates[32]:6.0f} a second  {rates[32] / rates[1]:.1f} × one at a time")
    print(f"one at a time{rates[1]:6.0f} a second")
    for name, rate in eager_rates(model, items).items():
        print(f"eager, {name:7}{rate:5.0f} a second  ({rates[32] / rate:.1f} ×)")


if __name__ == "__main__":
    main()
