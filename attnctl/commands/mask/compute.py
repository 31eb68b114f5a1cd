"""Run a model, read the mask of every layer from its calls of attention, and record its layers to run them again alone."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnctl import attention, limits
from attnctl.argument_types import check_network
from attnctl.arrays import Bools, place_array
from attnctl.attention import Array, Call
from attnctl.commands.mask.exchange import (
    Block,
    Search,
    Seen,
    exchanged_sets_of_chain,
    nearest,
    reached_by,
    row_change,
    row_size,
)
from attnctl.commands.mask.expected import (
    TRIGRAMS,
    Expectations,
    Reach,
    Text,
    is_causal_by_documentation,
    pictures_of,
    reach_by_documentation,
    rule_of,
    with_prefix,
)
from attnctl.commands.mask.intervals import IntervalMask, band, masks_of_rows
from attnctl.commands.mask.result import MaskCheck, MaskViolation
from attnctl.errors import AttnctlError, UsageError, in_one_line
from attnctl.models.huggingface.attention_interface import (
    architecture_name,
    check_inference,
    uncompiled,
    watch_attention,
)
from attnctl.models.huggingface.attention_sites import (
    Site,
    attention_modules,
    model_follows_interface,
    sites_of_modules,
    unseen_sentence,
)
from attnctl.models.huggingface.block_recorder import first_of
from attnctl.models.huggingface.network import device_of_inputs, network_info, running_network
from attnctl.models.huggingface.optional_fields import config_value
from attnctl.models.huggingface.token_batch import (
    BOUNDARIES,
    HIDING,
    PER_TOKEN,
    as_tensor,
    checked_entry,
    checked_ids,
    other_ids,
    positions_of_tokens,
    segment_numbers,
    special_ids,
    visible_pairs,
)
from attnctl.tolerances import LEAK, tolerance

if TYPE_CHECKING:
    from attnctl.models.builtin.stack import Stack
    from attnctl.tokens import Token

OF_LOSS = ("labels", "num_items_in_batch")


def mask(model: Any, *, segments: Any = None, expect: Any = None, **inputs: Any) -> MaskCheck:
    """Return the mask of every layer of a transformers model, and whether the model keeps to what is expected.

    `.holds` is True if no query sees what it should not see; `.violations` are the others, each with layer, query, key and
    change; `.groups` are the layers with the same mask, with a sentence and the matrix. `inputs` are the arguments of the
    model: input_ids, an attention_mask of two or four dimensions or a BlockMask, pixel_values. `segments` (batch, n) numbers
    packed documents. `expect` is causal, bidirectional, "prefix 16", "window 512", segments, or a table of 0 and 1 (n, n);
    by default what the configuration and the documentation of the family say. The model runs with its own kernel. Raises
    UsageError for an invalid batch.

    >>> found = attnctl.mask(model, **tokenizer("Alice will eat", return_tensors="pt"))  # doctest: +SKIP
    >>> assert found.holds, found  # doctest: +SKIP
    """
    check_network("mask", model)
    return MaskSearch(uncompiled(model), inputs, segments, expect).measure()


class MaskSearch(Search):
    """A network of transformers with its inputs, checked."""

    def __init__(
        self, network: Any, inputs: Mapping[str, Any], segments: Any = None, expect: Any = None, name: str = "",
        tokens: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        """Check and lay out the inputs. Raises UsageError for inputs that do not fit each other or the network."""
        check_inference(network)
        self.network, name = network, name or architecture_name(network)
        self.attends = bool(attention_modules(network))
        self.kind = "decoder" if self.network.config.is_encoder_decoder else "self"
        self.kernel = str(network.config._attn_implementation or "its own")
        self.trusted = not re.search("flash|flex|paged", self.kernel)
        self.limit = tolerance(LEAK, self.network.dtype)
        rule, device = rule_of(expect), device_of_inputs(self.network)
        entries = {name: value for name, value in inputs.items() if value is not None and name not in OF_LOSS}
        self.block_mask = next((v for v in entries.values() if type(v).__name__ == "BlockMask"), None)
        if self.block_mask is not None and "flex" not in self.kernel:
            raise UsageError(
                f"a BlockMask is for FlexAttention, and {name} runs with {self.kernel}: load the model with "
                "attn_implementation='flex_attention'"
            )
        self.entries: dict[str, Any] = {
            name: value if value is self.block_mask else as_tensor(name, value) for name, value in entries.items()
        }
        self.ids: Any = self.entries.get("input_ids")
        if self.ids is not None:
            self.ids = checked_ids(self.ids, self.network, name, "mask exchanges them").to(device)
            self.entries["input_ids"] = self.ids
        for key, value in self.entries.items():
            if self.ids is not None and key != "input_ids" and value is not self.block_mask and _is_of_text(key):
                self.entries[key] = checked_entry(key, value, self.ids)
            elif isinstance(value, torch.Tensor):
                self.entries[key] = value.to(device)
        parameters = inspect.signature(self.network.forward).parameters
        takes_more = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        if unknown := sorted(self.entries.keys() - (_keywords_of(self.network) if takes_more else parameters.keys())):
            raise UsageError(f"{architecture_name(self.network)} takes no {unknown[0]!r}: leave it out of the batch")
        has_cache = config_value(self.network.config.get_text_config(), "use_cache") is not None
        if "use_cache" in parameters or (takes_more and has_cache):
            self.entries.setdefault("use_cache", False)
        numbers = None if segments is None else as_tensor("segments", segments)
        numbers = None if numbers is None or self.ids is None else checked_entry("segments", numbers, self.ids)
        expectations = Expectations(
            is_causal_by_documentation(network), partial(reach_by_documentation, network), rule, self._texts(numbers)
        )
        super().__init__(network_info(network, name, self.kind), expectations, tokens)
        if self.ids is not None and self.kind == "self" and "position_ids" in parameters.keys() - self.entries.keys():
            places = positions_of_tokens(network, self.ids)
            self.entries |= {} if places is None else {"position_ids": places}
        if self.kernel == "eager" and self.attends:  # scores, weights and a mask of every head, by the model itself
            pairs = max((text.real.size * text.n for text in self.expectations.texts.values()), default=0)
            need = 12.0 * (self.info.n_heads or 1) * pairs
            limits.check_memory(need, f"eager attention to {self.longest:,} tokens", "shorten the text")

    def _texts(self, segment_ids: Array | None) -> dict[str, Text]:
        """Return the tokens of each kind of attention, as far as the inputs tell."""
        texts: dict[str, Text] = {}
        if self.ids is not None:
            flat = {name: value for name, value in self.entries.items() if value is not self.block_mask}
            numbers, real = segment_numbers(self.network, self.ids, flat, segment_ids)  # (batch, n) each
            several = bool(((numbers.diff() != 0) & real[:, 1:] & real[:, :-1]).any())
            given, ids = self._given_mask(), self.ids.cpu().numpy()
            types = self.entries.get("mm_token_type_ids", self.entries.get("token_type_ids"))
            types = None if types is None else types.cpu().numpy()
            text = Text(real.numpy(), numbers.numpy() if several else None, given=given)
            text.pictures = pictures_of(self.network, ids, types)
            texts["encoder" if self.kind == "decoder" else "self"] = with_prefix(self.network, text, types)
        elif isinstance(rows := self.entries.get("inputs_embeds"), torch.Tensor):
            shown = self.entries.get("attention_mask", torch.ones(rows.shape[:2]))
            texts["encoder" if self.kind == "decoder" else "self"] = Text(
                (shown.reshape(rows.shape[:2]) != 0).cpu().numpy()
            )
        if (ids := self.entries.get("decoder_input_ids")) is not None:
            shown = self.entries.get("decoder_attention_mask", torch.ones_like(ids))
            texts["decoder"] = Text((shown != 0).cpu().numpy())
        return texts

    def _given_mask(self) -> tuple[IntervalMask, ...] | None:
        """Return what the four-dimensional mask or the BlockMask of the batch lets through, for each row; else None."""
        batch, n = self.ids.shape
        given = self.entries.get("attention_mask")
        if self.block_mask is not None:
            return masks_of_rows(
                (n, n), partial(_rows_of_block_mask, self.block_mask, batch, n, self.ids.device), batch
            )
        if not isinstance(given, torch.Tensor) or given.ndim != 4:
            return None

        def rows(lo: int, hi: int) -> Bools:
            part = given[:, :, lo:hi]
            shown: Bools = (part if part.dtype == torch.bool else part > HIDING).any(1).cpu().numpy()
            return shown

        made = masks_of_rows((n, n), rows, given.shape[0] * given.shape[1])
        return made if len(made) == batch else made * batch

    # --- run ---

    def run(self) -> tuple[list[Block], Seen]:
        """Return the layers of the network after a run with its own kernel, and the masks of their calls of attention.

        Raises AttnctlError if the network fails on the inputs.
        """
        with self.running(), self._recording() as blocks:
            self.output = self.network(**self.entries)
        return blocks, self._watched_masks()

    def running(self) -> AbstractContextManager[None]:
        """Return the context in which the network and its layers run."""
        count = sum(text.real.size for text in self.expectations.texts.values()) or 1
        return running_network(self.network, count, self.info.name)

    @contextmanager
    def _recording(self) -> Iterator[list[Block]]:
        """Record the calls of the network's layers within this context."""
        sites, blocks, attending = sites_of_modules(self.network), list[Block](), set(_attending(self.network))

        def keep(block: Any, args: tuple[Any, ...], keywords: dict[str, Any], output: Any) -> None:
            site = sites[id(block)][0]
            made = _block_of(block, args, keywords, output, site, id(block) in attending)
            if made is not None:
                text = self.expectations.texts.get(site.kind)
                turned = text is not None and made.rows.shape[:2] == text.real.shape[::-1] != text.real.shape
                blocks.append(_turned(made) if turned else made)

        with ExitStack() as stack:
            for block in _layers(self.network):
                stack.callback(block.register_forward_hook(keep, with_kwargs=True).remove)
            yield blocks

    # --- what the calls of attention say ---

    def _watched_masks(self) -> Seen:
        """Return (kind, layer) → the masks of its calls; {} with a note if none can be seen."""
        seen: dict[tuple[str, int], list[tuple[IntervalMask, ...]]] = {}
        if not model_follows_interface(self.network):
            if self.attends:
                own_code = "cannot be read, as it attends in code of its own: only outputs are checked"
                self.notes.append(f"The masks of {self.info.name} {own_code}.")
            return seen

        def see(site: Site, call: Call) -> None:
            made, masks = masks_of_call(call), seen.setdefault((site.kind, site.layer), [])
            if not any([mask.key for mask in made] == [mask.key for mask in other] for other in masks):
                masks.append(made)

        entries = dict(self.entries)
        if self.block_mask is not None:
            masks = self.expectations.texts["self"].given or ()
            given = torch.as_tensor(np.stack([np.asarray(mask) for mask in masks]), device=self.ids.device)
            entries = {name: given[:, None] if value is self.block_mask else value for name, value in entries.items()}
        try:
            with self.running(), watch_attention(self.network, see) as session:
                self.network(**entries)
                unseen = unseen_sentence(session.silent)
        except AttnctlError as error:
            self.notes.append(f"The masks cannot be read: {in_one_line(error)}.")
            return {}
        if unseen:
            self.notes.append(f"{unseen[0].upper()}{unseen[1:]}.")
        if re.search("flash|flex|paged", self.kernel):
            self.notes.append(
                f"The masks come from torch's own kernel instead of {self.kernel}; outputs come from {self.kernel}."
            )
        return seen

    # --- the model as a whole ---

    def broken_as_a_whole(self, blocks: list[Block]) -> tuple[MaskViolation, ...]:
        """Exchange tokens, and return the violations at the output that no layer's mask explains."""
        name = "decoder_input_ids" if self.kind == "decoder" else "input_ids"
        ids, text = self.entries.get(name), self.expectations.texts.get(self.kind)
        base = _outputs(self.output, ids)
        if ids is None or text is None or base is None or self.network.config.model_type in TRIGRAMS:
            return ()
        chain = self.chain(blocks, text)
        if chain is None:
            return ()
        free = ~np.isin(ids.cpu().numpy(), sorted(special_ids(self.network))) | ~text.real
        if self.ids is not None and "attention_mask" not in self.entries:
            free &= text.real
        other, scale, found = other_ids(self.network, ids), row_size(base), {}
        limit = max(self.limit, 2 * self.floor)
        for hidden in exchanged_sets_of_chain(chain):
            hidden &= free
            if not hidden.any():
                continue
            self.exchanges += 1
            here = torch.as_tensor(hidden, device=ids.device)
            with self.running(), self._recording() as changed:
                out = self.network(**{**self.entries, name: torch.where(here, other, ids)})
            change = (row_change(base, _outputs(out, ids)) / scale).cpu()
            unaffected = ~torch.as_tensor(reached_by(hidden, chain))
            change = torch.where(unaffected, change.nan_to_num(0.0), 0.0)
            for row, query in enumerate(change.argmax(1).tolist()):
                if float(change[row, query]) > limit and row not in found:
                    found[row] = MaskViolation(
                        how="reaches", kind=self.kind, layer=_first_moved(blocks, changed, row, query, limit), row=row,
                        query=query, key=nearest(hidden[row], query), change=float(change[row, query]),
                        expected="what its layers carry",
                    )  # fmt: skip
        return tuple(found.values())


