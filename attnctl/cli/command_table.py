"""Commands of the old kind: the help of each and the options that it takes; nothing of them is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from attnctl.cli import options as o
from attnctl.cli.options import Option, takes
from attnctl.formats.pictures import suffixes_listed


class Entry(NamedTuple):
    """One command. Its function is NAME_command of attnctl.cli.commands.NAME, imported when it is called."""

    example: str
    description: str  # the text of its --help
    options: dict[str, Option]  # in the order of its --help
    # each thing in which runs differ: a mode, as a sentence names it → the options that it honours, or "all but" some
    modes: tuple[Mapping[str, str], ...] = ()
    parsing: Mapping[str, bool] = {}  # settings of Typer's parser


# groups of options as modes name them
MODEL, UNTOLD = " ".join(o.MODEL_OPTIONS), " ".join(o.WEIGHTS_MODEL_OPTIONS)
PICTURE, ONLY, SHOWN = " ".join(o.LOOK_OPTIONS), " ".join(o.PICTURE_ONLY), " ".join(o.WEIGHT_OPTIONS)
UNLIKE_PHOTOGRAPHS = "run tokens key_tokens rows columns pool spans words values"
# what every format of a batch honours
ITEMS = (
    "source output format input column id_column max_tokens jobs batch_size strict replace "
    f"{' '.join(o.ENGINE_OPTIONS)} {MODEL}"
)

ENGINES = {"--engine local": "all but address gpus_per_worker", "--engine ray": "all"}

ENTRIES = {
    "heatmap": Entry(
        'attnctl heatmap "Alice will eat pizza" --head 3 -o grid.png',
        """Draw the attention weights: queries down, keys across, one head or every layer × head.

Without -o the grid is drawn in the terminal; in a pipe it is written as numbers, tab-separated; a
token that a spreadsheet would take for a formula has an apostrophe before it. A text of more than 512
tokens is pooled to a grid of cells; --rows and --columns look closer. A photograph (photo.jpg, and a
vision model) is drawn with the weights of one query over it; so is --image, of a prompt about it.""",
        takes(
            "source file tokens key_tokens layer head query output run rows columns pool spans",
            *o.PICTURED_OPTIONS,
            head={
                "help": "Heads: 3, 0-5, 1,4,7, -1 or all [default: all]; telling, the headline's.",
                "values": ("all", "telling"),
            },
            query="Query token: of a photograph, by its pixel (120,80), index or name; else CLS, or the last.",
            output=f"Where to write: {suffixes_listed()}; .html, a page; or .json: cells.",
            run="Folder of a training run: one head at every step, .gif or a strip.",
        ),
        (
            {
                "a picture": "all but run query",
                "a photograph in a picture": f"all but {UNLIKE_PHOTOGRAPHS} size",
                "a photograph in a terminal": f"all but {UNLIKE_PHOTOGRAPHS} log title {ONLY}",
                "the patches of a photograph": f"all but {UNLIKE_PHOTOGRAPHS} {PICTURE}",
                "a page": f"all but run query rows columns pool spans values {ONLY}",
                "JSON": f"source file tokens key_tokens layer head output rows columns pool spans {MODEL}",
                "a terminal": f"all but run query {ONLY}",
                "numbers in a pipe": f"all but run query {PICTURE}",
                "--run": "all but tokens key_tokens query rows columns pool spans model",
                "--run as a page": f"all but tokens key_tokens query rows columns pool spans model values {ONLY}",
            },
        ),
    ),
    "heads": Entry(
        'attnctl heads "Alice will eat pizza" --by previous',
        """Tell what each head does over a text: entropy, where its attention goes, how far, and what kind of head that makes
it.

Masses are shares of a query's attention, averaged over the queries. A head "looks like" a previous-token, induction,
duplicate-token, sink or broad head where it passes the usual threshold.""",
        takes(
            "source file tokens key_tokens layer head by top probe census json csv output",
            *o.PICTURED_OPTIONS,
            top="Only so many, the strongest: heads with most of --by, or of confidence.",
            output=f"Where to write: .csv, .json, .html, or a picture: {suffixes_listed()}.",
        ),
        (
            {
                "the table": f"all but json csv {PICTURE}",
                "JSON": f"all but csv {PICTURE}",
                "CSV": f"all but json {PICTURE}",
                "a picture": "all but top census json csv log",
            },
        ),
    ),
    "ablate": Entry(
        'attnctl ablate "Alice will eat" --target pizza',
        """Tell what matters: every head ablated in turn, or edges of attention cut, and what that does to a prediction.

