"""List the commands, and what each adds to the program: functions for Python, documents, formats, guides.

A command is a file or folder of `attnctl/commands/` that holds everything it needs, and an entry in COMMANDS. To delete one,
delete its folder, its tests, its guides, and its entry here. Everything is named by a text, "module:function", and imported
when it is used: this module imports nothing, so that all may import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class CommandPackage(NamedTuple):
    """A command, and what its package adds to the rest of the program."""

    panel: str  # its panel in `attnctl --help`
    about: str  # its line in the panel
    module: str  # the module with the function under @command
    functions: Mapping[str, str] = {}  # attnctl.NAME, for Python → its module
    guides: Mapping[str, str] = {}  # attnctl docs TOPIC → its line; these pages are deleted with the command
    documents: Mapping[str, str] = {}  # attnctl schema NAME → "module:Struct"
    batch_formats: Mapping[str, str] = {}  # batch --format NAME → "module:class", a BatchFormat
    prompt_formats: Mapping[str, str] = {}  # batch --format NAME → "module:class", a BatchFormat that answers prompts
    aligned_formats: Mapping[str, str] = {}  # batch --format NAME → "module:class", a BatchFormat that aligns texts
    suffixes: tuple[str, ...] = ()  # of the files that these write for each text
    # "module:function" that other commands call; they work without it if this command is deleted
    measures_training: str = ""  # for train: measures what the heads of a model learned, one Struct for each relation
    names_heads: str = ""  # for heads: reads a file as `NamesHeads`


LOOK, LEARN, MODELS, SETTINGS = "Look", "Learn", "Models", "Settings"

COMMANDS = {
    "explain": CommandPackage(
        LOOK, "every step of self-attention on a text, number by number", "attnctl.commands.explain"
    ),
    "check": CommandPackage(LOOK, "whether the weights hold when other means recompute them", "attnctl.commands.check"),
    "heatmap": CommandPackage(
        LOOK, "the weights as a picture, or as a grid in the terminal", "attnctl.commands.heatmap"
    ),
    "heads": CommandPackage(
        LOOK,
        "what each head does over a text, and what kind it is",
        "attnctl.commands.heads.command",
        functions={"heads": "attnctl.commands.heads.compute"},
    ),
    "ablate": CommandPackage(
        LOOK,
        "what each head, edge or part of a text does for a prediction",
        "attnctl.commands.ablate.command",
        functions={"ablate": "attnctl.commands.ablate.compute", "effects": "attnctl.commands.ablate.network"},
        guides={"attention-or-effect": "find out whether the head that looks also decides"},
        batch_formats={"effects": "attnctl.commands.ablate.batch:EffectMeans"},
    ),
    "compare": CommandPackage(
        LOOK,
        "two models, traces or texts, and their difference",
        "attnctl.commands.compare.command",
        functions={"compare": "attnctl.commands.compare.compute"},
        documents={"comparison": "attnctl.commands.compare.result:ComparisonDocument"},
    ),
    "drift": CommandPackage(
        LOOK,
        "which heads a quantised or fine-tuned copy moved",
        "attnctl.commands.drift.command",
        functions={"drift": "attnctl.commands.drift.compute"},
        guides={"drift": "find out which heads a quantised or fine-tuned copy moved"},
        documents={"drift": "attnctl.commands.drift.result:Drift"},
    ),
    "contributions": CommandPackage(
        LOOK, "what each part of a model adds to the logit of the next word", "attnctl.commands.contributions.command"
    ),
    "sources": CommandPackage(
        LOOK,
        "which part of a prompt an answer came from",
        "attnctl.commands.sources.command",
        functions={"sources": "attnctl.commands.sources.compute"},
        guides={"answer-sources": "find out which document an answer came from"},
        documents={"sources": "attnctl.commands.sources.result:AnswerSources"},
        prompt_formats={"sources": "attnctl.commands.sources.batch:PromptSources"},
    ),
    "needle": CommandPackage(
        LOOK,
        "whether a planted fact is found, and by which heads",
        "attnctl.commands.needle.command",
        documents={
            "needle": "attnctl.commands.needle.result:NeedleCell",
            "needles": "attnctl.commands.needle.result:Needles",
        },
    ),
    "align": CommandPackage(
        LOOK,
        "when each word was said, what a word was made from",
        "attnctl.commands.align.command",
        functions={"align": "attnctl.commands.align.compute"},
        guides={"speech": "find out when each word of a speech was said, and what a word was made from"},
        documents={
            "alignment": "attnctl.commands.align.result:AlignedSpeech",
            "text-alignment": "attnctl.commands.align.result:AlignedText",
            "alignment-score": "attnctl.commands.align.result:AlignmentScore",
        },
        aligned_formats={
            "pharaoh": "attnctl.commands.align.batch:PharaohLinks",
            "textgrid": "attnctl.commands.align.batch:TextGrids",
            "ctm": "attnctl.commands.align.batch:TimeMarks",
            "srt": "attnctl.commands.align.batch:SubRips",
            "vtt": "attnctl.commands.align.batch:WebVideoTexts",
            "labels": "attnctl.commands.align.batch:Labels",
            "words": "attnctl.commands.align.batch:Documents",
        },
        suffixes=("TextGrid", "srt", "vtt", "txt", "json"),
    ),
    "leaks": CommandPackage(
        LOOK,
        "whether packed documents are kept apart",
        "attnctl.commands.leaks.command",
        functions={"leaks": "attnctl.commands.leaks.compute"},
        guides={"packed-documents": "find out whether packed training data leaks between documents"},
        documents={"leaks": "attnctl.commands.leaks.result:Leaks"},
    ),
    "mask": CommandPackage(
        LOOK,
        "what each layer may see, and whether it keeps to that",
        "attnctl.commands.mask.command",
        functions={"mask": "attnctl.commands.mask.compute"},
        guides={"masks": "find out whether a model sees what it should not see"},
        documents={"mask": "attnctl.commands.mask.result:MaskCheck"},
    ),
    "view": CommandPackage(
        LOOK,
        "one HTML page to explore attention in a browser",
        "attnctl.commands.view.command",
        functions={"view": "attnctl.commands.view.compute"},
    ),
    "shell": CommandPackage(
        "Many questions", "many questions about one text, its model loaded once", "attnctl.commands.shell"
    ),
    "batch": CommandPackage(
        "Many texts",
        "every text of a file: traces as JSON lines, or pictures",
        "attnctl.commands.batch",
        guides={"many-texts": "take a file of sentences, on one machine or on a cluster"},
        documents={
            "batch": "attnctl.formats.documents.model_documents:BatchDocument",
            "manifest": "attnctl.formats.documents.model_documents:ManifestLine",
            "failed": "attnctl.formats.documents.model_documents:FailedText",
        },
    ),
    "model": CommandPackage(
        MODELS,
        "how large a model's attention is; the card of a trained model",
        "attnctl.commands.model.command",
        documents={
            "sizes": "attnctl.commands.model.result:Sizes",
            "card": "attnctl.commands.model.result:Card",
        },
    ),
    "train": CommandPackage(
        MODELS,
        "train a small attention model and watch it learn",
        "attnctl.commands.train.command",
        documents={
            "report": "attnctl.commands.train.result:ReportDocument",
            "lesson": "attnctl.commands.train.result:Lesson",
        },
    ),
    "film": CommandPackage(
        MODELS, "how the attention of a text changes while a model is trained", "attnctl.commands.film"
    ),
    "evaluate": CommandPackage(
        MODELS,
        "which words each head finds, compared with simple rules",
        "attnctl.commands.evaluate.command",
        functions={"evaluate": "attnctl.commands.evaluate.compute"},
        guides={"census": "count what each head finds in a treebank, beside rules that need no attention"},
        documents={
            "census": "attnctl.commands.evaluate.result:CensusTable",
            "relation": "attnctl.commands.evaluate.result:RelationDocument",
        },
        measures_training="attnctl.commands.evaluate.bundled:measure_relations",
        names_heads="attnctl.commands.evaluate.result:read_census",
    ),
    "softmax": CommandPackage(
        LEARN,
        "the softmax of a few scores, step by step",
        "attnctl.commands.softmax.command",
        documents={"softmax": "attnctl.commands.softmax.result:Softmax"},
    ),
    "quiz": CommandPackage(
        LEARN,
        "questions about the attention of a sentence",
        "attnctl.commands.quiz.command",
        documents={"quiz": "attnctl.commands.quiz.result:Quiz"},
    ),
    "config": CommandPackage(SETTINGS, "defaults of your own", "attnctl.commands.config"),
    "docs": CommandPackage(SETTINGS, "the documentation: lesson, guides, reference", "attnctl.commands.docs.command"),
    "schema": CommandPackage(SETTINGS, "the JSON Schema of what attnctl writes", "attnctl.commands.schema"),
}

# an option that a command, or every command, had, or that is looked for there → what is typed now, as the error names it
MOVED = {
    "compare --drift": "attnctl drift A B TEXT",
    "explain --all": "--layer all, or --steps all for the head that you choose,",
    "explain --against": "attnctl contributions TEXT --target WORD --against WORD",
    "explain --check": "attnctl check TEXT",
    "heatmap --run": "attnctl film RUN TEXT",
    "view --run": "attnctl film RUN TEXT -o page.html",
    "view --sources": "attnctl sources TEXT -o page.html",
    **{f"{name} --qkv": "attnctl explain --qkv FILE" for name in ("batch", "quiz")},
    "heatmap --json": "-o FILE.json, or attnctl explain TEXT --json,",
    "view --json": "attnctl explain TEXT --json",
    "evaluate --write-corpus": "-o FILE.conllu",
    "batch --parameters": "--steps all",
    "batch --json": "--format json, the default,",
    "--engine": "--ray ADDRESS",
    "--address": "--ray ADDRESS",
    "--no-scale": "--scale none",
    "--rope": "--positions rope",
    "--rope-pairs": "--positions rope, or rope-interleaved,",
}


def moved_option(command: str, option: str) -> str:
    """Return what is typed now in place of an option that a command had; "" for any other option."""
    return MOVED.get(f"{command} {option}") or MOVED.get(option, "")


# attnctl.NAME, for Python → its module
FUNCTIONS = {name: module for package in COMMANDS.values() for name, module in package.functions.items()}
BATCH_FORMATS = {name: place for package in COMMANDS.values() for name, place in package.batch_formats.items()}
PROMPT_FORMATS = {name: place for package in COMMANDS.values() for name, place in package.prompt_formats.items()}
ALIGNED_FORMATS = {name: place for package in COMMANDS.values() for name, place in package.aligned_formats.items()}
SUFFIXES = tuple(suffix for package in COMMANDS.values() for suffix in package.suffixes)
# attnctl schema NAME → "module:Struct"; the documents of the core, then those of the commands
DOCUMENTS = {
    "trace": "attnctl.formats.documents.trace_json:TraceDocument",
    "overview": "attnctl.formats.documents.overview_json:OverviewDocument",
    "effects": "attnctl.watched.effects:Effects",
} | {name: place for package in COMMANDS.values() for name, place in package.documents.items()}
