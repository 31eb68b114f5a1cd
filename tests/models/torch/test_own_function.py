"""`--model file.py:function`: what it may call, what it reads, and which commands work with it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import attnctl
from attnctl.checks.own_functions import names_function
from attnctl.commands.docs.site import FOLDER
from attnctl.models import check
from attnctl.models.check import check_attention
from attnctl.models.torch.module_model import ModuleModel
from attnctl.source import record_trace
from attnctl.trace.steps import walk_steps
from tests.conftest import SAMPLES, Refused, Run

TINY = f"{SAMPLES / 'own_model' / 'tiny.py'}:build"
OWN = """
import torch
from torch import nn

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attend, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x, scale=1.0):
        return self.head(self.attend(x, x, x, need_weights=False)[0].mean(1))

def vectors(text):
    return torch.randn(1, len(text.split()), 8, generator=torch.Generator().manual_seed(1))

def with_function():
    return Own(), vectors

class Rows(Own):
    def forward(self, x):
        return self.head(self.attend(x, x, x, need_weights=False, attn_mask=torch.ones(4, 4).triu(1).bool())[0])

def with_rows():
    return Rows(), vectors

def with_names():
    return Own(), lambda text: {"x": vectors(text), "scale": 2.0}

def alone():
    return Own()

def number():
    return 3

def raises():
    return {}["a key of mine"]

def raises_later():
    return Own(), lambda text: vectors(text)[0, 0, 0, 0]

def without():
    return nn.Linear(8, 8), vectors

class Copies(nn.Module):
    # looks for the last three letters in the text before, and says what followed them
    def forward(self, ids):
        n = ids.shape[1]
        letters = nn.functional.one_hot(ids, 256).float()
        back = [nn.functional.pad(letters, (0, 0, k, 0))[:, :n] for k in range(4)]
        scores = 20 * torch.cat(back[:3], -1) @ torch.cat(back[1:], -1).mT
        return 30 * (scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf).softmax(-1) @ letters)

class Letters:
    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")

def copies():
    return Copies(), Letters()

class Mean(Copies):
    def forward(self, ids):
        return super().forward(ids).mean(1)

def with_letters():
    return Mean(), Letters()

