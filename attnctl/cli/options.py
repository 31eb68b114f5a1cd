"""Every option, once: its flags, type, help, group, range, values, and what people type who mean it.

Help, completion, suggestions, ranges, defaults of a user's own, the command reference and the tests read this table. In
`command_table` a command names the options that it takes, and of one that differs says only what differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, TypeVar

from attnctl import limits
from attnctl.limits import Range

Made = TypeVar("Made")

TOKENS = "the words of the text"  # among the values of an option


@dataclass(frozen=True)
class Option:
    """One option; an argument where it has no flags."""

    flags: str  # "--query -q", "--log/--no-log"
    help: str
    kind: type = str  # str, int, float or bool
    metavar: str = ""  # what its value is called in --help; by its type, or its few values, where empty
    default: object = None  # None: as the model or the command has it, which the help says
    several: bool = False  # may be given several times
    values: tuple[str, ...] = ()  # what it can take; "module:attribute" names a table of them
    lists_values: bool = False  # --help says which they are
    joined: bool = False  # values may stand in a list, with commas between them
    range: Range | None = None  # of a number
    reads: bool = False  # names a file that is read
    meant_by: str = ""  # flags that people type for it; "--png=FILE.png" is answered with "-o FILE.png"
    required: bool = False  # of an argument
    of_machine: bool = False  # of a model, where --model names another one it stays
    one_call: bool = False  # names what one call is about, or asks for another act: no user has a default of it
    group: str = ""  # its heading in --help: where it stands in the table

    @property
    def value_name(self) -> str:
        """What its value is called in --help, where it has one."""
        if self.metavar or self.kind is not str:
            return self.metavar or {int: "N", float: "X"}.get(self.kind, "")
        short = 1 < len(self.values) < 3 and not any(":" in value for value in self.values)
        return "FILE" if self.reads else "|".join(self.values) if short else "TEXT"

    @property
    def every_flag(self) -> list[str]:
        """Each flag that gives it: --log and --no-log."""
        return self.flags.replace("/", " ").split()


LOOK, SHOW, MODEL, MADE = "What to look at", "How to show it", "Model and text", "Models made on the spot (random, dot)"
MATHEMATICS, CHECKPOINT, OUTPUT = "Mathematics", "Checkpoints alone", "Output"
ARGUMENTS = "Arguments"

_MODELS = ("attnctl.models:REGISTRY", "attnctl.models.huggingface.hub:KNOWN")
# the colour maps of matplotlib that grids of weights are drawn in most; a test holds that it has them
_MAPS = ("viridis", "cividis", "magma", "inferno", "plasma", "Greys", "Blues", "Greens", "Oranges", "Purples", "Reds",
         "YlGnBu", "gray", "bone", "hot", "cubehelix")  # fmt: skip

_TABLE: dict[str, dict[str, Option]] = {
    ARGUMENTS: {
        "source": Option(
            "",
            'The text, a trace or overview (.json, .npz), bare weights (.npy, .npz, .csv), or "-" for standard input.',
            metavar="[TEXT|FILE|-]",
            reads=True,
        ),
        "text": Option("", 'The text, or "-" to read it from standard input.'),
        "other": Option("", "A second one, to be seen beside the first.", metavar="[TEXT|FILE]", reads=True),
        "command": Option(
            "", "The command to tell about.", metavar="[COMMAND]", values=("attnctl.cli.command_table:COMMANDS",)
        ),
    },
    LOOK: {
        "layer": Option(
            "--layer",
            "Layers: 3, 0-5, 1,4,7, -1 or all [default: all].",
            metavar="LAYERS",
            values=("all",),
            meant_by="--layers -l --all-layers=all",
        ),
        "head": Option(
            "--head",
            "Heads: 3, 0-5, 1,4,7, -1 or all [default: all].",
            metavar="HEADS",
            values=("all",),
            meant_by="--heads --all-heads=all",
        ),
        "query": Option(
            "--query -q",
            "Query token: its index, or its text (text:7 is the token “7”).",
            metavar="TOKEN",
            values=(TOKENS,),
            joined=True,
            meant_by="--token --row --word",
        ),
        "steps": Option(
            "--steps",
            "Only these steps: scores,weights,… (matrices shows W_Q, W_K, W_V)",
            metavar="STEPS",
            values=("attnctl.trace.steps:NAMES", "contributions"),
            joined=True,
            meant_by="--step",
        ),
        "top": Option(
            "--top", "Only so many, the strongest.", int, range=limits.TOP, meant_by="--topk --top-k --limit -n"
        ),
        "spans": Option(
            "--spans",
            "Parts: paragraphs, lines, headings, documents, or a file of name,start,end; regions of a picture.",
            metavar="KIND|FILE",
            values=("attnctl.readings.spans:KINDS",),
            reads=True,
        ),
        "drop": Option(
            "--drop",
            "Leave out a key: first, special, a token or its index.",
            metavar="KEY",
            several=True,
            values=("first", "special", TOKENS),
            joined=True,
        ),
        "renormalise": Option(
            "--renormalise", "Make each row sum to 1 again.", bool, meant_by="--normalize --normalise --renormalize"
        ),
        "words": Option("--words", "Merge the pieces of a tokenizer into words.", bool),
        "measure": Option(
            "--measure",
            "What a cell holds.",
            metavar="MEASURE",
            values=("weights", "attnctl.measures:measure_names"),
            lists_values=True,
        ),
        "all": Option("--all", "Walk through every layer from the tokens to the output.", bool),
        "check": Option("--check", "Recompute the weights by other means: do they hold? Exit code 4 if not.", bool),
        "story": Option("--story", "Add the classroom reading of each step.", bool),
        "against": Option("--against", "Measure logits above this word."),
        "off": Option("--off", "Heads that are off, layer.head: 23.3,0.5 (see attnctl ablate)."),
        "effects": Option("--effects", "Shade the tokens by what they do for the prediction, too.", bool),
        "sources": Option("--sources", "Of a prompt: the parts that the model's answer to it came from.", bool),
        "remove": Option("--remove", "Render the prompt without each part, too.", bool),
    },
    INPUT: {
        "input": Option(
            "--input",
            "text, jsonl, csv, tsv or parquet; by the suffix.",
            metavar="FORMAT",
            values=("attnctl.batching.texts:FORMS",),
        ),
        "column": Option("--column", "The column that holds the texts.", metavar="NAME"),
        "id_column": Option("--id-column", "The column that holds their ids.", metavar="NAME"),
        "max_tokens": Option("--max-tokens", "Tokens of the longest text that is read.", int, range=limits.MAX_TOKENS),
    },
    SHOW: {
        "precision": Option(
            "--precision", "Decimals [default: 2].", int, range=limits.PRECISION, meant_by="--decimals --digits"
        ),
        "cmap": Option(
            "--cmap",
            "Colour map, by its name in matplotlib [default: viridis].",
            metavar="MAP",
            values=_MAPS,
            meant_by="--colormap --colors --colours",
        ),
        "size": Option("--size", "WIDTHxHEIGHT in inches: 6x4.", metavar="WxH", meant_by="--width --figsize"),
        "dpi": Option("--dpi", "Dots per inch, 30 to 1200 [default: 200; in a batch 100].", int, range=limits.DPI),
        "title": Option("--title", "Title; '' for none."),
        "values": Option(
            "--values/--no-values",
            "Numbers in the cells; where they can be read unless told otherwise.",
            bool,
            meant_by="--annotate",
        ),
        "log": Option(
            "--log/--no-log",
            "Colours on a logarithmic scale; of a long text also where a few cells hold most, unless told otherwise.",
            bool,
        ),
        "font_size": Option(
            "--font-size", "Points of the labels; other letters in proportion.", float, range=limits.FONT_SIZE
        ),
        "vmin": Option("--vmin", "The weight with the first colour [default: 0].", float, range=limits.COLOUR_END),
        "vmax": Option(
            "--vmax", "The weight with the last colour [default: the largest].", float, range=limits.COLOUR_END
        ),
        "no_colorbar": Option("--no-colorbar", "Without the colour bar.", bool),
    },
    MODEL: {
        "file": Option(
            "--file -f", "Read the text from this file.", reads=True, meant_by="--text --input --prompt", one_call=True
        ),
        "tokens": Option(
            "--tokens", "Names of the tokens: of bare weights, the rows; a JSON list or words.", metavar="TOKENS"
        ),
        "key_tokens": Option(
            "--key-tokens",
            "Names of the columns of bare weights, where they differ from those of the rows.",
            metavar="TOKENS",
        ),
        "model": Option(
            "--model -m",
            "demo, demo-causal, random, dot, a weights file, or a checkpoint: folder, .gguf, Hugging Face id.",
            metavar="MODEL",
            values=_MODELS,
            reads=True,
            meant_by="--checkpoint --weights",
        ),
        "run": Option("--run", "Folder of a training run.", metavar="FOLDER"),
        "tokenizer": Option(
            "--tokenizer",
            "words, chars, or a tokenizer.json.",
            metavar="words|chars|FILE",
            values=("words", "chars"),
            reads=True,
        ),
        "embeddings": Option("--embeddings", "Embeddings, one row a token (.npy, .npz, .csv).", reads=True),
        "qkv": Option("--qkv", "Q, K and V given outright (.npz, .safetensors), for a text or none.", reads=True),
        "predict": Option(
            "--predict",
            "The words expected after a token (masked models: at it), or all.",
            metavar="TOKEN",
            values=(TOKENS,),
        ),
        "seed": Option(
            "--seed",
            "Seed of everything random [default: 0].",
            int,
            range=limits.SEED,
            meant_by="--random-seed -s",
        ),
        "device": Option(
            "--device",
            "Where to compute: auto, cpu, cuda, cuda:1 or mps.",
            metavar="DEVICE",
            values=("auto", "cpu", "cuda", "mps"),
            meant_by="--gpu --cuda --cpu",
            of_machine=True,
        ),
        "chat": Option("--chat", "Instead of a text a conversation: JSON, a list of role and content.", reads=True),
    },
    MATHEMATICS: {
        "causal": Option("--causal/--no-causal", "Hide the future from every query.", bool, meant_by="--mask"),
        "window": Option(
            "--window", "Sliding window: hide keys this many tokens away, and more.", int, range=limits.WINDOW
        ),
        "scale": Option(
            "--scale",
            "Factor on the scores: auto (1/√d_k), none, or a number: 0.125 or 1/8.",
            metavar="auto|none|X",
            values=("auto", "none"),
        ),
        "no_scale": Option("--no-scale", "The same as --scale none.", bool),
        "temperature": Option(
            "--temperature", "Divide by this before the softmax.", float, range=limits.TEMPERATURE, meant_by="--temp"
        ),
        "positions": Option(
            "--positions", "Add positions to the embeddings: sinusoidal.", metavar="KIND", values=("sinusoidal",)
        ),
        "rope": Option("--rope", "Rotary positions on queries and keys.", bool),
        "rope_theta": Option(
            "--rope-theta", "Base of the rotary angles; 10000 unless told otherwise.", float, range=limits.ROPE_THETA
        ),
        "rope_pairs": Option(
            "--rope-pairs",
            "Dimensions that turn together: half (as Llama) or interleaved.",
            values=("half", "interleaved"),
        ),
        "dropout": Option("--dropout", "Drop each weight with this probability (seeded).", float, range=limits.DROPOUT),
    },
    MADE: {
        "d_model": Option(
            "--d-model", "Length of an embedding (random, dot).", int, range=limits.SIZE, meant_by="--dim"
        ),
        "d_k": Option("--d-k", "Length of a query and a key (random).", int, range=limits.SIZE),
        "n_heads": Option(
            "--n-heads --heads", "Number of query heads in a layer.", int, range=limits.HEADS, meant_by="--num-heads"
        ),
        "n_kv_heads": Option(
            "--n-kv-heads --kv-heads",
            "Number of key/value heads, shared by groups of query heads.",
            int,
            range=limits.HEADS,
        ),
        "n_layers": Option(
            "--n-layers --layers", "Number of layers (random, dot).", int, range=limits.LAYERS, meant_by="--num-layers"
        ),
        "output_projection": Option(
            "--output-projection/--no-output-projection", "With or without W_O (random).", bool
        ),
    },
    CHECKPOINT: {
        "attention": Option(
            "--attention",
            "Of an encoder-decoder: encoder, decoder or cross.",
            metavar="KIND",
            values=("encoder", "decoder", "cross"),
        ),
        "target": Option(
            "--target",
            "What the model is to write: the decoder's text (encoder-decoders); with --effects, contributions: a word.",
        ),
        "generate": Option(
            "--generate",
            "Let a checkpoint add so many tokens, greedily.",
            int,
            range=limits.GENERATE,
            meant_by="--max-tokens",
        ),
        "bos": Option("--bos/--no-bos", "With or without the token that begins a text (checkpoints).", bool),
        "truncate": Option("--truncate", "Cut a text that is longer than the checkpoint reads.", bool),
        "image": Option(
            "--image",
            "Picture that the text is about, several with commas (vision-language checkpoints).",
            metavar="FILE",
        ),
        "text_pair": Option(
            "--text-pair",
            "A second text that the model reads behind the text: passage, hypothesis (checkpoints).",
            metavar="TEXT",
            meant_by="--pair --passage --context --hypothesis",
            one_call=True,
        ),
        "source_language": Option(
            "--source-language",
            "The language of the text: eng_Latn (checkpoints that translate).",
            metavar="CODE",
            meant_by="--src-lang",
        ),
        "target_language": Option(
            "--target-language",
            "The language that the decoder writes: fra_Latn (checkpoints that translate).",
            metavar="CODE",
            meant_by="--tgt-lang",
        ),
        "dtype": Option(
            "--dtype",
            "auto, float32, bfloat16 or float16 (checkpoints).",
            metavar="TYPE",
            values=("auto", "float32", "bfloat16", "float16"),
        ),
    },
    OUTPUT: {
        "json": Option("--json", "Write JSON: one line.", bool, meant_by="--csv"),
        "output": Option(
            "-o --output",
            "Where to write.",
            metavar="FILE",
            meant_by="--csv=FILE.csv --png=FILE.png --svg=FILE.svg --pdf=FILE.pdf --html=FILE.html --save --out --format",
            one_call=True,
        ),
        "no_open": Option("--no-open", "Write the page, do not open it.", bool),
        "quiet": Option(
            "--quiet", "Results and errors alone: no notes, no progress.", bool, meant_by="--silent", one_call=True
        ),
    },
}

GROUPS = tuple(_TABLE)
OPTIONS = {name: replace(one, group=group) for group, several in _TABLE.items() for name, one in several.items()}

# --- options that travel together: names, for `takes` -----------------------------------------------------------------

# which numbers a text is run through
MODEL_OPTIONS = (
    "chat", "model", "tokenizer", "embeddings", "qkv", "d_model", "d_k", "n_heads", "n_kv_heads", "n_layers",
    "output_projection", "predict", "off", "seed", "causal", "window", "scale", "no_scale", "temperature", "positions",
    "rope", "rope_theta", "rope_pairs", "dropout", "text_pair", "attention", "target", "source_language",
    "target_language", "generate", "bos", "truncate", "image", "dtype", "device",
)  # fmt: skip
WEIGHTS_MODEL_OPTIONS = tuple(name for name in MODEL_OPTIONS if name != "predict")  # where no prediction is told
# of a checkpoint that is asked a prompt: what its numbers are made of is its own
PROMPT_OPTIONS = ("chat", "model", "off", "seed", "generate", "bos", "truncate", "image", "dtype", "device")
# how a picture looks: the fields of formats.pictures.Look
LOOK_OPTIONS = ("cmap", "size", "dpi", "title", "values", "log", "font_size", "vmin", "vmax", "no_colorbar")
MAP_OPTIONS = ("cmap", "dpi", "title")  # those of a page of small maps
WEIGHT_OPTIONS = ("drop", "renormalise", "words", "measure")  # what is shown in place of the weights
PICTURED_OPTIONS = (*WEIGHT_OPTIONS, *LOOK_OPTIONS, *WEIGHTS_MODEL_OPTIONS)  # weights of a text, which may be drawn


def takes(*names: str, **differing: str | Mapping[str, Any]) -> dict[str, Option]:
    """These options, by their names in the table, with spaces between them, in the order of a command's --help.

    `differing` says of an option what is otherwise here: its help, or several fields of `Option`.
    """
    changes = {name: {"help": change} if isinstance(change, str) else change for name, change in differing.items()}
    every = dict.fromkeys((*" ".join(names).split(), "quiet"))
    return {name: replace(OPTIONS[name], **changes.get(name, {})) for name in every}


def arguments_of(function: Callable[..., object], options: dict[str, Any]) -> dict[str, Any]:
    """The options that are called as parameters of a function, taken out of `options`; those not given are left to it."""
    named = {name: options.pop(name) for name in signature(function).parameters if name in options}
    return {name: value for name, value in named.items() if value is not None}


def model_options(options: dict[str, Any]) -> dict[str, Any]:
    """MODEL_OPTIONS, taken out of `options`."""
    return {name: options.pop(name) for name in MODEL_OPTIONS if name in options}


def taken(kind: Callable[..., Made], options: dict[str, Any]) -> Made:
    """What `kind` makes of the options that are called as its parameters, which are taken out of `options`."""
    return kind(**arguments_of(kind, options))
