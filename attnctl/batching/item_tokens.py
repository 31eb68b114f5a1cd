"""The tokens of one text of a batch, where it names them itself, or is a conversation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from attnctl.batching.items import Item
from attnctl.errors import AttnctlError, UsageError
from attnctl.models import Model
from attnctl.text import as_json
from attnctl.tokens import Token


def rendered(model: Any, item: Item) -> tuple[Item, tuple[Token, ...]]:
    """A conversation as its checkpoint reads it: the item with that text, and its tokens. Raises AttnctlError."""
    from attnctl.formats.chat import conversation_of

    conversation = conversation_of(as_json(item.messages), "it")
    if model.info.kind != "checkpoint":
        raise UsageError(f"{model.info.name} reads no conversations: name a checkpoint with --model (smollm2, …)")
    from attnctl.models.huggingface.text.prompts import chat_prompt, prompt_tokens

    prompt = chat_prompt(model, conversation)
    return replace(item, text=prompt.text), prompt_tokens(model, prompt.text)


def given(model: Model, item: Item) -> tuple[Token, ...]:
    """The tokens that an item names itself, with the model's ids and their places in the text.

    Raises AttnctlError for one that the model's vocabulary does not have.
    """
    vocabulary: Any = getattr(model, "vocabulary", ()) or getattr(model, "pieces", None)
    tokens, ids, after = [], dict[str, int](), 0
    for name in item.tokens or ():
        at = item.text.find(name, after)
        start, end = (at, at + len(name)) if at >= 0 and name else (None, None)
        after = end if end is not None else after
        if vocabulary:
            tokens.append(replace(_known(model, name), start=start, end=end))
        else:
            tokens.append(Token(name, ids.setdefault(name, len(ids)), start, end))
    return tuple(tokens)


def _known(model: Any, name: str) -> Token:
    """A token of the model's own vocabulary."""
    if hasattr(model, "pieces"):
        number = model.pieces.tokenizer.token_to_id(name)
        if number is not None:
            return Token(name, number, special=number in model.pieces.special_ids)
    else:
        found: tuple[Token, ...] = model.tokenize(name)
        if len(found) == 1:
            return replace(found[0], text=name)
    raise AttnctlError(f"{name!r} is not one token of {model.info.name}")
