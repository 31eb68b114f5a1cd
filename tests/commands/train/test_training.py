"""Training itself: that it learns, repeats itself, can be stopped anywhere, and uses the one implementation of attention."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnctl import attend
from attnctl.checks import limits
from attnctl.commands.train import network
from attnctl.commands.train.compute import Watch, begin_training, learning_rate, rows_of_words, train_network
from attnctl.commands.train.corpus import encode_sentences, read_lines, split_lines
from attnctl.commands.train.objectives import FIRST_WORD, MASK_ID, UNKNOWN_ID, Batches
from attnctl.commands.train.recipe import DEFAULTS, Recipe
from attnctl.commands.train.run import TrainingRun, read_corpus, weights_file
from attnctl.commands.train.state import Training
from attnctl.errors import AttnctlError
from attnctl.models import open_model
from attnctl.models.builtin.network import layers_of, sentence_rows
from attnctl.models.builtin.stack import unembed_rows
from attnctl.models.builtin.weights import reports_of
from attnctl.text.english import QUESTIONS

LINES = ["the cat sat on the mat", "the dog ran home", "a bird sang", "the cat ran on the mat today"]
SMALL = Recipe(d_model=8, heads=2, layers=2)
RECIPE = Recipe("next-word", corpus="text", steps=30, batch_size=8, d_model=8, heads=2, layers=2)


def begun(path: Path, recipe: Recipe = RECIPE) -> tuple[Training, TrainingRun]:
    training, run = begin_training(recipe, read_corpus(recipe, LINES)), TrainingRun(path)
    run.create(recipe, LINES)
    return training, run


def train(training: Training, run: TrainingRun, stop_at: int | None = None) -> None:
    for _ in train_network(training, run, stop=lambda: training.step == stop_at):
        pass


def run_of(path: Path, recipe: Recipe = RECIPE, stop_at: int | None = None) -> tuple[Training, TrainingRun]:
    training, run = begun(path, recipe)
    train(training, run, stop_at)
    return training, run


def resumed(path: Path) -> tuple[Training, TrainingRun]:
    run = TrainingRun(path)
    recipe, lines = run.recipe()
    training = begin_training(recipe, read_corpus(recipe, lines))
    run.restore(training)
    return training, run


def assert_same_weights(one: Training, other: Training) -> None:
    for name, array in one.parameter_arrays().items():
        np.testing.assert_array_equal(array, other.parameter_arrays()[name])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Training, TrainingRun]:
    return run_of(tmp_path_factory.mktemp("finished") / "run")


def test_the_loss_falls_and_weights_on_the_way_are_kept(finished: tuple[Training, TrainingRun]) -> None:
    run = finished[1]
    losses = [report["loss"] for report in reports_of(run.path)]
    assert losses[-1] < 0.8 * losses[0]
    assert open_model(str(run.path / "step-000000.safetensors")).info.n_layers == 2  # untrained
    steps = sorted(int(path.stem.split("-")[1]) for path in run.path.glob("step-*.safetensors"))
    assert steps[0] == 0 and steps[-1] == 30 and len(steps) > 10


@pytest.mark.parametrize("objective", ["next-word", "masked-word"])
def test_a_run_repeats_itself(tmp_path: Path, objective: str) -> None:
    first, second = (run_of(tmp_path / name, replace(RECIPE, objective=objective, steps=9))[0] for name in "ab")
    assert_same_weights(first, second)
    assert weights_file(first, note="a", other="b") == weights_file(second, other="b", note="a")  # to the last byte


def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path: Path, finished: tuple[Training, TrainingRun]) -> None:
    run_of(tmp_path / "part", stop_at=13)
    training, run = resumed(tmp_path / "part")
    assert training.step == 13
    train(training, run)
    assert_same_weights(finished[0], training)
    assert [report["step"] for report in reports_of(run.path)] == list(range(1, 31))


def test_a_kill_costs_only_the_steps_since_the_last_save(tmp_path: Path) -> None:
    """What a kill leaves: an old state, newer reports, the last of them cut short."""
    _, run = run_of(tmp_path / "run", stop_at=10)
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "loss": 1.0}\n{"step": 12, "lo')
    training, run = resumed(tmp_path / "run")
    assert training.step == 10 and reports_of(run.path)[-1]["step"] == 10
    begun(tmp_path / "killed before its first step")
    assert resumed(tmp_path / "killed before its first step")[0].step == 0


LONG = replace(RECIPE, steps=300)  # a report every three steps, a state at 50, 60, 75, …


def losses_of(run: TrainingRun) -> list[tuple[int, float]]:
    return [(report["step"], report["loss"]) for report in reports_of(run.path)]


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, float]]:
    """The reports of a long run's first 75 steps."""
    return losses_of(run_of(tmp_path_factory.mktemp("whole") / "run", LONG, stop_at=75)[1])


