"""How `--help` is laid out: the group of each option, and an example of each command."""

from __future__ import annotations

LOOK, SHOW, MODEL, MADE = "What to look at", "How to show it", "Model and text", "Models made on the spot (random, dot)"
MATHEMATICS, CHECKPOINT, OUTPUT = "Mathematics", "Checkpoints alone", "Output"
INPUT, WORK = "What goes in", "How the work is done"

# group → the parameters in it, by their names in Python; a test holds that every option of every command has a group
GROUPS: dict[str, tuple[str, ...]] = {
    LOOK: (
        "layer", "head", "query", "steps", "max_steps", "top", "by", "spans", "rows", "columns", "pool", "drop",
        "renormalise", "words", "measure", "probe", "check", "story", "watch", "count", "sentences", "explain",
        "against", "how", "reference", "edges", "edge", "last_only", "off", "pooled", "approximate", "effects", "sources",
        "census", "relations", "subtypes", "least", "untrained", "remove", "permute",
    ),
    INPUT: (
        "input_form", "column", "id_column", "max_tokens", "objective", "resume", "lr", "needle",
        "question", "expect", "haystack", "lengths", "depths",
    ),
    SHOW: (
        "precision", "cmap", "size", "dpi", "title", "values", "log", "font_size", "vmin", "vmax", "no_colorbar",
    ),
    MODEL: (
        "file", "tokens", "length", "model", "run", "tokenizer", "embeddings", "qkv", "predict", "seed", "device", "chat",
        "answer",
    ),
    MATHEMATICS: (
        "causal", "window", "scale", "no_scale", "temperature", "positions", "rope", "rope_theta", "rope_pairs",
        "dropout",
    ),
    MADE: (
        "d_model", "d_k", "heads", "kv_heads", "layers", "output_projection",
    ),
    CHECKPOINT: (
        "attention", "target", "generate", "bos", "truncate", "dtype",
    ),
    WORK: (
        "jobs", "batch_size", "engine", "address", "gpus_per_worker", "strict", "replace_results", "budget", "switch_off",
    ),
    OUTPUT: (
        "json", "csv", "output", "formats", "parameters", "no_open", "setting", "unset", "show", "path",
        "quiet", "no_pager", "write_corpus", "site", "man", "samples", "open", "help",
    ),
}  # fmt: skip

# heading → command → what it does, in one line
COMMANDS: dict[str, dict[str, str]] = {
    "Look": {
        "explain": "every step of self-attention on a text, number by number",
        "heatmap": "the weights as a picture, or as a grid in the terminal",
        "heads": "what each head does over a text, and what kind it is",
        "ablate": "what each head, edge or part of a text does for a prediction",
        "compare": "two models, traces or texts, and their difference",
        "sources": "which part of a prompt an answer came from",
        "needle": "whether a planted fact is found, and by which heads",
        "view": "one HTML page to explore attention in a browser",
    },
    "Many questions": {
        "shell": "many questions about one text, its model loaded once",
    },
    "Many texts": {
        "batch": "every text of a file: a trace a line, a folder of pictures",
    },
    "Models": {
        "model": "how large a model's attention is; a trained one's card",
        "train": "train a small attention model and watch it learn",
        "evaluate": "which words each head finds, beside simple rules",
    },
    "Learn": {
        "softmax": "the softmax of a few scores, worked out",
        "quiz": "questions about the attention of a sentence",
    },
    "Settings": {
        "config": "defaults of your own",
        "docs": "the documentation: lesson, guides, reference",
        "schema": "the JSON Schema of what attnctl writes",
        "help": "this page, or the options of one command",
    },
}

ALL_COMMANDS = tuple(name for commands in COMMANDS.values() for name in commands)

# what an option's value is called in --help, by its name in Python; others are named by their type
METAVARS = {
    "chat": "FILE", "layer": "LAYERS", "head": "HEADS", "query": "TOKEN", "steps": "STEPS", "by": "STATISTIC",
    "spans": "KIND|FILE", "rows": "TOKENS", "columns": "TOKENS", "pool": "mean|max", "drop": "KEY", "measure": "MEASURE",
    "cmap": "MAP", "size": "WxH", "file": "FILE", "tokens": "TOKENS", "model": "MODEL", "run": "FOLDER",
    "tokenizer": "words|chars|FILE", "embeddings": "FILE", "qkv": "FILE", "predict": "TOKEN|all", "device": "DEVICE",
    "scale": "auto|none|X", "positions": "KIND", "rope_pairs": "half|interleaved", "attention": "KIND",
    "dtype": "TYPE", "output": "FILE", "formats": "FORMATS", "input_form": "FORMAT",
    "setting": "NAME=VALUE", "unset": "NAME", "column": "NAME", "id_column": "NAME",
    "engine": "local|ray", "census": "FILE", "relations": "FILE", "write_corpus": "FILE", "address": "ADDRESS",
    "objective": "OBJECTIVE", "site": "FOLDER", "man": "FOLDER", "samples": "FOLDER",
}  # fmt: skip
TYPES = {"int": "N", "int range": "N", "float": "X", "float range": "X"}

EXAMPLES = {
    "explain": 'attnctl explain "Alice will eat pizza" --query eat --steps weights,context',
    "heatmap": 'attnctl heatmap "Alice will eat pizza" --head 3 -o grid.png',
    "ablate": 'attnctl ablate "Alice will eat" --target pizza',
    "heads": 'attnctl heads "Alice will eat pizza" --by previous',
    "compare": 'attnctl compare demo random "Alice will eat pizza"',
    "batch": "attnctl batch sentences.txt -o out/ --format json,png",
    "view": 'attnctl view "Alice will eat pizza"',
    "train": "attnctl train mytext.txt -o run",
    "evaluate": "attnctl evaluate corpus.conllu --model minilm",
    "model": "attnctl model gpt2",
    "softmax": "attnctl softmax 8.1 1.2 3.0 6.5 --d-k 64",
    "quiz": 'attnctl quiz "Alice will eat pizza"',
    "schema": "attnctl schema trace",
    "config": "attnctl config --set model=smollm2",
    "sources": "attnctl sources --chat messages.json --model smollm2",
    "needle": "attnctl needle --model smollm2 --lengths 512,1024",
    "help": "attnctl help explain",
    "docs": "attnctl docs lesson",
    "shell": "attnctl shell --model smollm2 --file prompt.txt",
}


def told_below(command: str) -> dict[str, list[tuple[str, str]]]:
    """What the help of a command tells below its options: heading → rows of a word and what it means."""
    if command != "heads":
        return {}
    from attnctl.readings.statistic_table import statistics_explained

    return {"Columns, means over the queries": statistics_explained()}


def help_width() -> int:
    """The columns that help is written in: those of the terminal, up to 100."""
    import shutil

    return max(20, min(shutil.get_terminal_size().columns, 100) - 1)


def option_group(name: str) -> str:
    """The group that the option `name` is listed in; the output's, where the table lacks it."""
    return next((title for title, names in GROUPS.items() if name.rstrip("_") in names), OUTPUT)


def option_metavar(name: str, kind: str) -> str:
    """What the value of option `name`, of this type, is called."""
    return TYPES.get(kind, METAVARS.get(name.rstrip("_"), "TEXT"))
