"""A transformers model of a user's own, with its tokenizer, as a model that `attend` runs texts through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnctl.errors import AttnctlError
from attnctl.models.huggingface.attention_interface import architecture_name, check_inference
from attnctl.models.huggingface.checkpoint import Checkpoint
from attnctl.models.huggingface.files.network import network_info
from attnctl.models.huggingface.text.tokenizer import Pieces

if TYPE_CHECKING:
    from typing import TypeGuard

    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def is_network(model: object) -> TypeGuard[PreTrainedModel]:
    """Whether `model` is a transformers model; transformers is not imported to find out."""
    return all(hasattr(model, name) for name in ("config", "named_modules", "get_input_embeddings", "forward"))


def wrap_network(network: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str | None = None) -> Checkpoint:
    """The model `network`, reading texts by `tokenizer`: one of transformers (fast), or of the tokenizers library.

    Raises AttnctlError for a model in training mode, and for a tokenizer that tells no spans of the text.
    """
    check_inference(network)
    called = name or getattr(network.config, "name_or_path", "") or architecture_name(network)
    called = called.rstrip("/").rpartition("/")[2]
    if tokenizer is None:
        raise AttnctlError(f"{called} is a transformers model: give its tokenizer, as tokenizer=…")
    pieces = Pieces(called, _tokenizer_of_network(tokenizer, called), _settings(tokenizer), _limit(network))
    kind = "encoder" if getattr(network.config, "is_encoder_decoder", False) else "self"
    return Checkpoint(network_info(network, called, kind), network, pieces, kind)


def _tokenizer_of_network(tokenizer: PreTrainedTokenizerBase, name: str) -> Any:
    """The tokenizer of the tokenizers library beneath, in a copy that neither pads nor truncates."""
    from tokenizers import Tokenizer

    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not isinstance(backend, Tokenizer):
        raise AttnctlError(
            f"the tokenizer of {name} is a {type(tokenizer).__name__}, which tells no spans: give a fast one "
            "(AutoTokenizer gives one where there is one)"
        )
    copy = Tokenizer.from_str(backend.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _settings(tokenizer: PreTrainedTokenizerBase) -> dict[str, object]:
    named = getattr(tokenizer, "special_tokens_map", {})
    return {key: str(token) for key, token in named.items() if isinstance(token, str) or hasattr(token, "content")}


def _limit(network: PreTrainedModel) -> int | None:
    longest = getattr(network.config.get_text_config(), "max_position_embeddings", None)
    return longest if isinstance(longest, int) and longest > 0 else None
