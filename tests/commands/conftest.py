"""What the tests of commands share: all that those of the command line and of checkpoints do, and the bundled corpus."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from attnctl.registry import COMMANDS
from tests.cli.conftest import _here, config_file
from tests.models.huggingface.conftest import family, no_gradients, quiet, shelf

__all__ = ["_here", "config_file", "family", "no_gradients", "quiet", "shelf"]


@pytest.fixture(scope="session", autouse=True)
def _corpus_read_once() -> Iterator[None]:
    """Reading the 65,000 sentences of the bundled corpus takes a second, and no test changes them."""
    if "train" not in COMMANDS:
        yield
        return
    from attnctl.commands.train import corpus, run

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "bundled_corpus", functools.cache(corpus.bundled_corpus))
        yield
