"""The training loop: steps, reports, checkpoints, a run that can continue, and the sentence that it watches."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnctl.checks.selection import find_token
from attnctl.commands.train.corpus import UNKNOWN, Corpus
from attnctl.commands.train.network import output_of_words, residual
from attnctl.commands.train.objectives import Batch, Batches
from attnctl.commands.train.recipe import GRAMMAR, Recipe
from attnctl.commands.train.run import TrainingRun, initial_arrays, read_corpus
from attnctl.commands.train.state import Training
from attnctl.errors import AttnctlError, UsageError, option_name
from attnctl.models.builtin import ids_of_words, letter_pieces, sentence_rows, vocabulary_tokenizer
from attnctl.runtime.arrays import one_thread, torch_device
from attnctl.runtime.light_import import without_compiler
from attnctl.text import duration_text
from attnctl.text.english import QUESTIONS
from attnctl.text.tokens import split_words

if TYPE_CHECKING:
    from attnctl.attention import Array
    from attnctl.commands.train.result import WatchedWord
    from attnctl.runtime.arrays import Floats
    from attnctl.text import Document

WARM_UP, FLOOR = 100, 0.02  # steps until the full learning rate; its share that remains at the end
WEIGHT_DECAY, BETAS, CLIP = 0.05, (0.9, 0.98), 1.0
SAVE_EVERY_SECONDS = 20.0
SMALL = 256  # up to this d_model, one thread is enough


def begin_training(recipe: Recipe, corpus: Corpus) -> Training:
    """Return a network before its first step. Raises AttnctlError if the recipe's sizes do not fit."""
    if recipe.d_k is None and recipe.d_model % recipe.heads:
        raise UsageError(f"it does not divide into {recipe.heads} heads", option="d_model", value=recipe.d_model)
    # a network this small is faster on the CPU than on the way to a GPU
    device = "cpu" if recipe.device == "auto" else torch_device(recipe.device)
    parameters = {}
    for name, array in initial_arrays(recipe, corpus).items():
        # the numbers of one word lie side by side, since few words are looked up at a time
        laid_out = np.asfortranarray(array) if name == "unembedding" else array
        parameters[name] = torch.from_numpy(laid_out).to(device).requires_grad_()
    with without_compiler():
        optimizer = torch.optim.AdamW(parameters.values(), lr=recipe.lr, betas=BETAS, weight_decay=WEIGHT_DECAY)
    by_letters = recipe.pieces is not None
    batches = Batches(corpus, recipe.objective, recipe.batch_size, recipe.seed, by_letters=by_letters)
    pieces = None
    if recipe.pieces is not None:  # the pieces of each word, -1 after its last: (words, most pieces)
        numbers = [torch.tensor(letter_pieces(word, recipe.pieces)) for word in corpus.vocabulary]
        pieces = torch.nn.utils.rnn.pad_sequence(numbers, batch_first=True, padding_value=-1).to(device)
    return Training(recipe, corpus, parameters, optimizer, batches, pieces)