@pytest.mark.parametrize(
    ("killed", "at"), [("report", 51), ("report", 60), ("save_state", 60)], ids=["between two", "at one", "at a state"]
)
def test_reports_are_those_of_a_run_that_was_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, losses: list[tuple[int, float]], killed: str, at: int
) -> None:
    """The losses before a state that was saved between two reports were in none; a report due just after one was lost."""
    own = getattr(TrainingRun, killed)

    def dies(run: TrainingRun, told: Any) -> Any:
        if (told["step"] if killed == "report" else told.step) == at:
            raise KeyboardInterrupt
        return own(run, told)

    monkeypatch.setattr(TrainingRun, killed, dies)
    with pytest.raises(KeyboardInterrupt):
        run_of(tmp_path / "part", LONG)
    monkeypatch.undo()
    training, run = resumed(tmp_path / "part")
    assert training.step < 61
    train(training, run, stop_at=75)
    assert losses_of(run) == losses


def test_a_damaged_report_takes_no_other_away(tmp_path: Path) -> None:
    """All that came after it were deleted as the run went on."""
    _, run = run_of(tmp_path / "run", stop_at=10)
    path = tmp_path / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(["{", *lines[:3], "5", '{"step": "x"}', *lines[4:]]) + "\n")
    resumed(tmp_path / "run")
    assert [report["step"] for report in reports_of(run.path)] == [1, 2, 3, 5, 6, 7, 8, 9, 10]


def test_a_run_does_not_go_on_with_another_corpus(tmp_path: Path) -> None:
    """A line more of known words went unnoticed: the rest of the run learned from another text."""
    run_of(tmp_path / "run", stop_at=3)
    with (tmp_path / "run" / "corpus.txt").open("a") as file:
        file.write(f"{LINES[0]}\n")
    with pytest.raises(AttnctlError, match=r"corpus.txt has changed since this run began"):
        resumed(tmp_path / "run")


def test_a_run_does_not_go_on_with_another_bundled_corpus(tmp_path: Path) -> None:
    """One that began with sentences made as it ran, or with those of another version."""
    run = TrainingRun(tmp_path / "run")
    run.create(DEFAULTS["masked-word"], None)
    run.recipe()
    told = json.loads((tmp_path / "run" / "recipe.json").read_text())
    for other in (told | {"corpus_sha256": "0" * 64}, {k: v for k, v in told.items() if k != "corpus_sha256"}):
        (tmp_path / "run" / "recipe.json").write_text(json.dumps(other))
        with pytest.raises(
            AttnctlError, match="the bundled corpus has changed since this run began: give a new folder"
        ):
            run.recipe()


def test_the_weights_open_as_a_model_that_agrees(finished: tuple[Training, TrainingRun]) -> None:
    """The file runs in NumPy as the network ran in torch: attention and predictions."""
    training, run = finished
    text = "the cat sat on the mat"
    trace = attend(text, model=str(run.path))
    assert trace.model.causal
    ids = torch.tensor([training.corpus.vocabulary.index(word) for word in text.split()])
    with torch.no_grad():
        rows = training.parameters["embedding"][ids]
        x, layers = network.residual(training.parameters, rows, training.recipe)
        logits = unembed_rows(x, training.parameters)
    for mine, theirs in zip(trace.layers, layers, strict=True):
        np.testing.assert_allclose(mine.weights, theirs.weights.numpy(), atol=1e-6)
    best = logits[-1].softmax(-1).max(-1)
    assert trace.predictions[0].text == training.corpus.vocabulary[int(best.indices)]
    assert trace.predictions[0].probability == pytest.approx(float(best.values), abs=1e-5)


