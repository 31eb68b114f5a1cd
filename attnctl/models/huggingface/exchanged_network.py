"""A transformers network with a batch: run it and watch its attention, run it or a layer again with other tokens."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnctl.attention import Array, Call
from attnctl.checks.tolerances import LEAK, tolerance
from attnctl.errors import AttnctlError, UsageError, in_one_line
from attnctl.models.exchange import Block, Reach
from attnctl.models.huggingface.attention_interface import architecture_name, check_inference, watch_attention
from attnctl.models.huggingface.attention_sites import (
    Output,
    Site,
    attention_modules,
    model_follows_interface,
    sites_of_modules,
    unseen_sentence,
)
from attnctl.models.huggingface.block_recorder import BlockCall, BlockRecorder, first_of
from attnctl.models.huggingface.documented_masks import (
    TRIGRAMS,
    documented_direction,
    documented_pictures,
    documented_prefix,
    documented_reach,
)
from attnctl.models.huggingface.network import device_of_inputs, network_info, running_network
from attnctl.models.huggingface.optional_fields import config_value, output_value
from attnctl.models.huggingface.token_batch import (
    BOUNDARIES,
    PER_TOKEN,
    as_tensor,
    check_names,
    checked_entry,
    checked_ids,
    other_ids,
    positions_of_tokens,
    segment_begins,
    segment_numbers,
    special_ids,
    vocabulary_of,
)
from attnctl.runtime.arrays import Bools
from attnctl.trace.run import StopForward

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OF_LOSS = ("labels", "num_items_in_batch")
OF_DECODER = ("decoder_input_ids", "decoder_attention_mask")


class ExchangedNetwork:
    """A network with the arguments of its forward, checked, whose tokens can be exchanged.

    `ids` (batch, n) are its tokens, None if it is given none; `entries` all its arguments. With `tokens_only`, it must read
    tokens, and an encoder-decoder is its encoder. `trusted`: the masks that are read are those of its own kernel. Raises
    UsageError for inputs that do not fit each other or the network.
    """

    def __init__(
        self,
        network: PreTrainedModel,
        batch: Mapping[str, object],
        name: str = "",
        *,
        segments: Any = None,
        tokens_only: bool = False,
        why: str,
    ) -> None:
        check_inference(network)
        self.whole, self.name = network, name or architecture_name(network)
        is_pair = bool(network.config.is_encoder_decoder)
        self.network: Any = network.get_encoder() if is_pair and tokens_only else network
        if tokens_only and self.network.main_input_name != "input_ids":
            raise UsageError(f"{self.name} reads {self.network.main_input_name.replace('_', ' ')}, not tokens")
        self.tokens_only = tokens_only
        self.kind = ("encoder" if tokens_only else "decoder") if is_pair else "self"
        self.info = network_info(network, self.name, self.kind)
        self.kernel = str(network.config._attn_implementation or "its own")
        self.trusted = not re.search("flash|flex|paged", self.kernel)
        self.attends = bool(attention_modules(self.network))
        self.dtype, self.limit = network.dtype, tolerance(LEAK, network.dtype)
        self.notes: list[str] = []
        left_out = () if tokens_only else OF_LOSS  # a search for leaks reads labels, too
        entries = {name: value for name, value in batch.items() if value is not None and name not in left_out}
        if is_pair and tokens_only and entries.keys() & {*OF_DECODER, "labels"}:
            self.notes.append(f"{self.name} is an encoder-decoder: only its encoder is measured.")
            entries = {name: value for name, value in entries.items() if name not in (*OF_DECODER, "labels")}
        if segments is not None:
            entries["segments"] = segments
        self.block_mask = self._block_mask(entries)
        self._read_entries(entries, why)

    def _block_mask(self, entries: Mapping[str, object]) -> Any:
        """Return the BlockMask among the entries; None without one."""
        block_mask = next((value for value in entries.values() if type(value).__name__ == "BlockMask"), None)
        if block_mask is not None and "flex" not in self.kernel:
            raise UsageError(
                f"a BlockMask is for FlexAttention, and {self.name} runs with {self.kernel}: load the model with "
                "attn_implementation='flex_attention'"
            )
        return block_mask

    def _read_entries(self, entries: Mapping[str, object], why: str) -> None:
        """Check the entries, and lay out those that the network takes, on its device."""
        device = device_of_inputs(self.whole)
        read = {name: value if value is self.block_mask else as_tensor(name, value) for name, value in entries.items()}
        self.ids: Any = read.get("input_ids")
        if self.ids is not None or self.tokens_only:
            self.ids = checked_ids(self.ids, self.whole, self.name, why).to(device)  # (batch, n)
            read["input_ids"] = self.ids
        for key, value in read.items():
            if self.ids is not None and key != "input_ids" and value is not self.block_mask and _is_of_text(key):
                read[key] = checked_entry(key, value, self.ids)
            elif isinstance(value, torch.Tensor):
                read[key] = value.to(device)
        self.segment_ids, self.labels = read.pop("segments", None), read.pop("labels", None)
        self.boundaries = [read[name] for name in BOUNDARIES if name in read]
        read.pop("num_items_in_batch", None)
        takes = self._names_taken()
        check_names(read.keys() - {*BOUNDARIES, "seq_idx"}, takes, architecture_name(self.network))
        self.marks = {name: value for name, value in read.items() if name in (*BOUNDARIES, "seq_idx")}
        self.entries: dict[str, Any] = {name: value for name, value in read.items() if name in takes}
        self.says_cache = "use_cache" in self.entries  # otherwise it runs without one, as under transformers' Trainer
        if "use_cache" in takes and self._has_cache():
            self.entries.setdefault("use_cache", False)
        can_place = self.ids is not None and self.kind != "decoder" and "position_ids" in self._parameters
        if can_place and "position_ids" not in self.entries:
            places = positions_of_tokens(self.network, self.ids)
            self.entries |= {} if places is None else {"position_ids": places}

    @property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.network.forward).parameters

    def _has_cache(self) -> bool:
        takes = "use_cache" in self._parameters
        return takes or config_value(self.network.config.get_text_config(), "use_cache") is not None

    def _names_taken(self) -> set[str]:
        """Return the names of the arguments that the network takes, or hands on to a part or to its attention."""
        from transformers.utils.generic import TransformersKwargs

        names = set(self._parameters)
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in self._parameters.values()):
            forwards = {type(part): part.forward for part in self.network.modules()}
            names |= {name for forward in forwards.values() for name in inspect.signature(forward).parameters}
            names |= {*TransformersKwargs.__annotations__, *PER_TOKEN, BOUNDARIES[0]}
        return names - {"segments", "labels"}

    def segments(self) -> tuple[Array, Array]:
        """Return the number of each token's segment, and whether the token is real, not padding: (batch, n) each."""
        flat = {name: value for name, value in self.entries.items() if value is not self.block_mask}
        return segment_numbers(self.whole, self.ids, flat | self.marks, self.segment_ids)

    def restarts(self) -> bool:
        """Return whether the position_ids restart within a row."""
        positions = self.entries.get("position_ids")
        return positions is not None and bool(segment_begins(positions).any())

    def caches(self) -> bool:
        """Return whether the network keeps a cache by its configuration."""
        return bool(config_value(self.whole.config, "use_cache"))

    def vocabulary(self) -> int:
        """Return how many tokens the network has embeddings for."""
        return vocabulary_of(self.whole)

    # --- what its documentation says ---

    def documented_direction(self) -> bool:
        """Return whether the text is read from left to right, by the documentation of the family."""
        return documented_direction(self.whole)

    def documented_reach(self, kind: str, layer: int, causal: bool) -> Reach:
        """Return how far a layer of a kind sees, by the configuration."""
        return documented_reach(self.whole, kind, layer, causal)

    def documented_pictures(self, types: Any) -> Any:
        """Return the number of each token's picture (batch, n), -1 for text; None for a family without such pictures."""
        return documented_pictures(self.whole, self.ids.cpu().numpy(), types)

    def documented_prefix(self, real: Bools, types: Any) -> tuple[Bools | None, bool]:
        """Return the prefix (batch, n) that the family reads both ways, None without one; and whether there may be one."""
        return documented_prefix(self.whole, real, types)

    def mixes_neighbours(self) -> bool:
        """Return whether the embedding of a token holds its neighbours (MobileBERT)."""
        return self.whole.config.model_type in TRIGRAMS

    # --- other tokens ---

    @property
    def text_entries(self) -> tuple[str, ...]:
        """Return the names of the arguments that hold tokens."""
        return tuple(name for name in self.entries if name in ("input_ids", "decoder_input_ids"))

    @cached_property
    def _others(self) -> dict[str, Array]:
        return {name: other_ids(self.whole, self.entries[name]) for name in self.text_entries}

    def exchanged(self, entry: str, chosen: Bools) -> Array:
        """Return an argument with other tokens in some places (batch, n)."""
        ids = self.entries[entry]
        return torch.where(torch.as_tensor(chosen, device=ids.device), self._others[entry], ids)

    def free(self, entry: str, real: Bools) -> Bools:
        """Return which tokens of an argument (batch, n) may be exchanged: not those with a meaning of their own."""
        ids, special = self.entries[entry].cpu().numpy(), sorted(special_ids(self.whole))
        free: Bools = ~np.isin(ids, special) | ~real
        return free & real if self.ids is not None and "attention_mask" not in self.entries else free

    # --- run ---

    @property
    def n_tokens(self) -> int:
        """Return the number of tokens in all rows of the batch."""
        return int(self.ids.numel()) if self.ids is not None else 1

    def running(self) -> AbstractContextManager[None]:
        """Return the context in which the network and its layers run."""
        return running_network(self.network, self.n_tokens, self.name, several=True)

    def outputs(self, **other: Array) -> Output:
        """Run the network, with other tensors in place of some arguments, and return its output."""
        with self.running():
            return self.network(**{**self.entries, **other})

    def output_rows(self, output: Output) -> Array | None:
        """Return logits (batch, n, vocabulary), or last hidden states (batch, n, d_model); None without such rows."""
        ids = self.entries.get("decoder_input_ids") if self.kind == "decoder" else self.ids
        for name in ("logits", "last_hidden_state"):
            value = output_value(output, name)
            if value is not None and ids is not None and value.ndim == 3 and value.shape[:2] == ids.shape:
                return value
        return None

    def record(self, shape: Callable[[str], tuple[int, ...] | None], /, **other: Array) -> tuple[Output, list[Block]]:
        """Run the network with its own kernel, and return its output and its layers, which can be run again.

        `shape` returns the numbers of rows and tokens of a kind of attention, None if they are not known: a layer may have
        them in turn.
        """
        recorder = BlockRecorder(self.network, every_list=True)
        with recorder.recording_blocks():
            output = self.outputs(**other)
        sites, attending = sites_of_modules(self.network), set(_attending(self.network))
        made = (
            _block_of(call, sites[id(call.block)][0], id(call.block) in attending, shape) for call in recorder.calls
        )
        return output, [block for block in made if block is not None]

    def output_kind(self, output: Output, _: Array) -> str:
        """Return what the rows of an output are: logits, or hidden states."""
        return "hidden states" if output_value(output, "logits") is None else "logits"

    # --- watch ---

    def takes_positions(self) -> bool:
        """Return whether the forward takes position_ids."""
        return "position_ids" in self._parameters

    def watch_positions(
        self, positions: Array, see: Callable[[Site, Call], Array | None], wants: Callable[[Site], bool]
    ) -> None:
        """Run the tokens with these position_ids and nothing else, and pass each call that is wanted to `see`.

        `see` may raise StopForward. An error of the network ends the run.
        """
        more = {"use_cache": False} if "use_cache" in self.entries else {}
        watching = watch_attention(self.network, see, wants)
        with suppress(AttnctlError), self.running(), watching, suppress(StopForward):
            self.network(input_ids=self.ids, position_ids=positions, **more)

    def watch(
        self, see: Callable[[Site, Call], Array | None], wants: Callable[[Site], bool], /, **other: Array
    ) -> Output | None:
        """Run the network, pass each call of attention that is wanted to `see`, and return its output.

        If no attention can be read, return None. Notes say what cannot be read, and which kernel the masks come from.
        """
        if not model_follows_interface(self.network):
            if self.attends:
                self.notes.append(
                    f"The attention of {self.name} cannot be read: only what moves its outputs is measured."
                )
            return None
        try:
            with self.running(), watch_attention(self.network, see, wants) as session:
                output = self.network(**{**self.entries, **other})
                unseen = unseen_sentence(session.silent)
        except AttnctlError as error:
            self.notes.append(f"The attention cannot be read: {in_one_line(error)}.")
            return None
        if unseen:
            self.notes.append(f"{unseen[0].upper()}{unseen[1:]}.")
        if not self.trusted:
            self.notes.append(
                f"Masks and weights come from torch's own kernel instead of {self.kernel}; outputs come from {self.kernel}."
            )
        return output


def _is_of_text(name: str) -> bool:
    return not re.search("pixel|image|audio|feature|decoder|cache|encoder_outputs", name)


def _attending(network: Any) -> Iterator[int]:
    """Yield the ids of the modules that contain attention."""
    names = list(attention_modules(network))
    for name, part in network.named_modules():
        if any(inner == name or inner.startswith(f"{name}.") for inner in names):
            yield id(part)


def _block_of(
    call: BlockCall, site: Site, attends: bool, shape: Callable[[str], tuple[int, ...] | None]
) -> Block | None:
    """Return a call of a layer as a block that can be run again; None if it does not turn rows into as many rows."""
    rows = call.rows()
    if rows is None:
        return None
    output, expected = first_of(call.output).detach(), shape(site.kind)
    if expected is not None and rows.shape[:2] == expected[::-1] != expected:  # (n, batch, …): XLNet
        return Block(
            site.kind, site.layer, attends, rows.transpose(0, 1), output.transpose(0, 1),
            lambda hidden: call.run_again(hidden.transpose(0, 1)).transpose(0, 1),
        )  # fmt: skip
    return Block(site.kind, site.layer, attends, rows, output, call.run_again)