def learning_rate(step: int, recipe: Recipe) -> float:
    """Return the learning rate of this step: a short rise, then half a cosine down to almost 0."""
    rise = min(1.0, (step + 1) / min(WARM_UP, max(1, recipe.steps // 10)))
    fall = FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * step / recipe.steps))
    return recipe.lr * rise * fall


class Predicted(NamedTuple):
    """Words to predict; the mean of their losses is one term."""

    weight: float  # how much their mean counts
    x: Tensor  # (words, d_model), what they are predicted from
    targets: Tensor  # (words,)


def loss_of(training: Training, batch: Batch) -> Tensor:
    """Return the mean cross-entropy of the predicted words plus, if questions are asked, their weighted mean → ()."""
    recipe, p = training.recipe, training.parameters
    rows = rows_of_words(training, batch.ids)  # (batch, n, d_model)
    padding = None if recipe.causal else batch.real  # padding stands after the words: a causal network never sees it
    x, steps = residual(p, rows, recipe, padding)  # (batch, n, d_model)
    groups = [Predicted(1.0, x[batch.counted], batch.targets[batch.counted])]
    groups += _answers_to_questions(training, batch, rows, steps[-1].weights)
    groups = [group for group in groups if len(group.targets)]
    losses = _cross_entropy(
        training, torch.cat([g.x for g in groups]), torch.cat([g.targets for g in groups])
    )  # (words,)
    sizes = [len(group.targets) for group in groups]
    means = torch.stack([part.mean() for part in torch.split(losses, sizes)])  # (groups,)
    if len(groups) == 1:
        return means[0]
    weights = torch.tensor([group.weight for group in groups[1:]], device=means.device)  # (questions,)
    mean: Tensor = means[0] + means[1:] @ weights / weights.sum()
    return mean


def rows_of_words(training: Training, ids: Tensor) -> Tensor:
    """Return what the network reads or predicts for these ids (…): embeddings, or rows made from letters → (…, d_model)."""
    table = training.parameters["embedding"]
    if training.pieces is None:
        return torch.nn.functional.embedding(ids, table)
    unknown = ids >= len(table)  # (…)
    words = torch.where(unknown, ids - len(table), 0)  # (…)
    shape = training.batches.shapes.to(ids.device)[words]  # (…)
    rows = torch.nn.functional.embedding(torch.where(unknown, shape, ids), table)  # (…, d_model)
    pieces = training.pieces[words[unknown]]  # (unknown, most pieces)
    real = (pieces >= 0).float()  # (unknown, most pieces)
    shares = real / real.sum(1, keepdim=True).sqrt()  # (unknown, most pieces)
    letter_rows = training.parameters["pieces"]
    letters = torch.nn.functional.embedding(pieces.clamp(min=0), letter_rows)  # (unknown, most pieces, d_model)
    return rows.index_put((unknown,), (shares[:, None] @ letters)[:, 0], accumulate=True)


def _answers_to_questions(training: Training, batch: Batch, rows: Tensor, weights: Tensor) -> list[Predicted]:
    """Return the answers of each question; the last entry has the words that are their own answer.

    `rows` (batch, n, d_model) are the embeddings, `weights` (batch, heads, n, n) those of the last layer.
    """
    if batch.answers is None or batch.idle is None:
        return []
    groups, idle = [], []
    for number, question in enumerate(QUESTIONS):
        head = question.head % training.recipe.heads
        output = output_of_words(training.parameters, rows, weights, head)  # (batch, n, d_model)
        answers, is_own = batch.answers[..., number], batch.idle[..., number]  # (batch, n)
        is_asked = answers >= 0  # (batch, n)
        groups.append(
            Predicted(question.weights[training.recipe.causal], output[is_asked & ~is_own], answers[is_asked & ~is_own])
        )
        idle.append((output[is_asked & is_own], answers[is_asked & is_own]))
    own_words, targets = zip(*idle, strict=True)
    return [*groups, Predicted(1.0, torch.cat(own_words), torch.cat(targets))]


def _cross_entropy(training: Training, x: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each row of x (rows, d_model) over all words, or the recipe's candidates → (rows,).

    A target whose input was its letters is among the candidates by its letters.
    """
    p = training.parameters
    table = p["embedding"] if "unembedding" not in p else p["unembedding"].T  # (vocabulary, d_model)
    if training.recipe.candidates is not None:
        random = torch.Generator().manual_seed((training.recipe.seed << 32) + training.step)
        drawn = torch.randint(len(table), (training.recipe.candidates,), generator=random)  # (candidates,)
        candidates = torch.unique(torch.cat([targets.cpu(), drawn])).to(table.device)  # (words,), sorted
        targets, table = torch.searchsorted(candidates, targets), rows_of_words(training, candidates)
    return torch.nn.functional.cross_entropy(x @ table.T, targets, reduction="none")


def training_step(training: Training) -> float:
    """Make one step of gradient descent and return its loss. Raises AttnctlError if the loss is not finite."""
    recipe = training.recipe
    device = training.parameters["embedding"].device
    batch = Batch._make(part if part is None else part.to(device) for part in training.batches.at(training.step))
    for group in training.optimizer.param_groups:
        group["lr"] = learning_rate(training.step, recipe)
    with without_compiler():
        training.optimizer.zero_grad()
    if not bool(batch.counted.any()):  # in a tiny corpus, no word may be chosen to predict
        training.step += 1
        return math.nan
    loss = loss_of(training, batch)
    value = float(loss.detach())
    if not math.isfinite(value):
        raise AttnctlError(
            f"the loss is {value} at step {training.step}: try a smaller learning rate than {recipe.lr:g}"
        )
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(training.parameters.values(), CLIP)
    with without_compiler():
        training.optimizer.step()
    training.step += 1
    return value


def train_network(
    training: Training, run: TrainingRun, watch: Watch | None = None, stop: Callable[[], bool] = lambda: False
) -> Generator[Document, None, None]:
    """Train to the recipe's last step, or until `stop` returns true; yield reports and save the run on the way.

    A report holds step, loss (the mean since the last), lr, tokens_per_second, seconds, and what `watch` sees.
    """
    recipe = training.recipe
    started = reported = saved = time.monotonic()
    words = 0.0
    length = float((training.corpus.ids >= 0).sum(1).mean())
    if training.step == 0:
        run.checkpoint(training)
    try:
        while training.step < recipe.steps and not stop():
            with one_thread(recipe.d_model <= SMALL):
                training.losses.append(training_step(training))
            words += recipe.batch_size * length
            now = time.monotonic()
            report = None
            if training.step % recipe.report_every == 0 or training.step == recipe.steps:
                speed = words / max(now - reported, 1e-9)
                report = run.report(_training_report(training, speed, now - started, watch))
                training.losses, words, reported = [], 0.0, now
            if (
                training.step in recipe.checkpoints
            ):  # after the report: a resumed run repeats reports that are newer than its state
                run.checkpoint(training)
                saved = now
            elif now - saved > SAVE_EVERY_SECONDS:
                run.save_state(training)
                saved = now
            if report is not None:
                yield report
    except GeneratorExit:  # the reader of the reports stopped
        run.checkpoint(training)
        raise
    if training.step not in recipe.checkpoints:
        run.checkpoint(training)


def _training_report(training: Training, speed: float, seconds: float, watch: Watch | None) -> Document:
    finite = [loss for loss in training.losses if math.isfinite(loss)]
    report = {
        "schema": "attnctl.report/1",
        "step": training.step,
        "loss": round(sum(finite) / len(finite), 5) if finite else None,
        "lr": float(f"{learning_rate(training.step - 1, training.recipe):.3g}"),
        "tokens_per_second": round(speed),
        "seconds": round(seconds, 2),
    }
    return report | ({} if watch is None else {"watch": watch.see(training.parameter_arrays())})


# --- a run of it -------------------------------------------------------------------------------------------------

WATCHED = "Alice will eat pizza"
MEASURED_SECONDS = 3.0  # after this many seconds of steps, the time of all steps is estimated
ANNOUNCED_SECONDS = 20.0  # an estimate above this is announced


def open_training(
    run: TrainingRun,
    recipe: Recipe,
    lines: list[str] | None,
    watch: str | None,
    query: str | None,
    stack: contextlib.ExitStack,
    *,
    resume: bool = False,
) -> tuple[Training, Watch]:
    """Return a new training, or the one in the folder, and its watch; the folder is locked until `stack` ends."""
    training = begin_training(recipe, read_corpus(recipe, lines))
    watched = Watch(watched_sentence(training, watch), training.corpus.vocabulary, recipe, query)
    watched.start(initial_arrays(recipe, training.corpus))
    if not resume:
        stack.enter_context(run.locked())
        run.create(recipe, lines)
    else:
        run.restore(training)
        if recipe != run.recipe()[0] and recipe.steps > training.step:
            run.write_recipe(recipe)
    return training, watched


def announce_time(training: Training, stop: Callable[[], bool], say: Callable[[str], None]) -> Callable[[], bool]:
    """Wrap `stop`, which is called before each step, so that `say` gets an estimate once a step was timed and it is long."""
    first, start, is_announced = training.step, monotonic(), False

    def stop_or_announce() -> bool:
        nonlocal is_announced
        elapsed = monotonic() - start
        if not is_announced and elapsed > MEASURED_SECONDS and training.step > first:
            is_announced = True
            remaining = training.recipe.steps - training.step
            if (seconds := elapsed / (training.step - first) * remaining) > ANNOUNCED_SECONDS:
                goes_on = f"Ctrl-C saves and {option_name('resume')} goes on; {option_name('max_steps')} takes fewer"
                say(f"{remaining:,} steps to go: about {duration_text(seconds)} ({goes_on})")
        return stop()

    return stop_or_announce


def watched_sentence(training: Training, sentence: str | None) -> str:
    """Return the sentence to watch: by default the demo's for the grammar, and the first of a handy length for a text."""
    if sentence is None:
        return WATCHED if training.recipe.corpus == GRAMMAR else training.corpus.first_sentence()
    return sentence


@dataclass
class Watch:
    """A sentence to watch in training, and one of its words; None means the word whose attention changes most."""

    sentence: str
    vocabulary: tuple[str, ...]
    recipe: Recipe  # of the network
    query: str | None = None
    _before: Floats | None = field(default=None, repr=False)  # (layers, heads, n, n) at the first look

    def __post_init__(self) -> None:
        ids = ids_of_words(self.vocabulary)
        self.tokens = vocabulary_tokenizer(split_words, ids, UNKNOWN, "the corpus")(self.sentence)
        if len(self.tokens) < 2:
            raise AttnctlError("it is a sentence of two words or more", option="watch", value=self.sentence)
        self.ids = [token.id or 0 for token in self.tokens]
        self.row = None if self.query is None else find_token(self.tokens, self.query)

    def sentence_weights(self, parameters: dict[str, Array]) -> Floats:
        """Return the attention of the sentence under these parameters: (layers, heads, n, n)."""
        if "positions" in parameters and len(self.ids) > len(parameters["positions"]):
            raise AttnctlError(
                f"the sentence has {len(self.ids)} words, the network {len(parameters['positions'])} positions",
                option="watch",
                value=self.sentence,
            )
        rows = sentence_rows(parameters, self.ids, [token.text for token in self.tokens])  # (n, d_model)
        _, layers = residual(parameters, rows, self.recipe)
        return np.stack([steps.weights for steps in layers])  # (layers, heads, n, n)

    def start(self, parameters: dict[str, Array]) -> None:
        """Remember the weights before training."""
        self._before = self.sentence_weights(parameters)

    def see(self, parameters: dict[str, Array]) -> WatchedWord:
        """Return where the watched word looks now: the link to another word that grew most since the start."""
        now = self.sentence_weights(parameters)  # (layers, heads, n, n)
        if self._before is None:
            self._before = now
        growth = (now - self._before) * (1 - np.eye(len(self.ids)))  # (layers, heads, n, n)
        if self.recipe.causal and len(self.ids) > 2:
            growth[:, :, :2] -= 1  # a word with only one other word before it has little choice
        if self.row is not None:
            only = np.zeros_like(growth)
            only[:, :, self.row] = 1
            growth = np.where(only > 0, growth, -1.0)
        layer, head, i, j = (int(index) for index in np.unravel_index(int(growth.argmax()), growth.shape))
        return {
            "query": self.tokens[i].text,
            "key": self.tokens[j].text,
            "layer": layer,
            "head": head,
            "before": round(float(self._before[layer, head, i, j]), 4),
            "weight": round(float(now[layer, head, i, j]), 4),
            "tokens": tuple(token.text for token in self.tokens),
            "row": tuple(round(float(w), 4) for w in now[layer, head, i]),
        }