A head looks (its largest weight from the watched token), writes (its direct contribution to the logit), and does (how
the prediction changes without it; after minus before, in nats and logits).""",
        takes(
            "text file",
            "target against query layer head how reference edges edge spans off approximate batch_size",
            "top json output",
            *(name for name in o.MODEL_OPTIONS if name not in ("predict", "generate", "n_layers", "n_heads")),
            target={
                "help": 'What the model is to write: the word watched (" Mary") [default: the likeliest].',
                "flags": "--target -t",
            },
            query="Query token: the word watched is predicted from it [default: the last, or the mask].",
            off="Heads that are off, layer.head: throughout, while others are measured.",
            batch_size="How many share one pass: interventions.",
            top="Only so many, the strongest: heads, edges or parts; without it a table has 10 heads.",
            output=f"Where to write: .json, .txt, .html, {suffixes_listed()}.",
        ),
        (
            {"--edge": "all but approximate"},
            {"--spans": "all but approximate"},
            {"cuts, without --off": "all but how reference"},
            {"--how zero": "all but reference", "--how mean or resample": "all"},
            {"a picture": "all but top json", "the terminal or JSON": "all"},
        ),
    ),
    "compare": Entry(
        'attnctl compare demo random "Alice will eat pizza"',
        """Show two models, two traces, or two texts side by side, with the difference of their weights.

With TEXT (or --file), A and B are models: names, weight files, steps of a run, checkpoints. Without, each is a trace
(.json, .npz, or - for a pipe) or a text for --model. The head where the two differ most is shown, unless --layer and
--head say otherwise.""",
        takes(
            "a b text file layer head precision json output",
            *o.PICTURED_OPTIONS,
            text={"help": "The text that both models read.", "metavar": "[TEXT]"},
            json="Write JSON: the comparison, one line.",
        ),
        (
            {
                "the tables": f"all but json {PICTURE}",
                "JSON": f"all but layer head precision {PICTURE}",
                "a picture": "all but json precision log",
            },
        ),
    ),
    "shell": Entry(
        "attnctl shell --model smollm2 --file prompt.txt",
        """Ask one question after the other about a text: the commands and options of attnctl, without attnctl and the text.

Model, text and what was computed of them are kept, so that a second question is answered at once. `text`, `file` and
`use` change text and model, Ctrl-C goes back to the prompt, Ctrl-D leaves. Lines from a pipe are run one by one.""",
        takes("text file", *o.MODEL_OPTIONS),
    ),
    "batch": Entry(
        "attnctl batch sentences.txt -o out/ --format json,png",
        """Run every text of a file through a model: a trace a line, a picture each.

Run again, it does what is missing. FOLDER/manifest.jsonl says what became of each text; where some failed, the exit code
is 3. A line of JSON has "text", or "messages" (a conversation), and where wanted "id", "text_pair", "tokens", "answer",
"options".""",
        takes(
            "source output format input column id_column layer head query steps words measure precision parameters",
            "max_tokens",
            *o.ENGINE_OPTIONS,
            "jobs batch_size spans budget remove strict replace drop renormalise",
            *o.LOOK_OPTIONS,
            *o.MODEL_OPTIONS,
            source={
                "help": 'Texts: a file (.txt a line each, .jsonl, .csv, .tsv, .parquet; .gz, .zst), a folder, or "-".',
                "metavar": "FILE|FOLDER|-",
            },
            output="Where to write: a folder [default: JSON lines to stdout].",
            max_tokens={
                "help": "Tokens of the longest text that is read: one with more is an error of its own.",
                "default": 2048,
            },
            steps={
                "help": "Only these steps: weights or scores,weights,… of a trace (json, npz)",
                "values": ("attnctl.steps:NAMES",),
            },
            precision="Decimals: of the numbers in JSON [default: all].",
            jobs="Processes, each with a model of its own [default: a core each; 1 for stdout and checkpoints].",
            batch_size={"help": "How many share one pass: texts of about one length (checkpoints).", "default": 32},
            budget="Forwards for a prompt (sources): more parts than these are left out in groups.",
            remove="Render the prompt without each part, too (sources).",
        ),
        (
            ENGINES,
            {"--steps": "all but parameters"},
            {
                "--format json": f"layer head query steps words measure precision parameters {ITEMS}",
                "--format npz": f"layer head query steps words measure parameters {ITEMS}",
                "--format parquet": f"layer head query words measure {ITEMS}",
                "--format contact-sheet": f"layer head query words measure cmap {ITEMS}",
                "--format statistics": f"layer head query {ITEMS}",
                "--format effects": f"layer head {ITEMS}",
                "--format sources": f"spans budget remove {ITEMS}",
                "a picture": f"layer head query {PICTURE} {SHOWN} {ITEMS}",
            },
        ),
    ),
    "help": Entry(
        "attnctl help explain",
        """Print the commands, or the options of one of them: the same as attnctl COMMAND --help.""",
        takes("command"),
    ),
}