NAME = "no function"
"""
COPIES = "mine.py:copies"
NEEDLE = ["--needle", "The secret word. Answer: violet.", "--question", "What is the word?", "--expect", "violet"]
NEEDLE += ["--lengths", "200", "--depths", "50"]


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_models").mkdir()
    (tmp_path / "own_models" / "mine.py").write_text(OWN)
    (tmp_path / "mine.py").write_text(OWN)


def test_the_numbers_are_those_of_the_module(run: Run, tmp_path: Path) -> None:
    assert run("explain", "eat pizza", "--model", TINY, "--json", "-o", "out.json").code == 0
    trace = attnctl.load("out.json")
    import importlib.util

    spec = importlib.util.spec_from_file_location("tiny", SAMPLES / "own_model" / "tiny.py")
    tiny = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tiny)
    model, tokenizer = tiny.build()
    with torch.no_grad(), attnctl.capture(model.eval()) as traces:
        logits = model(torch.tensor([tokenizer.encode("eat pizza")]))
    for layer, call in zip(trace.layers, traces, strict=True):
        assert abs(torch.as_tensor(layer.weights) - call.weights[0]).max() < 1e-6
    assert [token.text for token in trace.tokens][:3] == ["e", "a", "t"]
    assert trace.model.kind == "module"
    assert trace.predictions[0].id == int(logits[0, -1].argmax())


@pytest.mark.parametrize("function", ["mine.py:with_function", "mine.py:with_names", "own_models.mine:with_function"])
def test_a_function_from_text_to_inputs(run: Run, function: str) -> None:
    shown = run("explain", "a b c", "--model", function, "--layer", "all")
    assert shown.code == 0 and "Own" in shown.out


def test_a_head_that_is_ablated_is_one_without_its_output_projection(run: Run) -> None:
    """The columns of W_O that read the head are set to 0 by hand."""
    from samples.own_model.tiny import build

    done = run("ablate", "eat pizza", "--model", TINY, "--target", "z", "--json")
    effects = {(one["layer"], one["head"]): one["log_probability"] for one in json.loads(done.out)["heads"]}
    assert len(effects) == 8

    def log_probability(layer: int, head: int) -> float:
        model, tokenizer = build()
        with torch.no_grad():
            if layer >= 0:
                model.layers.layers[layer].self_attn.out_proj.weight[:, 8 * head : 8 * head + 8] = 0
            logits = model.eval()(torch.tensor([tokenizer.encode("eat pizza")]))[0, -1]
        return float(logits.double().log_softmax(-1)[ord("z")])

    base = log_probability(-1, 0)
    for (layer, head), effect in effects.items():
        assert effect == pytest.approx(log_probability(layer, head) - base, abs=1e-5)


def test_what_cannot_be_ablated_is_one_line(refused: Refused) -> None:
    assert "it is 2 tokens" in refused("ablate", "eat pizza", "--model", TINY, "--target", "zz", code=2)
    assert "known only once it ran" in refused("explain", "eat pizza", "--model", TINY, "--off", "0.0", code=2)
    assert "is for checkpoints" in refused("ablate", "eat pizza", "--model", TINY, "--approximate", code=2)
    assert "no logits for each token" in refused("ablate", "a b c", "--model", "mine.py:with_function")


def test_it_is_called_only_where_it_is_typed(run: Run, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNCTL_MODEL", "mine.py:with_function")
    assert "only where it is typed" in refused("explain", "a b c", code=2)
    assert run("explain", "a b c", "--model", "mine.py:with_function").code == 0
    monkeypatch.delenv("ATTNCTL_MODEL")
    with pytest.raises(attnctl.AttnctlError, match="in Python call it"):
        attnctl.open_model("mine.py:with_function")
    with pytest.raises(attnctl.AttnctlError, match="in Python call it"):
        attnctl.attend("a b c", model="mine.py:with_function")


def test_a_batch_file_calls_nothing(run: Run) -> None:
    Path("texts.jsonl").write_text('{"text": "a b", "model": "mine.py:raises"}\n')
    done = run("batch", "texts.jsonl", "-o", "out.jsonl")
    assert "a key of mine" not in done.err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no.py:build", "there is no file no.py"),
        ("mine.py:with_functon", "did you mean with_function?"),
        ("mine.py:NAME", "has no function NAME"),
        ("own_models.none:build", "there is no module own_models.none"),
        ("mine.py:number", "returned int"),
        ("mine.py:alone", "reads no text"),
        ("mine.py:without", "no attention of Linear was seen"),
    ],
)
def test_what_is_wrong_is_one_line(run: Run, name: str, message: str) -> None:
    done = run("explain", "a b c", "--model", name)
    assert done.code in (1, 2) and message in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("name", ["mine.py:raises", "mine.py:raises_later"])
def test_an_exception_of_the_function_has_its_own_traceback(run: Run, name: str) -> None:
    done = run("explain", "a b c", "--model", name)
    first, *rest = done.err.splitlines()
    assert first.startswith(f"attnctl: {name} raised")
    assert rest[0].startswith("Traceback") and "mine.py" in done.err
    assert "own_function.py" not in done.err


@pytest.mark.parametrize(
    ("name", "is_function"),
    [
        ("file.py:build", True),
        ("folder/file.py:build", True),
        ("C:\\folder\\file.py:build", True),
        ("package.module:build", True),
        ("a:b.py:build", True),
        ("package:build", False),
        ("owner/name:Q4", False),
        ("owner/na.me:Q4_K", False),
        ("ollama:some.model:latest", False),
        ("file.py", False),
        ("file.py:", False),
        ("file.py:a-b", False),
        ("demo", False),
    ],
)
def test_names_of_functions(name: str, is_function: bool) -> None:
    assert names_function(name) == is_function


TABLE = re.findall(
    r"^\| `(\w+)` \| (yes|no)[^|]*\| (yes|no)", (FOLDER / "own-model.md").read_text(encoding="utf-8"), re.M
)
ARGUMENTS = {
    "heatmap": ["a b c", "-o", "map.png"],
    "view": ["a b c", "-o", "page.html"],
    "batch": ["texts.txt"],
    "leaks": ["batch.json", "--expect", "causal"],
    "needle": NEEDLE,
}


@pytest.mark.grid
@pytest.mark.parametrize("model", [TINY, "mine.py:with_function"])
@pytest.mark.parametrize(("command", "first", "second"), TABLE)
def test_the_table_of_commands(run: Run, command: str, first: str, second: str, model: str) -> None:
    Path("texts.txt").write_text("a b c\nd e f\n")
    Path("batch.json").write_text('{"input_ids": [[1, 2, 3, 4]]}')
    if command == "leaks" and model != TINY:
        Path("batch.json").write_text(json.dumps({"x": torch.randn(1, 4, 8).tolist()}))
        model = "mine.py:with_rows"
    model = COPIES if command == "needle" and model == TINY else model  # it answers
    done = run(command, *ARGUMENTS.get(command, ["a b c"]), "--model", model)
    works = first if model in (TINY, COPIES) else second
    if works == "yes":
        assert done.code == 0, done.err
    else:
        assert done.code in (1, 2) and done.err.count("\n") == 1
        assert "Traceback" not in done.err


def test_a_module_that_copies_finds_the_needle(run: Run) -> None:
    """Of the 24 letters of its answer, the 8 of " violet." are copied from the needle, by its one head."""
    done = run("needle", *NEEDLE, "--model", "mine.py:copies", "--switch-off", "1", "--json")
    assert done.code == 0, done.err
    cell, summary = map(json.loads, done.out.splitlines())
    assert done.code == 0 and cell["answered"] and cell["answer"].startswith(" violet.") and len(cell["answer"]) == 24
    assert summary["retrieval_heads"] == [{"layer": 0, "head": 0, "score": pytest.approx(8 / 24)}]
    assert cell["found"] == pytest.approx(8 / 24, abs=1e-3)
    assert summary["off"]["answered"] == 0 and summary["off"]["asked"] == 1


def test_what_answers_no_needle_is_one_line(refused: Refused) -> None:
    assert "answers no questions" in refused("needle", *NEEDLE, "--model", "mine.py:with_function", code=2)
    assert "no logits for each token" in refused("needle", *NEEDLE, "--model", "mine.py:with_letters")


def test_the_table_is_whole() -> None:
    assert len(TABLE) == 12


def biased(scores: torch.Tensor) -> torch.Tensor:
    return (scores + torch.randn(scores.shape, generator=torch.Generator().manual_seed(2))).softmax(-1)


def capped(scores: torch.Tensor) -> torch.Tensor:
    return (0.5 * torch.tanh(scores / 0.5)).softmax(-1)


def squared(scores: torch.Tensor) -> torch.Tensor:
    """Rows of shares that no softmax gave, some of them 0 (as entmax 1.3 makes them)."""
    shares = scores.relu() ** 2 + 1e-6
    return shares / shares.sum(-1, keepdim=True)


class Scored(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.function, self.qkv = function, torch.nn.Linear(8, 24)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.function(2 * q @ k.mT) @ v


def scored(function) -> ModuleModel:
    def vectors(text: str) -> torch.Tensor:
        return torch.randn(1, len(text.split()), 8, generator=torch.Generator().manual_seed(1))

    return ModuleModel.of_parts(Scored(function).eval(), vectors, "Scored")


TEXT = "one two three four"


@pytest.mark.parametrize("function", [biased, capped, squared])
def test_a_check_holds_whatever_a_module_does_to_its_scores(function) -> None:
    findings = check_attention(scored(function), TEXT)
    assert not [finding for finding in findings if finding.holds is False]
    assert [finding.holds for finding in findings if finding.sentence == check.CONTEXT] == [True]
    assert [finding.holds for finding in findings if finding.sentence.startswith("context against")] == [True]


@pytest.mark.parametrize(("name", "title"), [("weights", check.CONTEXT), ("scaled_scores", check.FUSED)])
def test_a_check_of_a_module_finds_what_is_wrong(name: str, title: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*args, **keywords):
        trace = record_trace(*args, **keywords)
        (layer,) = trace.layers
        return replace(trace, layers=(replace(layer, **{name: getattr(layer, name)[:, ::-1].copy()}),))

    monkeypatch.setattr(check, "record_trace", wrong)
    findings = check_attention(scored(biased), TEXT)
    assert [finding.sentence for finding in findings if finding.holds is False] == [title]


@pytest.mark.parametrize("function", [biased, squared])
def test_steps_say_that_the_code_of_a_module_made_the_numbers(function) -> None:
    trace = record_trace(scored(function), TEXT)
    formulas = {step.name: step.formula for step in walk_steps(trace, heads=[0])}
    assert formulas["weights"] == ("weights = softmax(scaled scores)" if function is biased else "weights")
    assert ("scaled" in formulas) == (function is biased)
    if function is biased:
        assert "×" not in formulas["scaled"] and "/" not in formulas["scaled"]


def test_a_function_that_names_no_tokens_is_no_tokenizer(run: Run) -> None:
    """Five tokens for three words: the letters were not dropped by anything."""
    Path("letters.py").write_text(
        OWN + "\ndef letters():\n    return Own(), lambda text: torch.randn(1, len(text), 8)\n"
    )
    out = " ".join(run("explain", "a b c", "--model", "letters.py:letters").out.split())
    assert "dropped letters" not in out
    assert "The function that gives Own its inputs names no tokens" in out
    assert "names no tokens" not in " ".join(run("explain", "a b c", "--model", "mine.py:with_function").out.split())
