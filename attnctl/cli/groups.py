"""Declare the options that several commands have: single options as types, groups of options as frozen dataclasses.

An option of only one command is declared in the signature of its function. Its environment variable follows from its name:
`--rope-theta` is ATTNCTL_ROPE_THETA. With `envvar=ONE_CALL` it takes no default of the user, because it belongs to one call.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Annotated, Literal

from typer import Argument, BadParameter, Option
from typer.models import OptionInfo

from attnctl.checks import limits
from attnctl.checks.options import (
    CHANGED,
    CHECKPOINT,
    LOOK,
    MADE,
    MATHEMATICS,
    MODEL,
    NUMBERS,
    ONE_CALL,
    OUTPUT,
    SHOW,
    WORK,
    decimal,
    whole,
)
from attnctl.cli.suggestions import TEXT_WORDS, completing
from attnctl.measures import measure_names
from attnctl.text import value_text

# values for completion
MODEL_NAMES = (
    "attnctl.models:BUILT_IN",
    "attnctl.models.huggingface.hub:KNOWN",
    "attnctl.models.gguf.ollama:completions",
)


def measure_name(text: str) -> str:
    """Return the value of --measure. Raises BadParameter for an unknown name, AttnctlError for a broken plug-in."""
    from attnctl.cli.suggestions import suggest_choice
    from attnctl.measures import measure_named, measures_of_packages

    names = ["weights", *measure_names()]
    if text in names:
        return text
    if text not in measures_of_packages():
        from attnctl.plugins import names_from_packages

        names += names_from_packages("attnctl.measures", warn=False)
        raise BadParameter(
            f"{value_text(text, quoted=True)}: it is one of {', '.join(names)}{suggest_choice(text, names)}"
        )
    return measure_named(text).name


def option_values(group: object) -> dict[str, object]:
    """Return the options of a group by name, for a function that reads all of them."""
    return {field.name: getattr(group, field.name) for field in fields(group)}  # type: ignore[arg-type]


def output_option(help: str, metavar: str = "FILE") -> OptionInfo:
    """Return the option -o; its help says what the command writes."""
    info: OptionInfo = Option("-o", "--output", help=help, metavar=metavar, envvar=ONE_CALL, rich_help_panel=OUTPUT)
    return info


TextArgument = Annotated[
    str | None, Argument(help='The text, or "-" to read it from standard input.', metavar="[TEXT]")
]
SourceArgument = Annotated[
    str | None,
    Argument(
        help="The text, a trace or overview (.json, .npz), bare weights (.npy, .npz, .safetensors, .json, .csv, "
        '.parquet: attnctl docs my-checkpoint), or "-" for standard input.',
        metavar="[TEXT|FILE|-]",
    ),
]
LayerOption = Annotated[
    str | None,
    Option(
        "--layer",
        help="Layers: 3, 0-5, 1,4,7, -1 or all [default: all].",
        metavar="LAYERS",
        autocompletion=completing("all"),
        rich_help_panel=LOOK,
    ),
]
HeadOption = Annotated[
    str | None,
    Option(
        "--head",
        help="Heads: 3, 0-5, 1,4,7, -1 or all [default: all].",
        metavar="HEADS",
        autocompletion=completing("all"),
        rich_help_panel=LOOK,
    ),
]
TellingLayerOption = Annotated[  # for a command that shows one layer and head at a time
    str | None,
    Option(
        "--layer",
        help="Layers: 3, 0-5, 1,4,7, -1 or all [default: the most telling].",
        metavar="LAYERS",
        autocompletion=completing("all"),
        rich_help_panel=LOOK,
    ),
]
TellingHeadOption = Annotated[
    str | None,
    Option(
        "--head",
        help="Heads: 3, 0-5, 1,4,7, -1 or all [default: the most telling].",
        metavar="HEADS",
        autocompletion=completing("all"),
        rich_help_panel=LOOK,
    ),
]
QueryOption = Annotated[
    str | None,
    Option(
        "--query",
        "-q",
        help="Query token: its index, or its text (text:7 is the token “7”).",
        metavar="TOKEN",
        autocompletion=completing(TEXT_WORDS, joined=True),
        rich_help_panel=LOOK,
    ),
]
SpansOption = Annotated[
    str | None,
    Option(
        "--spans",
        help="Parts: words, sentences, paragraphs, lines, headings, documents, regions, or a file of name,start,end.",
        metavar="KIND|FILE",
        autocompletion=completing("attnctl.readings.spans:KINDS"),
        rich_help_panel=LOOK,
    ),
]
PrecisionOption = Annotated[
    int | None,
    Option(
        "--precision", help="Decimals [default: 2].", metavar="N", parser=whole(limits.PRECISION), rich_help_panel=SHOW
    ),
]
AgainstOption = Annotated[
    str | None,
    Option("--against", help="Measure logits relative to this word.", metavar="TEXT", rich_help_panel=LOOK),
]
JsonOption = Annotated[bool, Option("--json", help="Write JSON: one line.", rich_help_panel=OUTPUT)]
FileOption = Annotated[
    str | None,
    Option(
        "--file", "-f", help="Read the text from this file.", metavar="FILE", envvar=ONE_CALL, rich_help_panel=MODEL
    ),
]
TokensOption = Annotated[
    str | None,
    Option(
        "--tokens",
        help="The tokens of the text, or names of the rows of bare weights: words, or a JSON list or its file.",
        metavar="TOKENS",
        rich_help_panel=NUMBERS,
    ),
]
KeyTokensOption = Annotated[
    str | None,
    Option(
        "--key-tokens",
        help="Names of the columns of bare weights, or of the keys of --qkv, if they differ from the names of the rows.",
        metavar="TOKENS",
        rich_help_panel=NUMBERS,
    ),
]
ModelOption = Annotated[
    str | None,
    Option(
        "--model",
        "-m",
        help="demo, demo-causal, random, dot, a weights file, a checkpoint (folder, .gguf, ollama:NAME, Hugging Face id), "
        "or file.py:function, which returns a torch module of your own.",
        metavar="MODEL",
        autocompletion=completing(*MODEL_NAMES),
        rich_help_panel=MODEL,
    ),
]
DtypeOption = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"] | None,
    Option(
        "--dtype",
        help="Type of the numbers: auto, float32, bfloat16 or float16 (checkpoints).",
        rich_help_panel=CHECKPOINT,
    ),
]
DeviceOption = Annotated[
    str | None,
    Option(
        "--device",
        help="Where to compute: auto, cpu, cuda, cuda:1 or mps.",
        metavar="DEVICE",
        autocompletion=completing("auto", "cpu", "cuda", "mps"),
        rich_help_panel=MODEL,
    ),
]
ChatOption = Annotated[
    str | None,
    Option(
        "--chat",
        help="Read a conversation instead of a text: JSON, a list of objects with role and content.",
        metavar="FILE",
        rich_help_panel=MODEL,
    ),
]
OffOption = Annotated[
    str | None,
    Option("--off", help="Switch off these heads, as layer.head: 23.3,0.5.", metavar="HEADS", rich_help_panel=CHANGED),
]
SeedOption = Annotated[
    int | None,
    Option(
        "--seed",
        help="Seed of all random numbers [default: 0].",
        metavar="N",
        parser=whole(limits.SEED),
        rich_help_panel=MODEL,
    ),
]
GenerateOption = Annotated[
    int | None,
    Option(
        "--generate",
        help="Let a checkpoint add this many tokens at most; a decoder of texts takes the likeliest each time.",
        metavar="N",
        parser=whole(limits.GENERATE),
        rich_help_panel=CHECKPOINT,
    ),
]
BosOption = Annotated[
    bool | None,
    Option(
        "--bos/--no-bos",
        help="Begin with the start token of the model, or without it (checkpoints).",
        rich_help_panel=CHECKPOINT,
    ),
]
TruncateOption = Annotated[
    bool,
    Option("--truncate", help="Cut a text that is too long for the checkpoint.", rich_help_panel=CHECKPOINT),
]
ImageOption = Annotated[
    str | None,
    Option(
        "--image",
        help="Picture that the text is about; several with commas (vision-language checkpoints).",
        metavar="FILE",
        rich_help_panel=CHECKPOINT,
    ),
]
TokenizerOption = Annotated[
    str | None,
    Option(
        "--tokenizer",
        help="How to split the text: words, chars, or a tokenizer.json; for a checkpoint a tokenizer.json.",
        metavar="words|chars|FILE",
        autocompletion=completing("words", "chars"),
        rich_help_panel=NUMBERS,
    ),
]
EmbeddingsOption = Annotated[
    str | None,
    Option(
        "--embeddings",
        help="Embeddings, one row for each token (.npy, .npz, .csv).",
        metavar="FILE",
        rich_help_panel=NUMBERS,
    ),
]
QkvOption = Annotated[
    str | None,
    Option(
        "--qkv",
        help="Q, K and V from a file (.npz, .safetensors), (n, d) or (heads, n, d), with or without a text.",
        metavar="FILE",
        rich_help_panel=NUMBERS,
    ),
]
DModelOption = Annotated[
    int | None,
    Option(
        "--d-model",
        help="Length of an embedding (random, dot).",
        metavar="N",
        parser=whole(limits.SIZE),
        rich_help_panel=MADE,
    ),
]
DKOption = Annotated[
    int | None,
    Option(
        "--d-k",
        help="Length of a query and a key (random).",
        metavar="N",
        parser=whole(limits.SIZE),
        rich_help_panel=MADE,
    ),
]
NHeadsOption = Annotated[
    int | None,
    Option(
        "--n-heads",
        "--heads",
        help="Number of query heads in a layer.",
        metavar="N",
        parser=whole(limits.HEADS),
        rich_help_panel=MADE,
    ),
]
NKvHeadsOption = Annotated[
    int | None,
    Option(
        "--n-kv-heads",
        "--kv-heads",
        help="Number of key/value heads, shared by groups of query heads.",
        metavar="N",
        parser=whole(limits.HEADS),
        rich_help_panel=MADE,
    ),
]
NLayersOption = Annotated[
    int | None,
    Option(
        "--n-layers",
        "--layers",
        help="Number of layers (random, dot).",
        metavar="N",
        parser=whole(limits.LAYERS),
        rich_help_panel=MADE,
    ),
]
OutputProjectionOption = Annotated[
    bool | None,
    Option(
        "--output-projection/--no-output-projection",
        help="Use an output projection W_O, or none (random).",
        rich_help_panel=MADE,
    ),
]
CausalOption = Annotated[
    bool | None,
    Option("--causal/--no-causal", help="Hide later keys from every query, or do not.", rich_help_panel=MATHEMATICS),
]
WindowOption = Annotated[
    int | None,
    Option(
        "--window",
        help="Sliding window: hide keys that are this many tokens away or more.",
        metavar="N",
        parser=whole(limits.WINDOW),
        rich_help_panel=MATHEMATICS,
    ),
]
OffsetOption = Annotated[
    int | None,
    Option(
        "--offset",
        help="Where the first query stands among the keys, for --causal and --window (--qkv) [default: keys − queries].",
        metavar="N",
        parser=whole(limits.OFFSET),
        rich_help_panel=MATHEMATICS,
    ),
]
ScaleOption = Annotated[
    str | None,
    Option(
        "--scale",
        help="Factor on the scores: auto (1/√d_k), none, or a number: 0.125 or 1/8.",
        metavar="auto|none|X",
        autocompletion=completing("auto", "none"),
        rich_help_panel=MATHEMATICS,
    ),
]
TemperatureOption = Annotated[
    float | None,
    Option(
        "--temperature",
        help="Divide by this before the softmax.",
        metavar="X",
        parser=decimal(limits.TEMPERATURE),
        rich_help_panel=MATHEMATICS,
    ),
]
PositionsOption = Annotated[
    Literal["sinusoidal", "rope", "rope-interleaved"] | None,
    Option(
        "--positions",
        help="sinusoidal, added to the embeddings; or rope, which turns queries and keys (pairs of dimensions as in Llama; "
        "rope-interleaved: neighbours).",
        rich_help_panel=MATHEMATICS,
    ),
]
RopeThetaOption = Annotated[
    float | None,
    Option(
        "--rope-theta",
        help="Base of the angles of --positions rope [default: 10000].",
        metavar="X",
        parser=decimal(limits.ROPE_THETA),
        rich_help_panel=MATHEMATICS,
    ),
]
DropoutOption = Annotated[
    float | None,
    Option(
        "--dropout",
        help="Drop each weight with this probability (seeded).",
        metavar="X",
        parser=decimal(limits.DROPOUT),
        rich_help_panel=MATHEMATICS,
    ),
]
AttentionOption = Annotated[
    Literal["encoder", "decoder", "cross"] | None,
    Option(
        "--attention", help="Attention of an encoder-decoder: encoder, decoder or cross.", rich_help_panel=CHECKPOINT
    ),
]
TargetOption = Annotated[
    str | None,
    Option(
        "--target",
        help="What the model should write: the decoder's text (encoder-decoders); for contributions, view --effects a word.",
        metavar="TEXT",
        rich_help_panel=CHECKPOINT,
    ),
]
SourceLanguageOption = Annotated[
    str | None,
    Option(
        "--source-language",
        help="The language of the text: eng_Latn (checkpoints that translate).",
        metavar="CODE",
        rich_help_panel=CHECKPOINT,
    ),
]
TargetLanguageOption = Annotated[
    str | None,
    Option(
        "--target-language",
        help="The language that the decoder writes: fra_Latn (checkpoints that translate).",
        metavar="CODE",
        rich_help_panel=CHECKPOINT,
    ),
]
TextPairOption = Annotated[
    str | None,
    Option(
        "--text-pair",
        envvar=ONE_CALL,
        help="A second text that the model reads after the text: passage, hypothesis (checkpoints).",
        metavar="TEXT",
        rich_help_panel=CHECKPOINT,
    ),
]
PredictOption = Annotated[
    str | None,
    Option(
        "--predict",
        help="Show the words that the model expects after this token, or all (masked models: in its place).",
        metavar="TOKEN",
        autocompletion=completing(TEXT_WORDS),
        rich_help_panel=MODEL,
    ),
]
DropOption = Annotated[
    list[str],
    Option(
        "--drop",
        help="Leave out a key: first, special, a token or its index.",
        metavar="KEY",
        autocompletion=completing("first", "special", TEXT_WORDS, joined=True),
        rich_help_panel=CHANGED,
    ),
]
RenormaliseOption = Annotated[
    bool,
    Option("--renormalise", help="Make each row sum to 1 again.", rich_help_panel=CHANGED),
]
WordsOption = Annotated[
    bool,
    Option("--words", help="Merge the pieces of a tokenizer into words.", rich_help_panel=CHANGED),
]
MeasureOption = Annotated[
    str | None,
    Option(
        "--measure",
        help=f"What a cell holds: {', '.join(('weights', *measure_names()))}{{attnctl.measures}}.",
        metavar="MEASURE",
        autocompletion=completing("weights", "attnctl.measures:measure_names", "{attnctl.measures}"),
        parser=measure_name,
        rich_help_panel=CHANGED,
    ),
]
RayOption = Annotated[
    str | None,
    Option(
        "--ray",
        help="Let the workers of a Ray cluster do it: auto, HOST:PORT, or local, which starts one on this machine.",
        metavar="ADDRESS",
        rich_help_panel=WORK,
    ),
]
GpusPerWorkerOption = Annotated[
    float,
    Option(
        "--gpus-per-worker",
        help="GPUs for each worker of Ray.",
        metavar="X",
        parser=decimal(limits.GPUS),
        rich_help_panel=WORK,
    ),
]


@dataclass(frozen=True)
class CheckpointOptions:
    """A checkpoint, and how to run it."""

    model: ModelOption = None
    dtype: DtypeOption = None
    device: DeviceOption = None


@dataclass(frozen=True)
class AnswerOptions(CheckpointOptions):
    """A checkpoint that answers questions."""

    off: OffOption = None
    seed: SeedOption = None
    bos: BosOption = None


@dataclass(frozen=True)
class ReadingOptions(AnswerOptions):
    """A checkpoint that reads a text, or a picture."""

    truncate: TruncateOption = False
    image: ImageOption = None


@dataclass(frozen=True)
class PromptOptions(ReadingOptions):
    """A checkpoint that reads a prompt, and no options that change its numbers."""

    chat: ChatOption = None
    generate: GenerateOption = None


@dataclass(frozen=True)
class TextOptions:
    """How a model reads a text."""

    tokenizer: TokenizerOption = None
    attention: AttentionOption = None
    source_language: SourceLanguageOption = None
    target_language: TargetLanguageOption = None


@dataclass(frozen=True)
class MathematicsOptions:
    """The mathematics of a built-in model."""

    n_heads: NHeadsOption = None
    n_kv_heads: NKvHeadsOption = None
    causal: CausalOption = None
    window: WindowOption = None
    scale: ScaleOption = None
    temperature: TemperatureOption = None
    positions: PositionsOption = None
    rope_theta: RopeThetaOption = None
    dropout: DropoutOption = None


@dataclass(frozen=True)
class SizeOptions:
    """The sizes of a model of random numbers, which predicts no words."""

    d_model: DModelOption = None
    d_k: DKOption = None
    n_layers: NLayersOption = None
    output_projection: OutputProjectionOption = None


@dataclass(frozen=True)
class ComputingOptions(SizeOptions, MathematicsOptions, TextOptions):
    """The numbers that attention is computed from, and the mathematics."""

    embeddings: EmbeddingsOption = None


@dataclass(frozen=True)
class WatchedModelOptions(MathematicsOptions, TextOptions, ReadingOptions):
    """A model whose prediction is watched: a checkpoint, or a built-in model that predicts words."""


@dataclass(frozen=True)
class TextModelOptions(ComputingOptions, ReadingOptions):
    """A model of any kind that reads a text; a command adds its other options."""

    text_pair: TextPairOption = None


@dataclass(frozen=True)
class PromptedModelOptions(TextModelOptions):
    """A model of any kind that reads a text or a conversation, and may write."""

    chat: ChatOption = None
    generate: GenerateOption = None
    target: TargetOption = None


@dataclass(frozen=True)
class ManyTextsModelOptions(PromptedModelOptions):
    """A model of any kind that reads many texts."""

    predict: PredictOption = None


@dataclass(frozen=True)
class WeightsModelOptions(PromptedModelOptions):
    """A model whose weights are shown, or the queries, keys and values of a file, without predictions."""

    qkv: QkvOption = None
    offset: OffsetOption = None


@dataclass(frozen=True)
class CorpusModelOptions(SizeOptions, MathematicsOptions, TextOptions, AnswerOptions):
    """A model of any kind that reads the sentences of a corpus."""

    truncate: TruncateOption = False
    target: TargetOption = None


@dataclass(frozen=True)
class ModelOptions(WeightsModelOptions):
    """A model of any kind, with all options."""

    predict: PredictOption = None


@dataclass(frozen=True)
class WeightOptions:
    """What is shown instead of the weights."""

    drop: DropOption = field(default_factory=list)
    renormalise: RenormaliseOption = False
    words: WordsOption = False
    measure: MeasureOption = None


@dataclass(frozen=True)
class EngineOptions:
    """Where the work is done: on this machine or on a Ray cluster."""

    ray: RayOption = None
    gpus_per_worker: GpusPerWorkerOption = 0.0


ReplaceOption = Annotated[
    bool,
    Option("--replace", help="Remove the results in the folder of -o, and begin again.", rich_help_panel=WORK),
]
