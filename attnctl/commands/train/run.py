"""The folder of a run: its recipe, its corpus, its weights over time, its reports, and the state to continue from.

Everything is written whole or not at all, so that a kill at any moment costs at most the steps since the last checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, structs

from attnctl import __version__
from attnctl.checks import limits
from attnctl.commands.train import corpus as corpora
from attnctl.commands.train import network
from attnctl.commands.train.corpus import bundled_corpus, read_lines
from attnctl.commands.train.recipe import DEFAULTS, GRAMMAR, OWN_TEXT, Recipe
from attnctl.errors import AttnctlError, UsageError, in_one_line, option_name, options_as_flags
from attnctl.models import open_named_model
from attnctl.models.builtin import reports_of
from attnctl.runtime.files import LOCK, lock_folder, open_to_append, read_bytes, said_plainly, write_whole
from attnctl.text import as_json
from attnctl.text.english import FOLDER, SENTENCES

if TYPE_CHECKING:
    from attnctl.attention import Array
    from attnctl.checks.model_options import OptionValues
    from attnctl.commands.train.state import Training
    from attnctl.text import Document

# with a larger vocabulary than HALVED, the tables are stored in half precision, and the matrices, which every trace repeats,
# with DECIMALS decimals
HALVED, DECIMALS = 4096, 3
TABLES = ("embedding", "pieces", "unembedding")


def read_corpus(recipe: Recipe, lines: list[str] | None) -> corpora.Corpus:
    """Return the sentences of a recipe: `lines`, or the bundled ones."""
    return bundled_corpus(recipe.objective) if lines is None else corpora.encode_sentences(corpora.split_lines(lines))


def initial_arrays(recipe: Recipe, corpus: corpora.Corpus) -> dict[str, Array]:
    """Return the initial parameters of this recipe."""
    return network.initial(recipe, len(corpus.vocabulary), max(corpus.length, recipe.min_length))


class TrainingRun:
    """The folder of one run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.state = self.path / "resume.safetensors"

    def check_free(self) -> None:
        """Raise AttnctlError if the folder exists and is not empty."""
        if (self.path / "recipe.json").exists():
            raise AttnctlError(
                f"{self.path} holds a run already: go on with it ({option_name('resume')}), or name another folder"
            )
        with said_plainly("write", self.path):
            is_used = self.path.is_dir() and any(path.name != LOCK for path in self.path.iterdir())
            if is_used or (self.path.exists() and not self.path.is_dir()):
                raise AttnctlError(f"{self.path} exists already, and is not a run: name another folder")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the folder and lock it. Raises AttnctlError if another process trains in it."""
        with said_plainly("write", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            lock = lock_folder(self.path)
        try:
            yield
        finally:
            lock.release()

    def create(self, recipe: Recipe, lines: list[str] | None) -> None:
        """Make the folder and write its settings. Raises AttnctlError if it exists and is not empty."""
        self.check_free()
        with said_plainly("write", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        if lines is not None:
            write_whole(self.path / "corpus.txt", ("\n".join(lines) + "\n").encode(), inside=self.path)
        self.write_recipe(recipe)  # last, since a folder with a recipe is a run

    def write_recipe(self, recipe: Recipe) -> None:
        """Write the recipe."""
        settings = asdict(recipe) | {"attnctl": __version__, "corpus_sha256": self._corpus_digest(recipe)}
        write_whole(self.path / "recipe.json", (json.dumps(settings, indent=2) + "\n").encode(), inside=self.path)

    def recipe(self) -> tuple[Recipe, list[str] | None]:
        """Return the recipe of the run and the lines of its corpus. Raises AttnctlError if the folder holds no run."""
        from attnctl.formats import read_as

        path = self.path / "recipe.json"
        if not path.is_file():
            raise AttnctlError(f"{self.path} holds no run to go on with: there is no recipe.json")
        try:
            settings = json.loads(read_bytes(path, limits.SETTINGS_BYTES))
            recipe = checked_recipe(read_as(Recipe, {field.name: settings[field.name] for field in fields(Recipe)}))
        except KeyError as error:
            raise AttnctlError(f"{path} is damaged: {error.args[0]} is missing") from error
        except (ValueError, TypeError, RecursionError, UsageError) as error:
            with options_as_flags(None):  # the names are fields of the file
                raise AttnctlError(f"{path} is damaged: {in_one_line(error)}") from error
        corpus_file = self.path / "corpus.txt"
        if settings.get("corpus_sha256") != self._corpus_digest(recipe):
            corpus = "the bundled corpus" if recipe.corpus == GRAMMAR else corpus_file
            raise AttnctlError(f"{corpus} has changed since this run began: give a new folder")
        return recipe, None if recipe.corpus == GRAMMAR else read_lines(str(corpus_file))

    def _corpus_digest(self, recipe: Recipe) -> str:
        """Return the SHA-256 of the corpus, in hexadecimal digits."""
        bundled = recipe.corpus == GRAMMAR
        data = (
            (FOLDER / SENTENCES).read_bytes() if bundled else read_bytes(self.path / "corpus.txt", limits.CORPUS_BYTES)
        )
        return hashlib.sha256(data).hexdigest()

    def checkpoint(self, training: Training) -> None:
        """Keep the weights of this step, and the state to continue from it."""
        weights = weights_file(training)
        write_whole(self.path / f"step-{training.step:06d}.safetensors", weights, inside=self.path)
        write_whole(self.path / "weights.safetensors", weights, inside=self.path)
        self.save_state(training)

    def save_state(self, training: Training) -> None:
        """Keep the state to continue from this step."""
        from safetensors.torch import save

        tensors = {f"weight/{name}": p.detach().cpu().contiguous() for name, p in training.parameters.items()}
        for name, parameter in training.parameters.items():
            state = training.optimizer.state.get(parameter, {})
            tensors |= {f"{kind}/{name}": value.cpu().contiguous() for kind, value in state.items()}
        write_whole(
            self.state,
            save(tensors, {"step": str(training.step), "losses": json.dumps(training.losses)}),
            inside=self.path,
        )

    def restore(self, training: Training) -> None:
        """Set a new training to the last saved state of this run; later reports are deleted."""
        import torch
        from safetensors import SafetensorError, safe_open

        if self.state.is_file():  # without it the run was stopped before its first step
            try:
                with safe_open(str(self.state), framework="pt") as file, torch.no_grad():
                    for name, parameter in training.parameters.items():
                        parameter.copy_(file.get_tensor(f"weight/{name}"))
                    for kind, _, name in (key.partition("/") for key in file.keys()):  # noqa: SIM118 - no dict
                        value, parameter = file.get_tensor(f"{kind}/{name}"), training.parameters[name]
                        if kind != "weight":  # state of the optimizer, whose steps stay on the CPU
                            value = value if kind == "step" else value.to(parameter.device)
                            training.optimizer.state[parameter][kind] = value
                    metadata = file.metadata()
                    training.step = int(metadata["step"])
                    training.losses = [float(loss) for loss in json.loads(metadata.get("losses", "[]"))]
            except (SafetensorError, RuntimeError, KeyError, IndexError, TypeError, ValueError) as error:
                raise AttnctlError(f"{self.state} does not fit its recipe: {in_one_line(error)}") from error
        reports = [line for line in reports_of(self.path) if line["step"] <= training.step]
        write_whole(self.path / "metrics.jsonl", b"".join(as_json(line) + b"\n" for line in reports), inside=self.path)

    def report(self, report: Document) -> Document:
        """Add a report to metrics.jsonl and return it."""
        with said_plainly("write", self.path), open_to_append(self.path / "metrics.jsonl") as file:
            file.write(as_json(report) + b"\n")
        return report


def weights_file(training: Training, **more: object) -> bytes:
    """Return the weights as a file, with the metadata to read them and their origin."""
    from safetensors.numpy import save

    recipe = training.recipe
    corpus = recipe.corpus if recipe.corpus == GRAMMAR else "text"
    metadata = {
        "tokens": list(training.corpus.vocabulary),
        "unknown": corpora.UNKNOWN,
        "n_heads": recipe.heads,
        "causal": recipe.causal,
        "scale": "auto",
        "residual": True,
        "objective": recipe.objective,
        "step": training.step,
        "recipe": asdict(replace(recipe, corpus=corpus)) | {"sentences": len(training.corpus.ids)},
        "made_by": f"attnctl {__version__}",
        "longest": training.corpus.length,
        "rope_theta": recipe.rope_theta,
        "tied": recipe.tied or None,
        "first_window": recipe.first_window,
        **more,
    }
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in metadata.items()
        if value is not None
    }
    arrays = {name: np.ascontiguousarray(array) for name, array in training.parameter_arrays().items()}
    if len(training.corpus.vocabulary) > HALVED:
        arrays = {
            name: array.astype(np.float16) if name in TABLES else np.round(array, DECIMALS)
            for name, array in arrays.items()
        }
    return _header_in_order(save(arrays, texts))


MEASURED_FROM = 1000  # a run of fewer steps has learned nothing worth measuring


def measure_run(
    training: Training, run: TrainingRun, measure: Callable[..., Sequence[Struct]]
) -> list[Document] | None:
    """Write what the heads of a finished run on the grammar learned into its weights, and return it; None for another run.

    `measure` is called with the model and `untrained_seed`, and returns a Struct for each relation.
    """
    if training.recipe.corpus != GRAMMAR or training.step < MEASURED_FROM:
        return None
    weights = run.path / "weights.safetensors"
    measured = measure(open_named_model(str(weights)), untrained_seed=training.recipe.seed)
    table = [structs.asdict(row) for row in measured]
    figures = {row["relation"]: row for row in table}
    write_whole(weights, weights_file(training, figures=figures), inside=run.path)
    return table


def _header_in_order(data: bytes) -> bytes:
    """Return a safetensors file with its header sorted by name, since the library's order varies."""
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # the tensors begin at a multiple of eight bytes
    return len(header).to_bytes(8, "little") + header + data[end:]


