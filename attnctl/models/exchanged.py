"""Take a model with a batch, so that its tokens can be exchanged: any network of transformers, any torch module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from attnctl.errors import UsageError
from attnctl.models.exchange import ModuleBatch, NetworkBatch

if TYPE_CHECKING:
    from torch.nn import Module
    from transformers import PreTrainedModel


def network_batch(
    network: PreTrainedModel,
    batch: Mapping[str, object],
    name: str = "",
    *,
    segments: Any = None,
    tokens_only: bool = False,
    why: str,
) -> NetworkBatch:
    """Return a network with the arguments of its forward; with `tokens_only` it reads tokens, and is only its encoder.

    `why` says what the tokens are needed for. Raises UsageError for arguments that do not fit each other or the network.
    """
    from attnctl.models.huggingface.exchanged_network import ExchangedNetwork

    return ExchangedNetwork(network, batch, name, segments=segments, tokens_only=tokens_only, why=why)


def module_batch(
    module: Module,
    args: Sequence[Any],
    keywords: Mapping[str, Any],
    name: str = "",
    *,
    segments: Any = None,
    own: str = "",
) -> ModuleBatch:
    """Run a torch module once with its arguments, and return both; `own` is the user's function that made it.

    Raises UsageError for arguments that it does not take, AttnctlError if it is in training mode.
    """
    from attnctl.models.torch.exchanged_module import ExchangedModule

    return ExchangedModule(module, args, keywords, name, segments=segments, own=own)


def named_network(
    name: str, texts: Sequence[str] = (), dtype: str | None = None, device: str | None = None
) -> tuple[PreTrainedModel, str, dict[str, Any]]:
    """Return the network of a checkpoint alone, its name for sentences, and `texts` packed into one row of its tokens.

    Raises UsageError for an empty text, AttnctlError for a checkpoint that is missing or damaged.
    """
    from attnctl.models.huggingface.hub import check_extra, find_checkpoint, read_json, short_name
    from attnctl.models.huggingface.network import load_network
    from attnctl.models.huggingface.opening import gguf_pieces
    from attnctl.models.huggingface.tokenizer import open_pieces

    check_extra()
    folder, name = find_checkpoint(name), short_name(name)
    # a GGUF file holds its own settings
    settings: dict[str, Any] = {} if folder.is_file() else read_json(folder / "config.json")
    batch: dict[str, Any] = {}
    if texts:
        pieces = gguf_pieces(folder, name)[0] if folder.is_file() else open_pieces(folder, name)
        tokens = [[token.id for token in pieces.tokenize_text(text)] for text in texts]
        if [] in tokens:
            raise UsageError(f"text {tokens.index([])} of these is empty: give at least one word", option="pack")
        batch["input_ids"] = [list(chain(*tokens))]
        batch["position_ids"] = [[position for ids in tokens for position in range(len(ids))]]
    return load_network(folder, settings, dtype or "auto", device or "auto", name), name, batch
