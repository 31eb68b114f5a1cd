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
PICTURE, ONLY = " ".join(o.LOOK_OPTIONS), " ".join(o.PICTURE_ONLY)
UNLIKE_PHOTOGRAPHS = "run tokens key_tokens rows columns pool spans words values"

ENTRIES = {
    "explain": Entry(
        'attnctl explain "Alice will eat pizza" --query eat --steps weights,context',
        """Show every step of self-attention on a text: tokens, queries and keys, scores, softmax, context.""",
        takes(
            "source file tokens key_tokens layer head query top spans steps all precision story against check json output",
            *o.WEIGHT_OPTIONS,
            *o.MODEL_OPTIONS,
            **o.MOST_TELLING,
            query="Query token: its index, or its text (text:7 is the token “7”); several: eat,pizza or 2-4.",
            top="Only so many, the strongest: links of each query.",
            json="Write JSON: the trace, one line.",
            output="Where to write: .json, .npz, .txt or .svg.",
        ),
        (
            {
                "the steps": "all but top spans check json against",
                "--steps": "all but top spans all check json against",
                "a trace in a file or pipe": "all but top spans all check precision story against",
                "a long text, --top and --spans": "all but check steps all precision story against",
                "--check": f"source file layer head check {UNTOLD}",
                "--steps contributions": f"source file query steps top against output {UNTOLD}",
                "--steps contributions as JSON": f"source file query steps json against output {UNTOLD}",
            },
        ),
    ),
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
    "view": Entry(
        'attnctl view "Alice will eat pizza"',
        """Make one HTML file to explore attention in a browser, and open it: no network, nothing to install.

With two texts or traces, or two models and a text, both are there side by side, with their difference. A long text is
pooled to an overview, with its strongest links and exact blocks around them; an overview's file is shown as it is.""",
        takes(
            "source other text file tokens key_tokens run layer head query output no_open log effects against sources",
            *o.WEIGHT_OPTIONS,
            *o.MODEL_OPTIONS,
            text={"help": "A text for both: the two before it are models then.", "metavar": "[TEXT]"},
            run="Folder of a training run: the text at every step of it.",
            **o.MOST_TELLING,
            output='Where to write: .html, or "-".',
            log="Colours on a logarithmic scale: the page begins so.",
        ),
        (
            {
                "one source": "all but other text run sources",
                "two sources": "all but text file run effects against sources",
                "two texts": "all but text tokens key_tokens file run effects against sources",
                "two models and a text": "all but file tokens key_tokens run model effects against sources",
                "--run": "all but other text tokens key_tokens model effects against sources",
                "--sources": f"source file output no_open sources {' '.join(o.PROMPT_OPTIONS).replace(' image', '')}",
            },
            {"a page without --effects": "all but against", "--effects": "all"},
        ),
    ),
    "shell": Entry(
        "attnctl shell --model smollm2 --file prompt.txt",
        """Ask one question after the other about a text: the commands and options of attnctl, without attnctl and the text.

Model, text and what was computed of them are kept, so that a second question is answered at once. `text`, `file` and
`use` change text and model, Ctrl-C goes back to the prompt, Ctrl-D leaves. Lines from a pipe are run one by one.""",
        takes("text file", *o.MODEL_OPTIONS),
    ),
    "help": Entry(
        "attnctl help explain",
        """Print the commands, or the options of one of them: the same as attnctl COMMAND --help.""",
        takes("command"),
    ),
}
