"""The package in Python: what help and dir show, the commands as functions, and every misuse told by name."""

from __future__ import annotations

import doctest
import inspect
import pickle
import pkgutil
import pydoc
import re
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnctl
from attnctl.errors import AttnctlError
from attnctl.watched.effects import effects_to_json
from tests.conftest import SAMPLES, Run

TEXT = "Alice will eat pizza"
CORPUS = str(SAMPLES / "sentences.conllu")


def test_help_and_dir_show_the_api() -> None:
    assert {"attend", "heads", "AttnctlError", "Trace", "AttentionLog"} <= set(dir(attnctl))
    assert pickle.loads(pickle.dumps(attnctl.attend)) is attnctl.attend and inspect.isgeneratorfunction(attnctl.batch)
    told = pydoc.plain(pydoc.render_doc(attnctl))
    assert all(name in told for name in attnctl.__all__ if name != "__version__")
    assert "causal: 'bool | None' = None" in pydoc.plain(pydoc.render_doc(attnctl.attend))
    for name in ("attend", "batch", "heads", "spans", "view", "ablate", "sources", "evaluate", "open_model"):
        parameters = inspect.signature(getattr(attnctl, name)).parameters
        assert {"seed", "n_heads", "device"} <= set(parameters)
        assert all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values())


def test_no_module_bears_the_name_of_a_function() -> None:
    """Its import would put it in place of the function."""
    assert not {module.name for module in pkgutil.iter_modules(attnctl.__path__)} & set(attnctl.__all__)


COMPUTED = [*(f"commands.{name}.compute" for name in ("ablate", "compare", "drift", "heads", "view"))]


@pytest.mark.parametrize(
    "name", ["api.text_parts", "models", "batching.traces", "trace", "readings.overview", "formats.storage", *COMPUTED]
)
def test_examples_of_docstrings_run(name: str) -> None:
    module: Any = import_module(f"attnctl.{name}")
    assert doctest.testmod(module, extraglobs={"attnctl": attnctl}, optionflags=doctest.ELLIPSIS).failed == 0


WRONG_TYPES: list[tuple[Callable[[], object], str]] = [
    (lambda: attnctl.attend(5), "attend(): text is str, not int: 5"),
    (lambda: attnctl.attend(TEXT, 5), "model is a name, a path, an opened model or a transformers model, not int"),
    (lambda: attnctl.attend(TEXT, colour="red"), "unexpected keyword argument 'colour'"),
    (lambda: attnctl.attend(TEXT, "random", n_heads="3"), "n_heads is int, not str: '3'"),
    (lambda: attnctl.attend(TEXT, "random", seed=True), "seed is int, not bool"),
    (lambda: attnctl.attend(TEXT, layer="0"), "layer is int or list, not str"),
    (lambda: attnctl.attend(TEXT, head=[0.5]), "head is int, not float"),
    (lambda: attnctl.attend(TEXT, attnctl.open_model("random"), n_heads=2), "n_heads is for the name of a model"),
    (lambda: attnctl.heads(None), "text is a str or a Trace, not None"),
    (lambda: attnctl.compare("demo", "random"), "without a text, a is a Trace, not str"),
    (lambda: list(attnctl.batch([TEXT], "random", n_heads="2")), "batch(): n_heads is int"),
    (lambda: list(attnctl.batch(TEXT, "random")), "texts is a list of texts, not one str"),
    (lambda: attnctl.compare("dot", "random", TEXT).largest_difference("0"), "layer is int, not str: '0'"),
    (lambda: attnctl.open_model(3), "open_model(): name is str"),
    (lambda: made().layer([0]), "layer(): index is int, not list"),
    (lambda: made().headline(query="eat"), "headline(): query is int, not str: 'eat'"),
    (lambda: attnctl.heads(made(), "demo-causal"), "heads(): model is for a text, and this trace is computed already"),
    (lambda: attnctl.spans(made(), "words", n_heads=2), "spans(): n_heads is for a text, and this trace is computed"),
    (lambda: attnctl.view(made(), seed=3), "view(): seed is for a text, and this trace is computed already"),
    (lambda: made().save(3), "save(): path is str or path, not int: 3"),
    (lambda: made().figure(drop=[None]), "figure(): a key to drop is str, not NoneType"),
    (lambda: made().figure(dpi="x"), "figure(): dpi is int or float, not str: 'x'"),
    (lambda: made().figure(size=3), "figure(): size is tuple or list, not int: 3"),
    (lambda: made().figure(size=(3, 2, 1)), "figure(): size is (width, height) in inches, not (3, 2, 1)"),
    (lambda: made().figure(size=(3, "2")), "figure(): size is int or float, not str: '2'"),
]
WRONG_VALUES: list[tuple[Callable[[], object], str]] = [
    (lambda: attnctl.attend(""), "the text is empty"),
    (lambda: attnctl.attend(TEXT, "no-such-model"), "no model 'no-such-model'"),
    (lambda: attnctl.attend(TEXT, "random", tokenizer=Path("gone.json")), "gone.json"),
    (lambda: attnctl.attend(TEXT, "random", n_heads=-1), "n_heads=-1: it is 1 to"),
    (
        lambda: attnctl.attend(TEXT, "random", positions="x"),
        "positions='x': it is sinusoidal, rope or rope-interleaved",
    ),
    (
        lambda: attnctl.attend(TEXT, "random", rope_theta=1, d_k=3),
        "rotary positions turn pairs of dimensions, but d_k is 3: give an even d_k=",
    ),
    (lambda: attnctl.attend("a " * 30_000), "choose layers, heads and queries"),
    (lambda: attnctl.attend(TEXT, "random", dtype="half"), "dtype cannot be combined with model='random'"),
    (lambda: attnctl.attend(TEXT, "\ud800"), "no file has such a name"),
    (lambda: attnctl.load("\ud800"), ""),
    (lambda: attnctl.open_model("random", n_heads=5, n_kv_heads=2), "n_heads=5: it cannot share n_kv_heads=2 evenly"),
    (lambda: list(attnctl.batch([TEXT], "random", d_model=7, n_heads=3)), "give d_k= as well"),
    (lambda: attnctl.load("no-such-file.json"), "no-such-file.json"),
    (lambda: attnctl.compare("random", "demo", TEXT).largest_difference(layer=9), "no layer 9, head"),
    (lambda: attnctl.sources(TEXT, "demo"), "demo answers no prompts"),
    (lambda: attnctl.spans(TEXT, "no-such-file"), "no-such-file"),
    (lambda: attnctl.spans(TEXT, "headings"), "(any text has paragraphs)"),
    (lambda: list(attnctl.batch([TEXT], "random", batch_size=0)), "batch_size=0: it is 1 to 10,000 texts"),
    (lambda: attnctl.effects("demo", TEXT, batch_size=-1), "batch_size=-1: it is 1 to 10,000 texts"),
    (lambda: attnctl.evaluate(sentences=0), "sentences=0: it is 20 to 1,000 sentences"),
    (lambda: attnctl.evaluate(CORPUS, max_tokens=0), "max_tokens=0: it is 1 to"),
    (lambda: attnctl.align("a >> b", "random", gold_from=5), "gold_from=5: it is 0 to 1"),
    (lambda: made().headline(7), "layer 7 is not in this trace: it holds 0"),
    (lambda: made().headline(head=7), "head=7: this trace holds heads 0"),
    (lambda: made().headline(query=4), "query=4: the text has tokens 0 to 3"),
    (lambda: made().figure(vmin=float("nan")), "vmin=nan: it is -1e+06 to 1e+06"),
    (lambda: made().figure(vmax=float("inf")), "vmax=inf: it is -1e+06 to 1e+06"),
    (lambda: made().figure(vmin=3, vmax=1), "vmin=3: it is not below vmax=1"),
]