# --- masks ----------------------------------------------------------------------------------------------------------


def masks_of_call(call: Call) -> tuple[IntervalMask, ...]:
    """Return what a call of attention lets through, for each text of its batch."""
    heads, batch = int(call.queries.shape[-3]), int(call.queries.shape[:-3].numel())
    if call.mask is None and call.bias is None:
        smallest, largest = attention.visible_gaps(call.causal, call.window)
        return (band((call.n_q, call.n_k), largest, -smallest, call.first_position),) * batch

    def rows(lo: int, hi: int) -> Bools:
        shown = visible_pairs(attention.select_call(call, rows=list(range(lo, hi))))
        visible: Bools = shown.reshape(batch, hi - lo, call.n_k).cpu().numpy()
        return visible

    return masks_of_rows((call.n_q, call.n_k), rows, batch * (1 if call.bias is None else heads))


def _rows_of_block_mask(block_mask: Any, batch: int, n: int, device: torch.device, lo: int, hi: int) -> Bools:
    """Return which keys the queries [lo, hi) see by a BlockMask of FlexAttention → (batch, hi - lo, n)."""
    from torch.nn.attention.flex_attention import create_mask

    def shifted(text: Array, head: Array, query: Array, key: Array) -> Array:
        return block_mask.mask_mod(text, head, query + lo, key)

    made: Bools = create_mask(shifted, batch, 1, hi - lo, n, device=str(device))[:, 0].cpu().numpy()
    return made


