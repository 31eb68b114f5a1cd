"""Make one step of gradient descent and keep every number: how a network learns to look elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from attnctl.commands.train.compute import Watch, begin_training, watched_sentence
from attnctl.commands.train.network import residual
from attnctl.commands.train.objectives import FIRST_WORD
from attnctl.commands.train.result import Lesson
from attnctl.commands.train.run import read_corpus, recipe_of
from attnctl.commands.train.state import Training
from attnctl.models.builtin import sentence_rows, unembed_rows
from attnctl.text.tokens import split_words

if TYPE_CHECKING:
    from attnctl.checks.model_options import OptionValues

LESSON_RATE = 1.0  # plain gradient descent on one sentence takes a far larger step than Adam on many


def one_step(training: Training, sentence: str, query: str | None = None, lr: float | None = None) -> Lesson:
    """Make one step of plain gradient descent on `sentence`: predict each next word, or each word masked in turn."""
    watch = Watch(sentence, training.corpus.vocabulary, training.recipe, query)
    rate = LESSON_RATE if lr is None else lr
    before = {name: array.copy() for name, array in training.parameter_arrays().items()}
    watch.start(before)
    loss, predictions = _sentence_loss(training, watch, [token.text for token in split_words(sentence)])
    tensors = torch.autograd.grad(loss, [*training.parameters.values()], allow_unused=True)
    gradients = {
        name: gradient for name, gradient in zip(training.parameters, tensors, strict=True) if gradient is not None
    }
    with torch.no_grad():
        for name, gradient in gradients.items():
            training.parameters[name] -= rate * gradient
    training.step += 1
    after = training.parameter_arrays()
    watched = watch.see(after)
    name, head = f"layers.{watched['layer']}.W_Q", watched["head"]
    return Lesson(
        sentence=sentence,
        vocabulary=len(training.corpus.vocabulary),
        predictions=tuple(predictions),
        loss=float(loss.detach()),
        loss_after=float(_sentence_loss(training, watch, [])[0].detach()),
        lr=rate,
        layer=watched["layer"],
        head=head,
        gradient_norm=float(gradients[name].norm()),
        weights=before[name][head],
        gradient=gradients[name][head].cpu().contiguous().numpy(),
        after=after[name][head].copy(),
        falls={key: rate * float(gradient.square().sum()) for key, gradient in gradients.items()},
        watch=watched,
    )


def _sentence_loss(
    training: Training, watch: Watch, names: list[str]
) -> tuple[torch.Tensor, list[tuple[str, str, float]]]:
    """Return the loss of a sentence, and the probability of each true word if `names` spells the words."""
    p = training.parameters
    device = p["embedding"].device
    ids = torch.tensor(watch.ids, device=device)  # (n,)
    n = len(ids)
    rows = sentence_rows(p, watch.ids, [token.text for token in watch.tokens])[None]  # (1, n, d_model)
    if training.recipe.causal:
        rows, targets, places = rows[:, :-1], ids[1:], torch.arange(n - 1, device=device)
    else:
        hidden = torch.eye(n, dtype=torch.bool, device=device)[..., None]  # (n, n, 1), row i hides word i
        rows, targets, places = torch.where(hidden, p["embedding"][1], rows), ids, torch.arange(n, device=device)
    x, _ = residual(p, rows, training.recipe)  # (batch, n, d_model)
    logits = unembed_rows(x, p)  # (batch, n, vocabulary)
    chosen = logits[0] if training.recipe.causal else logits[places, places]  # (words, vocabulary)
    logs = torch.log_softmax(chosen, dim=-1)[torch.arange(len(targets), device=device), targets]  # (words,)
    counted = targets >= FIRST_WORD if bool((targets >= FIRST_WORD).any()) else targets >= 0  # (words,)
    predictions = []
    for place, log in enumerate(logs.detach().tolist() if names else []):
        context = names[: place + 1] if training.recipe.causal else [*names[:place], "____", *names[place + 1 :]]
        word = names[place + 1] if training.recipe.causal else names[place]
        predictions.append((" ".join(context), word, float(torch.tensor(log).exp())))
    return -logs[counted].mean(), predictions


def first_step(corpus: str | None, settings: OptionValues, sentence: str | None, query: str | None) -> Lesson:
    """Return the lesson of the first training step with these options, on `sentence`."""
    recipe, lines = recipe_of(corpus, settings)
    training = begin_training(recipe, read_corpus(recipe, lines))
    return one_step(training, watched_sentence(training, sentence), query, settings.get("lr"))