RANGES = {
    "layers": limits.TRAINED_LAYERS,
    "heads": limits.HEADS,
    "d_model": limits.SIZE,
    "steps": limits.STEPS,
    "batch_size": limits.STEP_SENTENCES,
    "lr": limits.LEARNING_RATE,
    "seed": limits.SEED,
    "min_length": limits.POSITIONS,
    "first_window": limits.WINDOW,
    "d_k": limits.SIZE,
    "rope_theta": limits.ROPE_THETA,
    "candidates": limits.TABLE_ROWS,
    "pieces": limits.TABLE_ROWS,
}


def checked_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe if it is possible. Raises UsageError naming the option that is not."""
    if recipe.objective not in DEFAULTS:
        kinds = " or ".join(sorted(DEFAULTS, reverse=True))
        raise UsageError(f"it is {kinds}", option="objective", value=recipe.objective)
    values, defaults = asdict(recipe), asdict(Recipe())
    for name, allowed in RANGES.items():
        if values[name] is not None or defaults[name] is not None:
            allowed.check_value(name.removeprefix("first_"), values[name])
    if recipe.rope_theta is not None and (recipe.d_k or recipe.d_model // recipe.heads) % 2:
        why = "RoPE turns pairs of dimensions, so d_model / heads must be even"
        raise UsageError(why, option="n_heads", value=recipe.heads)
    numbers = 4 * recipe.layers * recipe.d_model * max(recipe.d_model, recipe.heads * (recipe.d_k or 0))
    room = 16 * numbers  # each weight with its gradient and the two means of the optimizer
    limits.check_memory(room, f"a network of {numbers:,} weights", "ask for a smaller d_model, or fewer layers")
    return recipe


# --- new and resumed runs ---------------------------------------------------------------------------------


def recipe_of(corpus: str | None, settings: OptionValues) -> tuple[Recipe, list[str] | None]:
    """Return the recipe of these options, and the lines of the user's corpus (None: the grammar)."""
    objective = settings.get("objective", "next-word" if corpus else "masked-word")
    base = (OWN_TEXT if corpus else DEFAULTS).get(objective, OWN_TEXT["next-word"])
    name = GRAMMAR if corpus is None else corpus if corpus == "-" else os.path.realpath(corpus)
    recipe = checked_recipe(replace(base, corpus=name, **settings))
    return recipe, None if corpus is None else read_lines(corpus)


def recipe_to_train(
    run: TrainingRun, resume: bool, corpus: str | None, settings: OptionValues, stack: ExitStack
) -> tuple[Recipe, list[str] | None]:
    """Return recipe and lines of a new run, or of the run in the folder, which stays locked until `stack` ends."""
    if not resume:
        recipe, lines = recipe_of(corpus, settings)
        run.check_free()  # before the corpus is read, which may take a while
        return recipe, lines
    recipe, lines = run.recipe()
    stack.enter_context(run.locked())
    changed = {name: value for name, value in settings.items() if name in ("steps", "device")}
    return checked_recipe(replace(recipe, **changed)), lines
