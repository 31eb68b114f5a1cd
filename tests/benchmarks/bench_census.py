"""Sentences a second of a census: 32 that share a pass against one at a time.

python -m tests.benchmarks.bench_census CORPUS.conllu [MODEL] [SENTENCES]: CPU seconds of one thread.
"""

from __future__ import annotations

import sys
import time
from itertools import islice

from attnctl.batching.corpus.census_run import Tallies, census_results
from attnctl.batching.corpus.census_work import CensusWork
from attnctl.batching.corpus.treebank import Treebank, sentence_of
from attnctl.models import open_model


def main() -> None:
    import torch

    torch.set_num_threads(1)
    corpus, name = sys.argv[1], (sys.argv[2:] or ["minilm"])[0]
    items = list(islice(Treebank([corpus]), int((sys.argv[3:] or ["384"])[0])))
    model = open_model(name)
    rates = {}
    for together in (32, 1, 32, 1):
        tallies = Tallies((model.info.n_layers or 1, model.info.n_heads or 1))
        start = time.process_time()
        for chunk in census_results(CensusWork({"name": name}, batch_size=together), iter(items), 1, model):
            for result in chunk:
                list(tallies.add(result))
        rate = len(items) / (time.process_time() - start)
        rates[together] = max(rate, rates.get(together, 0.0))
    tokens = [model.tokenize(sentence_of(item).text) for item in items if item.error is None]
    print(f"{len(items)} sentences of {sum(map(len, tokens)) / len(tokens):.0f} tokens, {name}, one thread")
    print(f"32 together  {rates[32]:6.0f} a second  {rates[32] / rates[1]:.1f} × one at a time")
    print(f"one at a time{rates[1]:6.0f} a second")


if __name__ == "__main__":
    main()
