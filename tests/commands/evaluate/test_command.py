"""`attnctl evaluate CORPUS` from outside: the planted grammar, its files, going on, and every kind of bad input."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from attnctl.batching.items import Item
from attnctl.commands.evaluate.bundled import treebank_text
from attnctl.commands.evaluate.compute import TOGETHER, census_chunks
from tests.batching.test_damage import check_a_damaged_part
from tests.cli.test_screens import RANDOM, SMALL, check_screen
from tests.conftest import SAMPLES, Refused, Run, check_schema, process
from tests.formats.test_conllu import GOOD
from tests.tools.screen import cells

SENTENCES = str(SAMPLES / "sentences.conllu")


@pytest.fixture(scope="module")
def grammar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "grammar.conllu"
    path.write_text(treebank_text(100), encoding="utf-8")
    return path


def table(path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(Path(path).read_text())))


def rows(document: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["relation"], row["direction"].partition("→")[0]): row for row in document["relations"]}


def test_the_grammar_as_a_corpus_gives_the_numbers_of_the_built_in_table(run: Run, grammar: Path) -> None:
    built_in = {
        r["relation"]: r for r in map(json.loads, run("evaluate", "--sentences", "100", "--json").out.splitlines())
    }
    result = run("evaluate", grammar, "--untrained", "--json", "-o", "c.json")
    assert (result.code, result.err) == (0, "")
    assert check_schema(result.json) == "census"
    found = rows(result.json)
    for relation, key in (
        ("object → verb", ("obj", "dependent")),
        ("verb → subject past others", ("nsubj:past", "head")),
        ("pronoun → antecedent", ("dep:antecedent", "dependent")),
    ):
        own, wanted = found[key], built_in[relation]
        best = own["best"]
        # a word has one head in a tree, so of two links to one word one is turned round: a few cases fewer
        assert best["scored_on"] == pytest.approx(wanted["links"], rel=0.25)
        assert own["untrained"]["accuracy"] < best["accuracy"] + 0.1
        if (best["layer"], best["head"]) == (wanted["layer"], wanted["head"]):
            assert best["accuracy"] == pytest.approx(wanted["held_out"], abs=0.1)
    told = " ".join(run("heads", "Alice will eat pizza", "--census", "c.json").out.split())
    assert told.endswith("what the census found, and how often it was right there; nothing of this text.")
    assert "evaluation" not in told  # whose names are not in this table


def test_the_screen_of_heads_called_after_a_census(room: Path) -> None:
    check_screen(f'heads "Alice will eat" {SMALL} --census census.json', [RANDOM], room)


def test_of_a_few_sentences_all_relations_together_have_their_lines(run: Run) -> None:
    sentences = Path(SENTENCES).read_text().split("\n\n")
    for count, listed, said in ((3, 2, "--least 1 shows them"), (1, 0, "the sentences are too few for that")):
        Path("few.conllu").write_text("\n\n".join(sentences[:count]) + "\n\n")
        out = run("evaluate", "few.conllu").out
        assert len(re.findall("^all +→", out, re.MULTILINE)) == listed and said in " ".join(out.split())


def test_every_rule_has_a_column_of_its_own(run: Run) -> None:
    document = run("evaluate", SAMPLES / "documents.conllu", "--json", "-o", "c.csv").json
    found = {(row["relation"], row["direction"]): row for row in table("c.csv") if row["best"] == "True"}
    for row in document["relations"]:
        if "best" not in row:
            continue
        own = found[row["relation"], row["direction"]]
        told = {name: own[f"{name}_accuracy"] for name in ("offset", "nearest", "head_match", "first")}
        assert {name: float(text) for name, text in told.items() if text} == {
            name: pytest.approx(rule["accuracy"], rel=1e-5) for name, rule in row["rules"].items()
        }
        best = row["best"]
        numbers = tuple(float(own[f"best_{name}"]) for name in ("accuracy", "low", "high"))
        assert numbers == pytest.approx((best["accuracy"], *best["interval"]), rel=1e-5)
        assert own["beats_rules"] == str(best["beats_rules"]) and int(own["best_scored_on"]) == best["scored_on"]
    mention = found["coreference", "mention→antecedent"]
    assert (mention["offset"], mention["offset_accuracy"]) == ("", "") and mention["head_match_accuracy"]


def test_every_number_as_csv_parquet_json_and_pictures(run: Run) -> None:
    """A stored census gives what counting gives."""
    import pyarrow.parquet as pq

    names = ("c.json", "c.csv", "c.parquet", "c.png", "c.svg", "c.html")
    shown = run("evaluate", SENTENCES)
    for source in (SENTENCES, "c.json"):
        made = run("evaluate", source, *(part for name in names for part in ("-o", f"new-{name}")))
        assert made == shown
        for name in names:
            if source == "c.json":
                assert Path(f"new-{name}").read_bytes() == Path(name).read_bytes(), name
            Path(f"new-{name}").rename(name)
    document = json.loads(Path("c.json").read_text())
    found = {(row["relation"], row["direction"], row["layer"], row["head"]): row for row in table("c.csv")}
    assert len(found) == len(document["heads"]) * (len(document["relations"]) + 1)
    own, line = rows(document)["obj", "dependent"], found["obj", "dependent→head", "0", "3"]
    assert (int(line["correct"]), int(line["cases"])) == (own["correct"][0][3], own["cases"])
    assert pq.read_table("c.parquet").num_rows == len(found)
    assert Path("c.png").read_bytes()[:4] == b"\x89PNG" and b"nsubj" in Path("c.html").read_bytes()
    assert run("evaluate", "c.json", "--cmap", "magma", "--title", "Ours", "-o", "other.svg").code == 0
    assert "Ours" in Path("other.svg").read_text() and "Ours" not in Path("c.svg").read_text()
    for options in (("--json",), ("--subtypes", "--least", "5")):
        assert run("evaluate", "c.json", *options) == run("evaluate", SENTENCES, *options)


def test_an_interrupted_folder_goes_on_and_ends_the_same(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnctl.batching.folder.GROUP", 4)
    monkeypatch.setattr("attnctl.commands.evaluate.compute.TOGETHER", 4)
    Path("a.conllu").write_text(Path(SENTENCES).read_text())
    args = ("evaluate", "a.conllu", "--json")
    whole, again = run(*args).out, (*args, "-o", "a")
    assert run(*again).out == whole == Path("a/census.json").read_text()
    manifest = Path("a/manifest.jsonl")
    lines = manifest.read_bytes().splitlines(keepends=True)
    assert len(lines) == 12
    manifest.write_bytes(b"".join(lines[:6]) + lines[6][:30])  # killed in the midst of a line of the second group
    Path("a/census.json").unlink()
    assert run(*again).out == whole
    assert run(*again).out == whole  # nothing left to do
    for file in Path("a/.tallies").iterdir():
        file.unlink()
    assert run(*again).out == whole
    other = run("evaluate", "a.conllu", "--untrained", "-o", "a")
    assert other.code == 2 and "differs in untrained" in other.err
    Path("b.conllu").write_text(Path("a.conllu").read_text().partition("\n\n")[2])
    other = run("evaluate", "b.conllu", "-o", "a")
    assert other.code == 2 and "holds results of a.conllu: give a new folder, or --replace" in other.err
    assert run(*again).out == whole  # and is as it was
    assert run("evaluate", "b.conllu", "--json", "-o", "a", "--replace").code == 0
    found = json.loads(Path("a/census.json").read_text())
    assert found["sentences"]["read"] == json.loads(whole)["sentences"]["read"] - 1


def test_sentences_share_a_pass_with_the_same_wherever_a_run_goes_on() -> None:
    items = [Item(number, "x", "w" * (1 + 37 * number % 900)) for number in range(3 * TOGETHER)]
    chunks = [[item.number for item in chunk] for chunk in census_chunks(items)]
    assert len(chunks) > 6 and sum(chunks, []) == list(range(3 * TOGETHER))
    for begin in (0, TOGETHER, 2 * TOGETHER):  # a folder holds whole groups of so many
        again = [[item.number for item in chunk] for chunk in census_chunks(items[begin:])]
        assert again == chunks[-len(again) :]


def test_what_cannot_be_used_is_counted_and_named_and_the_rest_goes_on(run: Run) -> None:
    cycle, range_ = GOOD.replace("\t4\tnsubj", "\t1\tnsubj"), GOOD.replace("\t4\tnsubj", "\t9\tnsubj")
    long = "\n".join(f"{at}\tword\t_\tX\t_\t_\t{at - 1}\t{'root' if at == 1 else 'x'}\t_\t_" for at in range(1, 700))
    blocks = [GOOD, cycle, range_, "no CoNLL-U at all", long, GOOD.replace("It", "It\ufffd", 1), GOOD]
    Path("bad.conllu").write_bytes("\n\n".join(blocks).encode() + b"\n\n1\t\xff\n")
    how = ("--json", "--model", "random", "--heads", "2")
    result = run("evaluate", "bad.conllu", *how)
    assert result.code == 3
    wanted = {"cycle": 1, "head out of range": 1, "no CoNLL-U": 1, "not UTF-8": 1, "not aligned": 1, "too long": 1}
    assert result.json["sentences"] == {"read": 8, "used": 2, "skipped": wanted}
    assert "bad.conllu, line 11): cycle: word 1 is" in result.err
    assert "too long: 699 tokens are more than --max-tokens 512" in result.err
    assert "6 of 8 sentences were left out" in result.err.splitlines()[-1]
    piped = process("evaluate", "-", *how, input=Path("bad.conllu").read_bytes())
    assert json.loads(piped.stdout) == result.json | {"corpus": "standard input"}


def test_the_corpus_written_is_read_by_other_libraries(run: Run) -> None:
    import conllu

    assert run("evaluate", "-o", "made.conllu", "--sentences", "30").code == 0
    sentences = conllu.parse(Path("made.conllu").read_text())
    assert len(sentences) == 60 and sum(one.metadata["census"] == "choose" for one in sentences) == 30
    assert all(one.to_tree() for one in sentences)


@pytest.mark.parametrize(("case", "causal"), [("llama", True), ("bert", False)])
def test_a_checkpoint_counts_the_same_alone_and_in_company(run: Run, room: Path, case: str, causal: bool) -> None:
    pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
    args = ("evaluate", SENTENCES, "--model", room / case, "--json")
    together, again, alone = run(*args), run(*args, "--untrained"), run(*args, "--batch-size", "1")
    assert [result.code for result in (together, again, alone)] == [0, 0, 0]
    assert together.json["causal"] is causal and together.json["sentences"]["used"] == 12
    for row, other in zip(together.json["relations"], alone.json["relations"], strict=True):
        assert row["correct"] == other["correct"]
    untrained = {key: row.get("untrained") for key, row in rows(again.json).items()}
    assert untrained["all", "dependent"] and again.json["uuas"]["untrained"]
    assert run(*args, "--untrained").out == again.out  # its parameters are seeded
    off = run(*args, "--untrained", "--off", "0.1").json
    assert off["model"].endswith("without 0.1") and off["uuas"]["untrained"]


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_ray_cluster_counts_the_same(run: Run, grammar: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="attnctl[ray] is not installed")
    args = ("evaluate", grammar, "--json")
    result = run(*args, "--ray", "local", "--jobs", "2", "-o", tmp_path / "out")
    assert (result.code, result.out) == (0, run(*args).out)
    assert run(*args, "-o", tmp_path / "out").out == result.out  # and the folder goes on anywhere


def test_what_is_no_corpus_is_told_in_few_lines(run: Run) -> None:
    """In a folder the tally, which counts nothing, could not be written; a story was told sentence by sentence."""
    Path("x.conllu").write_text("1\n\n" * 3)
    for _ in range(2):
        assert run("evaluate", "x.conllu", "--model", "random", "-o", "out").err.splitlines()[-1] == (
            "attnctl: x.conllu: not one sentence could be used (no CoNLL-U 3)"
        )
    assert Path("out/manifest.jsonl").read_bytes().count(b"\n") == 3
    Path("story.txt").write_text("It was a morning.\n\n" * 24)
    said = run("evaluate", "story.txt", "--model", "random").err.splitlines()
    assert len(said) == 2 and "line 1 has 1 column instead of 10" in said[0], said
    assert said[1] == "attnctl: story.txt: not one sentence could be used (no CoNLL-U 24)"
    Path("story.txt").write_text("It was a morning.\n\n" * 24 + Path(SENTENCES).read_text())
    said = run("evaluate", "story.txt", "--model", "random").err.splitlines()
    assert sum("column instead of 10" in line for line in said) == 20 and any("… and 4 more" in line for line in said)


def test_the_table_of_the_demo_holds_the_numbers_of_its_json(run: Run) -> None:
    found = [json.loads(line) for line in run("evaluate", "demo", "--sentences", "60", "--json").out.splitlines()]
    heading, *lines = cells(run("evaluate", "demo", "--sentences", "60", columns=120).out)
    assert heading == [
        "relation",
        "head",
        "held out",
        "unseen",
        "by hand",
        "goal",
        "untrained",
        "offset",
        "nearest",
        "first",
        "n",
    ]
    shares = ("held_out", "unseen", "by_hand", "untrained", "by_offset", "by_nearest", "by_first")
    for one, line in zip(found, lines, strict=False):
        told = {name: f"{100 * one[name]:.1f} %" for name in shares}
        wanted = [one["relation"], f"{one['layer']}.{one['head']}", told["held_out"], told["unseen"], told["by_hand"]]
        wanted += [f"{100 * one['goal']:.0f} %", told["untrained"], f"{told['by_offset']} ({one['offset']:+d})"]
        assert line == [*wanted, told["by_nearest"], told["by_first"], str(one["links"])]
    assert len(found) == 10


@pytest.mark.parametrize("more", [(), ("--untrained",)])
def test_each_row_of_a_census_holds_the_numbers_of_its_json(more: tuple[str, ...], run: Run) -> None:
    corpus = str(SAMPLES / "documents.conllu")
    document = run("evaluate", corpus, *more, "--json").json
    screen = run("evaluate", corpus, *more, "--subtypes", "--least", "1").out
    lines = [line.split() for line in screen.replace("–100", "– 100").splitlines()]
    signs = {"before": "<", "behind": ">", "either": ""}
    counted = 0
    for row in document["relations"]:
        if "best" not in row:
            continue
        best, rules = row["best"], row["rules"]
        side = row["direction"].partition("→")[2]
        wanted = [row["relation"], "→", {"head": "head", "dependent": "dep", "antecedent": "ante"}[side]]
        wanted += [f"{best['layer']}.{best['head']}", f"{100 * best['accuracy']:.1f}"]
        low, high = (f"{100 * x:.0f}" for x in best["interval"])
        wanted += [f"{low}–", high] if high == "100" else [f"{low}–{high}"]
        wanted += [f"{100 * max(rule['accuracy'] for rule in rules.values()):.1f}"]
        if "offset" in rules:
            nearest = rules["nearest"]
            wanted += [f"{100 * rules['offset']['accuracy']:.1f}", f"{rules['offset']['offset']:+d}"]
            wanted += [f"{100 * nearest['accuracy']:.1f}", signs[nearest["side"]] + nearest["tag"][:4]]
        else:
            wanted[0] = row["relation"].rpartition(":")[2]
            wanted += [f"{100 * rules[name]['accuracy']:.1f}" for name in ("head_match", "nearest")]
        wanted += [f"{100 * rules['first']['accuracy']:.0f}"]
        wanted += [f"{100 * row['untrained']['accuracy']:.0f}"] if more else []
        assert [*wanted, str(row["cases"])] in lines, wanted
        counted += 1
    assert counted == 19 and sum("→" in line for line in lines) - counted <= 4  # those of the notes
    uuas = document["uuas"]
    told = f"layer {uuas['best_layer']['layer']} {100 * uuas['best_layer']['accuracy']:.1f}, right-branching {100 * uuas['right_branching']:.1f}"
    assert told in screen
    for name, form in (("dependency_mass", ".0%"), ("distance", ".1f"), ("entropy", ".1f")):
        assert f": {', '.join(format(layer[name], form) for layer in document['layers']).replace('%', '')}\n" in screen


def test_rare_rows_are_counted_where_they_are_left_out(run: Run) -> None:
    whole, short = (run("evaluate", SENTENCES, *more).out for more in (("--least", "1"), ()))
    rows = [len(re.findall(r"→ (?:head|dep|ante) +\d", screen)) for screen in (whole, short)]
    (out,) = re.findall(r"^(\d+) rarer rows are left out", short, re.MULTILINE)
    (never,) = re.findall(r"^(\d+) rarer rows are left out", whole, re.MULTILINE)
    assert rows[1] == 2 and int(out) - int(never) == rows[0] - rows[1] > 20


TREES = "".join(
    f"# sent_id = {number}\n1\tAlice\t_\tPROPN\t_\t_\t2\tnsubj\t_\t_\n2\teats\t_\tVERB\t_\t_\t0\troot\t_\t_\n\n"
    for number in range(4)
)


def test_a_damaged_part_is_named_and_made_anew(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnctl.batching.folder.GROUP", 2)
    monkeypatch.setattr("attnctl.commands.evaluate.compute.TOGETHER", 2)
    Path("in.conllu").write_text(TREES)
    check_a_damaged_part("evaluate in.conllu -m random --least 1", ".tallies", "census.json", run)


def test_a_run_anew_leaves_no_census_of_the_run_before(run: Run, refused: Refused) -> None:
    Path("in.conllu").write_text(TREES)
    Path("empty.conllu").write_text("")
    assert run("evaluate", "in.conllu", "-m", "random", "-o", "made").code == 0
    Path("made/census.json").rename("made/.census.json.0123abcd.part")  # as a run leaves it that is killed
    assert run("evaluate", "in.conllu", "-m", "random", "-o", "made").code == 0
    assert sorted(path.name for path in Path("made").glob("*census*")) == ["census.json"]
    refused("evaluate", "empty.conllu", "-m", "random", "-o", "made", "--replace")
    assert not Path("made/census.json").exists()