# --- layers ------------------------------------------------------------------------------------------------------------


def _is_of_text(name: str) -> bool:
    return not re.search("pixel|image|audio|feature|decoder|cache|encoder_outputs", name)


def _keywords_of(network: Any) -> set[str]:
    """Return the keywords that a network hands on to a part or to its attention."""
    from transformers.utils.generic import TransformersKwargs

    forwards = {type(part): part.forward for part in network.modules()}
    parts = {name for forward in forwards.values() for name in inspect.signature(forward).parameters}
    return parts | set(TransformersKwargs.__annotations__) | {*PER_TOKEN, *BOUNDARIES}


def _attending(network: Any) -> Iterator[int]:
    """Yield the ids of the modules that contain attention."""
    names = list(attention_modules(network))
    for name, part in network.named_modules():
        if any(inner == name or inner.startswith(f"{name}.") for inner in names):
            yield id(part)


def _layers(network: Any) -> list[Any]:
    """Return the modules of the network's outermost lists of layers."""
    outermost: list[str] = []
    layers: list[Any] = []
    for name, parts in network.named_modules():
        if isinstance(parts, torch.nn.ModuleList) and not any(name.startswith(f"{outer}.") for outer in outermost):
            outermost.append(name)
            layers += list(parts)
    return layers


def _block_of(
    module: Any, args: tuple[Any, ...], keywords: dict[str, Any], output: Any, site: Site, attends: bool
) -> Block | None:
    """Return a call of a layer as a block that can be run again; None if it does not turn rows into as many rows."""
    result = first_of(output)
    named = dict(enumerate(args)) | keywords
    place = next(
        (name for name, value in named.items() if isinstance(value, torch.Tensor) and value.is_floating_point()), None
    )
    if place is None or not isinstance(result, torch.Tensor) or result.ndim < 3:
        return None
    rows = named[place]
    if rows.ndim != result.ndim or rows.shape[:2] != result.shape[:2]:
        return None

    def run(hidden: Array) -> Array:
        # a cache holds what the layer has read already
        changed = {name: None if "Cache" in type(value).__name__ else value for name, value in named.items()} | {
            place: hidden
        }
        positional = [changed[index] for index in range(len(args))]
        return first_of(
            module(*positional, **{name: value for name, value in changed.items() if isinstance(name, str)})
        )

    return Block(site.kind, site.layer, attends, rows.detach(), run)