def small_network(*shape: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """The parameters of an untrained network, and rows for it."""
    rows = torch.randn(*shape, 8, generator=torch.Generator().manual_seed(0))
    return {name: torch.from_numpy(array) for name, array in network.initial(SMALL, 9, 8).items()}, rows


def test_a_causal_network_never_sees_the_word_it_predicts_and_none_sees_padding() -> None:
    parameters, rows = small_network(5)
    rows.requires_grad_()
    network.residual(parameters, rows, replace(SMALL, objective="next-word"))[0][2].sum().backward()
    assert rows.grad is not None and rows.grad[:3].abs().min() > 0 and rows.grad[3:].abs().max() == 0
    parameters, rows = small_network(1, 6)
    real = torch.tensor([[True] * 4 + [False] * 2])
    padded = network.residual(parameters, rows, SMALL, real)[0][:, :4]
    torch.testing.assert_close(padded, network.residual(parameters, rows[:, :4], SMALL)[0])


@pytest.mark.parametrize("objective", ["next-word", "masked-word"])
def test_batches_hide_what_is_predicted(objective: str) -> None:
    corpus = encode_sentences(split_lines(LINES * 20))
    batches = Batches(corpus, objective, 64, seed=1)
    batch = batches.at(5)
    assert torch.equal(batches.at(5).ids, batch.ids) and not torch.equal(batches.at(6).ids, batch.ids)
    assert not (batch.targets[batch.counted] == UNKNOWN_ID).any()
    if objective == "next-word":
        same = batch.ids[:, 1:] == batch.targets[:, :-1]
        assert same[batch.ids[:, 1:] >= FIRST_WORD].all()  # shown, but for words made unknown
    else:
        shown = batch.ids[batch.counted] == batch.targets[batch.counted]
        assert 0.2 < shown.float().mean() < 0.8
        assert (batch.ids == MASK_ID).any() and not (batch.ids == MASK_ID)[~batch.counted].any()


@pytest.mark.parametrize("objective", ["next-word", "masked-word"])
def test_words_are_asked_for_words_that_are_seen(objective: str) -> None:
    corpus = read_corpus(DEFAULTS[objective], None)
    batches, met = Batches(corpus, objective, 64, seed=1), set()
    for batch in map(batches.at, range(3, 9)):
        assert batch.answers is not None and batch.idle is not None
        asked = batch.answers >= 0  # (batch, n, questions)
        met |= set(asked.flatten(0, 1).any(0).nonzero().flatten().tolist())
        for ids, own, answers, idle in zip(batch.ids, asked, batch.answers, batch.idle, strict=True):
            assert not own[ids == MASK_ID].any()  # a word that is hidden is asked for itself alone
            for at, question in own.nonzero().tolist():
                seen = ids[: at + 1] if objective == "next-word" else ids
                assert answers[at, question] in seen.tolist()
                assert not idle[at, question] or answers[at, question] == ids[at]
    assert met == set(range(len(QUESTIONS)))


def test_what_a_head_brings_is_read_from_the_words_themselves() -> None:
    parameters, rows = small_network(1, 6)
    weights = torch.eye(6).roll(1, 0).expand(1, 2, 6, 6)  # each looks at the one before
    found = network.output_of_words(parameters, rows, weights, 1)
    last = layers_of(parameters)[-1]
    torch.testing.assert_close(found[0], rows[0].roll(1, 0) @ last["W_V"][1] @ last["W_O"][4:])


def test_an_unknown_word_is_learned_by_its_letters(tmp_path: Path) -> None:
    """Its row is that of its shape and what its letters add: in training, and in the model that is opened."""
    recipe = replace(DEFAULTS["masked-word"], steps=3, batch_size=16, pieces=32)
    training, run = begin_training(recipe, read_corpus(recipe, None)), TrainingRun(tmp_path / "run")
    before = training.parameters["pieces"].detach().clone()
    run.create(recipe, None)
    train(training, run)
    assert not torch.equal(before, training.parameters["pieces"])
    words, at = training.corpus.vocabulary, training.corpus.vocabulary.index("umbrella")
    p, ids = training.parameter_arrays(), [at, int(training.corpus.shapes[at])]
    rows = rows_of_words(training, torch.tensor([at, len(words) + at])).detach().numpy()  # (2, d_model)
    np.testing.assert_allclose(rows, sentence_rows(p, ids, ["umbrella"] * 2), atol=1e-6)
    assert (training.batches.at(2).ids >= len(words)).any()
    model: Any = open_model(str(tmp_path / "run"))
    tokens = model.tokenize("umbrella Zorblax")
    own = sentence_rows(p, [token.id or 0 for token in tokens], [token.text for token in tokens])
    np.testing.assert_allclose(model.embed(tokens), own, atol=5e-3)  # kept in half precision


def test_the_learning_rate_rises_and_falls() -> None:
    recipe = Recipe(steps=1000, lr=0.01)
    rates = [learning_rate(step, recipe) for step in range(1000)]
    assert rates[0] < 0.001 and max(rates) == pytest.approx(0.01, rel=0.05) and rates[-1] < 0.0005


def test_a_loss_that_is_no_number_stops(tmp_path: Path) -> None:
    recipe = replace(RECIPE, lr=1e30)
    training, run = begun(tmp_path / "run", recipe)
    with pytest.raises(AttnctlError, match="loss is (nan|inf) at step .*smaller learning rate"):
        train(training, run)
    open_model(str(run.path))  # what was saved before is sound


def test_the_watch_tells_the_link_that_grew(tmp_path: Path) -> None:
    training = begin_training(RECIPE, read_corpus(RECIPE, LINES))
    watch = Watch("the cat ran home", training.corpus.vocabulary, RECIPE, query="ran")
    before = training.parameter_arrays()
    watch.start(before)
    after = {name: array.copy() for name, array in before.items()}
    after["layers.0.W_Q"][1] *= -3
    seen = watch.see(after)
    now = watch.sentence_weights(after)
    assert seen["query"] == "ran" and (seen["layer"], seen["head"]) == (0, 1)
    assert seen["weight"] == pytest.approx(now[0, 1, 2, seen["tokens"].index(seen["key"])], abs=1e-4)
    assert seen["weight"] > seen["before"]


def test_the_watch_sees_what_the_model_will_show(tmp_path: Path) -> None:
    """The first layer's window too: without it, a word of a long sentence was watched where it never looks."""
    recipe = replace(RECIPE, objective="masked-word", first_window=2)
    training, run = run_of(tmp_path / "run", recipe)
    text = "the cat ran on the mat today"
    watch = Watch(text, training.corpus.vocabulary, recipe)
    trace = attend(text, model=str(run.path))
    for mine, layer in zip(watch.sentence_weights(training.parameter_arrays()), trace.layers, strict=True):
        np.testing.assert_allclose(mine, layer.weights, atol=1e-6)


def test_a_corpus_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """250 MB of nothing took 23 GB: each of its bytes became a word. A folder is held to what a file may have."""
    folder, sparse = tmp_path / "corpus", tmp_path / "sparse.txt"
    folder.mkdir()
    for number in range(4):
        (folder / f"{number}.txt").write_text("Alice will eat\n" * 10)
    assert len(read_lines(str(folder))) == 40
    sparse.write_bytes(b"Alice will eat\n" + bytes(1001))
    monkeypatch.setattr(limits, "CORPUS_LINE_CHARACTERS", 1000)
    with pytest.raises(
        AttnctlError, match=r"line 2 has 1,001 characters; a line may have 1,000: give one sentence on each line"
    ):
        read_lines(str(sparse))
    monkeypatch.setattr(limits, "CORPUS_BYTES", 500)
    with pytest.raises(AttnctlError, match="is larger than"):
        read_lines(str(folder))


def test_a_word_is_kept_once() -> None:
    one, other = split_lines(["pizza tastes good", "Alice likes pizza"])
    assert one[0] == other[2] and one[0] is other[2]
