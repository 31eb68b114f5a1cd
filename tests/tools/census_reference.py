"""Counts of a census by another way: transformers' eager weights, a sentence at a time, in plain loops.

It knows CoNLL-U without multi-word tokens that share a place, and `# text`; other sentences are left to attnctl's own tests.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

Counts = Counter[tuple[str, str, int, int]]


def read(path: str) -> list[dict[str, Any]]:
    found = []
    for block in Path(path).read_text(encoding="utf-8").split("\n\n"):
        lines = block.strip("\n").split("\n")
        text = next((line[len("# text = ") :] for line in lines if line.startswith("# text = ")), None)
        rows = [line.split("\t") for line in lines if line and not line.startswith("#")]
        if text is None or any("-" in row[0] for row in rows):
            continue
        rows = [row for row in rows if "." not in row[0]]
        spans, at = [], 0
        for row in rows:
            at = text.index(row[1], at)
            spans.append((at, at + len(row[1])))
            at += len(row[1])
        heads = [int(row[6]) - 1 for row in rows]
        found.append({"text": text, "lines": block, "spans": spans, "heads": heads, "names": [row[7] for row in rows]})
        found[-1]["tags"] = [row[3] if row[3] != "_" else row[4].replace("_", "") for row in rows]
    return found


def units(sentence: dict[str, Any], offsets: list[tuple[int, int]]) -> tuple[list[int], list[list[int]]]:
    """Each word's unit, and each unit's tokens: words that share a token are one."""
    text, spans = sentence["text"], sentence["spans"]
    touched = []
    for start, end in offsets:
        touched.append(
            {w for w, (a, b) in enumerate(spans) for c in range(start, end) if a <= c < b and not text[c].isspace()}
        )
    group = list(range(len(spans)))
    for words in touched:
        for word in words:
            old, new = group[word], group[min(words)]
            group = [new if g == old else g for g in group]
    order = {g: at for at, g in enumerate(sorted(set(group)))}
    tokens: list[list[int]] = [[] for _ in order]
    for at, words in enumerate(touched):
        if words:
            tokens[order[group[min(words)]]].append(at)
    return [order[g] for g in group], tokens


def counts(
    sentences: list[dict[str, Any]], attend: Any, causal: bool = False
) -> tuple[Counts, Counter[tuple[str, str]]]:
    """`attend(text)` answers weights (layers, heads, n, n) and the offsets of the n tokens; a causal model sees nothing ahead."""
    right: Counts = Counter()
    cases: Counter[tuple[str, str]] = Counter()
    for sentence in sentences:
        weights, offsets = attend(sentence["text"])
        unit_of, tokens = units(sentence, offsets)
        questions = []
        for word, (head, name) in enumerate(zip(sentence["heads"], sentence["names"], strict=True)):
            if head >= 0 and unit_of[word] != unit_of[head]:
                both = (
                    ("dependent→head", unit_of[word], unit_of[head]),
                    ("head→dependent", unit_of[head], unit_of[word]),
                )
                questions += [(name, *one) for one in both if not causal or one[2] < one[1]]
        cases.update((name, direction) for name, direction, *_ in questions)
        for layer, heads in enumerate(weights):
            for head, matrix in enumerate(heads):
                found = [_found(matrix, tokens, unit) for unit in range(len(tokens))]
                for name, direction, query, target in questions:
                    right[name, direction, layer, head] += found[query] == target
    return right, cases


def _found(matrix: Any, tokens: list[list[int]], unit: int) -> int | None:
    """The other unit that gets most: the sum over its tokens, the mean over those of `unit`."""
    given = {
        other: sum(float(matrix[i][j]) for i in tokens[unit] for j in tokens[other]) / len(tokens[unit])
        for other in range(len(tokens))
        if other != unit
    }
    best = max(given, key=lambda other: given[other], default=None)
    return best if best is not None and given[best] > 0 else None


def eager(folder: str) -> Any:
    """A checkpoint's eager weights."""
    import torch
    from transformers import AutoModel, PreTrainedTokenizerFast

    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(Path(folder) / "tokenizer.json"))

    def attend(text: str) -> tuple[Any, list[tuple[int, int]]]:
        said = tokenizer(text, return_offsets_mapping=True)
        special = said.encodings[0].special_tokens_mask
        special = [
            mark or token in tokenizer.all_special_ids for mark, token in zip(special, said["input_ids"], strict=True)
        ]
        offsets = [(0, 0) if mark else span for span, mark in zip(said["offset_mapping"], special, strict=True)]
        with torch.no_grad():
            out = model(input_ids=torch.tensor([said["input_ids"]]), output_attentions=True)
        return [part[0].double().tolist() for part in out.attentions], offsets

    return attend


def differences(census: dict[str, Any], right: Counts, cases: Counter[tuple[str, str]]) -> list[str]:
    """Where a census and the reference part: every relation with its subtypes, direction, layer and head."""
    found = []
    bare = {name.partition(":")[0] for name, _ in cases}
    names = {name for name, _ in cases if ":" in name} | bare
    told = {
        (row["relation"], row["direction"]): row
        for row in census["relations"]
        if row["relation"].partition(":")[0] not in ("all", "coreference")
    }
    if set(told) != {(name, way) for name in names for way in ("dependent→head", "head→dependent")}:
        found.append(f"relations: {sorted(set(told))}")
    for (name, way), row in told.items():
        parts = [key for key in cases if key[1] == way and (key[0] == name or key[0].partition(":")[0] == name)]
        if row["cases"] != sum(cases[key] for key in parts):
            found.append(f"{name} {way}: {row['cases']} cases, not {sum(cases[key] for key in parts)}")
        for layer, heads in enumerate(row["correct"]):
            for head, count in enumerate(heads):
                wanted = sum(right[*key, layer, head] for key in parts)
                if count != wanted:
                    found.append(f"{name} {way} head {layer}.{head}: {count}, not {wanted}")
    return found