@cache
def made() -> attnctl.Trace:
    return attnctl.attend(TEXT, "random")


@pytest.mark.parametrize(("call", "says"), WRONG_TYPES)
def test_an_argument_of_another_type_is_named(call: Callable[[], object], says: str) -> None:
    with pytest.raises(TypeError, match=re.escape(says)):
        call()


@pytest.mark.parametrize(("call", "says"), WRONG_VALUES)
def test_what_cannot_be_is_said_of_the_argument_in_one_line(call: Callable[[], object], says: str) -> None:
    """The command line says it of its option: --positions."""
    with pytest.raises(AttnctlError) as error:
        call()
    said = str(error.value)
    assert says in said and "--" not in said and "\n" not in said


def test_functions_answer_what_the_commands_print(tmp_path: Path) -> None:
    trace = attnctl.attend(TEXT, "random", n_heads=2)
    facts = attnctl.heads(TEXT, "random", n_heads=np.int64(2))
    stored = [fact.values["entropy"] for fact in attnctl.heads(trace)]
    np.testing.assert_allclose(stored, [fact.values["entropy"] for fact in facts], rtol=1e-5)
    assert repr(facts[1]).startswith("HeadStatistics of layer 0, head 1: entropy ")
    pair = attnctl.compare(trace, attnctl.attend(TEXT, "random", n_heads=2, seed=1), names=("one", "two"))
    assert pair.names == ("one", "two") and pair.both_weights(0, 1)[0].shape == (4, 4)
    grid = attnctl.spans("One.\nTwo two.\n", "lines", "random").grid
    np.testing.assert_allclose(grid.weights[0, 0].sum(-1), 1, atol=1e-5)
    html = attnctl.view(trace, attnctl.attend(TEXT, "random", n_heads=2, seed=1), output=tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == html
    effects = attnctl.ablate("Alice will eat", "demo", n_layers=None)
    assert len(effects.heads) == 12 and repr(effects) == "Effects in 'Alice will eat' by demo: 12 heads"


def test_python_ablates_as_the_command_does(run: Run, tmp_path: Path) -> None:
    """Python's function had neither layers nor edges, spans, a reference, heads off, or the first order."""
    (tmp_path / "texts.txt").write_text("Bob will drink\nEve will sing\n")
    texts = tmp_path / "texts.txt"
    for more, options in (
        ("--layer 1 --head 0", {"layer": 1, "head": [0]}),
        ("--edge eat→Alice --edge 2>1", {"edge": ["eat→Alice", "2>1"]}),
        ("--spans lines", {"spans": "lines"}),
        (f"--how mean --reference {texts}", {"how": "mean", "reference": texts}),
        ("--edges --off 0.1", {"edges": True, "off": "0.1"}),
        ("--target pizza --against cake --query eat", {"target": "pizza", "against": "cake", "query": 2}),
    ):
        shown = run("ablate", "Alice will eat", *more.split(), "--model", "demo-causal", "--json")
        found = attnctl.ablate("Alice will eat", "demo-causal", **options)
        assert shown.out == f"{effects_to_json(found).decode()}\n", more


def test_every_value_shows_itself_in_one_short_line() -> None:
    trace = attnctl.attend("Alice", "random", n_heads=2)
    for value, expected in (
        (trace, "Trace of 'Alice' by random: 1 token, 1 layer, 2 heads"),
        (attnctl.spans("A b.\n" * 20, "lines", "random"), r"Overview of 'A b.\nA b."),
        (attnctl.spans("a b c", model="random"), "Overview of 'a b c' by random: 3 tokens, a grid"),
        (attnctl.compare(trace, trace), "Comparison of random and random, 2 heads of both: 'Alice'"),
        (attnctl.open_model("demo"), "Stack demo: 2 layers, 6 heads"),
    ):
        assert repr(value).startswith(expected) and len(repr(value)) < 200 and "\n" not in repr(value)


GIVEN: dict[str, dict[str, Any]] = {
    "attend": {"text": TEXT, "model": "random"},
    "heads": {"text": TEXT, "model": "random"},
    "spans": {"text": "One.\nTwo.", "kind": "lines", "model": "random"},
    "compare": {"a": "random", "b": "dot", "text": TEXT},
    "drift": {"a": "demo", "b": "demo-causal", "texts": TEXT},
    "view": {"text": TEXT, "model": "random"},
    "ablate": {"text": "Alice will eat", "model": "random"},
    "sources": {"prompt": TEXT, "model": "demo"},
    "evaluate": {"corpus": "one.conllu", "model": "random", "sentences": 20},
    "load": {"path": "no-such-file.json"},
    "open_model": {"name": "random"},
    "batch": {"texts": [TEXT], "model": "random"},
    "capture": {"model": None},
    "effects": {"model": None, "inputs": TEXT},
    "intervene": {"model": None},
}
WRONG = [
    -1,
    5,
    1.5,
    b"x",
    "",
    "\udcff",
    "\ud800",
    "nope",
    [5.5],
    ["a"],
    {},
    object(),
    np.zeros((2, 2)),
    (),
    None,
    "a" * 5000,
]


@pytest.mark.grid
@pytest.mark.parametrize("function", GIVEN)
def test_no_argument_is_an_error_of_ours(function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where view writes what is called "nope"
    sentence = "1\tBob\tBob\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tsings\tsing\tVERB\t_\t_\t0\troot\t_\t_\n\n"
    Path("one.conllu").write_text(sentence)
    called = getattr(attnctl, function)
    assert function in ("capture", "effects", "intervene", "load", "sources") or called(**GIVEN[function])
    for parameter in inspect.signature(called).parameters:
        for wrong in WRONG:
            try:
                answer = called(**GIVEN[function] | {parameter: wrong})
                list(answer) if function == "batch" else None
                if function in ("capture", "intervene"):
                    with answer:
                        pass
            except AttnctlError as error:
                assert "\n" not in str(error)
            except TypeError as error:
                assert parameter in str(error) or "model" in str(error), (parameter, wrong, str(error))


def test_numbers_of_numpy_are_numbers() -> None:
    zero, trace = np.int64(0), attnctl.attend(TEXT, "random", scale=np.float32(0.5), n_layers=np.int32(2))
    assert trace.model.scale == 0.5
    assert attnctl.attend(TEXT, "random", layer=zero, head=[zero]).to_json()
    assert len(attnctl.heads(TEXT, "random", layer=zero, head=zero)) == 1
    assert len(list(attnctl.batch([TEXT], "random", layer=zero))) == 1
    trace.figure(layer=zero, vmin=np.float64(0), vmax=trace.layers[0].weights.max(), dpi=np.int64(100))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: attnctl.attend("a b", query="--head"), "query='--head': no token has this text"),
        (lambda: attnctl.attend("a b", query="the --layer of"), "query='the --layer of': no token has this text"),
        (lambda: attnctl.attend("a b", "--heads --query"), "no model '--heads --query'"),
        (lambda: attnctl.load(Path("no/--head")), "cannot read no/--head"),
        (lambda: attnctl.attend("a --heads b", "gpt2", n_heads=2), "n_heads cannot be combined with model='gpt2'"),
    ],
)
def test_what_the_user_wrote_is_quoted_as_it_is(call: Callable[[], object], says: str) -> None:
    with pytest.raises(AttnctlError) as error:
        call()
    assert says in str(error.value)