def _turned(block: Block) -> Block:
    """Return a block whose rows are (n, batch, …) as one whose rows are (batch, n, …): XLNet."""
    return block._replace(
        rows=block.rows.transpose(0, 1), run=lambda hidden: block.run(hidden.transpose(0, 1)).transpose(0, 1)
    )


def _outputs(output: Any, ids: Array | None) -> Array | None:
    """Return a network's logits or last hidden states, a row for each token; None without such."""
    for name in ("logits", "last_hidden_state"):
        value = getattr(output, name, None)
        if value is not None and ids is not None and value.ndim == 3 and value.shape[:2] == ids.shape:
            return value
    return None


def _first_moved(blocks: list[Block], changed: list[Block], row: int, query: int, limit: float) -> int | None:
    """Return the first layer whose output at a query moves, by the inputs of the next one; None for the embeddings."""
    moved = [
        bool((row_change(a.rows, b.rows) / row_size(a.rows))[row, query] > limit)
        for a, b in zip(blocks, changed, strict=False)
        if a.rows.shape == b.rows.shape and a.rows.shape[1] > query
    ]
    first = next((index for index, moves in enumerate(moved) if moves), len(moved))
    return None if first == 0 or not blocks else blocks[min(first, len(blocks)) - 1].layer


class StackSearch(Search):
    """A built-in model with a text: its settings say what should be hidden."""

    kernel = "attnctl"

    def __init__(self, stack: Stack, tokens: Sequence[Token], expect: Any = None) -> None:
        """Lay out the text. Raises UsageError for a rule that is none, AttnctlError for a text without tokens."""
        if not tokens:
            raise AttnctlError("the text has no tokens: give at least one word")
        settings, self.stack, self.rows = stack.settings, stack, stack.input_rows(tokens)

        def reach(kind: str, layer: int, causal: bool) -> Reach:
            return Reach(settings.first_window if settings.window is None and not layer else settings.window)

        texts = {"self": Text(np.ones((1, len(tokens)), np.bool_))}
        expectations = Expectations(settings.causal, reach, rule_of(expect), texts)
        super().__init__(stack.info, expectations, tuple(token.text for token in tokens))

    def run(self) -> tuple[list[Block], Seen]:
        """Return the layers of the stack after a run, and the masks of their calls of attention."""
        x, blocks = place_array(self.rows, "cpu"), list[Block]()
        seen: dict[tuple[str, int], list[tuple[IntervalMask, ...]]] = {}
        for number, parameters in enumerate(self.stack.layers):
            run = partial(self._run_layer, number, {name: place_array(w, "cpu") for name, w in parameters.items()})
            call, output = run(x)
            seen["self", number] = [masks_of_call(call)]
            del call  # the next layer needs the memory
            blocks.append(Block("self", number, True, x[None], partial(self._run_rows, run)))
            x = output
        return blocks, seen

    def _run_rows(self, run: Callable[[Array], tuple[Call, Array]], hidden: Array) -> Array:
        """Return the output (1, n, d_model) of a layer over other hidden states (1, n, d_model)."""
        return run(hidden[0])[1][None]

    def _run_layer(self, number: int, placed: dict[str, Array], x: Array) -> tuple[Call, Array]:
        """Return the call of a layer over its input (n, d_model), and its output (n, d_model)."""
        layer = self.stack.layer_attention(number, x, self.stack.layers[number], placed)
        output, residual = layer.forward.output_and_residual
        return layer.forward.call, output if residual is None else residual
