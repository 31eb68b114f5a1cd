"""Whole processes: how long they take to start, how time and memory grow, and how true the time left is that bars tell."""

from __future__ import annotations

import compileall
import json
import math
import os
import pty
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attnctl as attnctl_package
from tests.tools.benchmarks.measuring import STEADY, WORDS, ProcessCost, Row, attnctl, benchmark, in_turn, python

TEXT = "Alice will eat pizza"
TWELVE_LINES = """
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

name, text = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="eager")
model.eval()
inputs = tokenizer(text, return_tensors="pt")
with torch.no_grad():
    outputs = model(**inputs, output_attentions=True)
print(tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]), outputs.attentions[13][0, 8])
"""
# the parts that cannot be left out: imports, weights, tokenizer, forward
BARE = """
import sys
import attnctl.runtime.light_import as light

light.alone = True
with light.light_torch():
    import torch
with light.quick_listing():
    import transformers
network = light.import_lightly(lambda: transformers.LlamaForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32))
from tokenizers import Tokenizer

ids = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json").encode(sys.argv[2]).ids
with torch.inference_mode():
    network(torch.tensor([ids]))
"""

in_turn_by_the_clock = partial(in_turn, clock=time.perf_counter)


@benchmark()
def start() -> Iterator[Row]:
    """Yield the start of short commands against the import of torch.

    The package is compiled before, as pip does when it installs one: a checkout may have no bytecode.
    """
    compileall.compile_dir(Path(attnctl_package.__file__).parent, quiet=1)
    peer = python("-c", "import torch")
    for what, words, most, imports in (
        ("explain", ["explain", TEXT], 0.25, "numpy, typer, rich.table"),
        ("explain --json", ["explain", TEXT, "--json"], None, "numpy, typer, msgspec"),
        ("--help", ["--help"], 0.11, "typer.rich_utils, importlib.metadata"),
    ):
        pair = in_turn_by_the_clock(attnctl(*words), peer, 7)
        least = in_turn_by_the_clock(python("-c", f"import {imports}"), peer)
        limit = f"{least.ratio:.2f} by the imports alone: {imports}"
        yield pair.row(f"attnctl {what}, whole process", "python -c 'import torch'", most=most, limit=limit)


def safetensors_folder(file: Path) -> Path:
    """Return a new folder with a GGUF file's model, dequantised by transformers, for programs that read safetensors."""
    import transformers

    folder = Path(tempfile.mkdtemp())
    options: Any = {"gguf_file": file.name, "local_files_only": True}
    network = transformers.AutoModelForCausalLM.from_pretrained(file.parent, **options)
    network.hf_quantizer = None  # the matrices are float32 here, though the library still calls them quantised
    del network.config.quantization_config
    network.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(file.parent, **options).save_pretrained(folder)
    return folder


@benchmark()
def checkpoint() -> Iterator[Row]:
    """Yield the whole process on SmolLM2, as safetensors, against the twelve lines that people write."""
    from attnctl.models.huggingface.hub import find_checkpoint

    file = find_checkpoint("smollm2")
    folder = safetensors_folder(file) if file.suffix == ".gguf" else file
    usual = python("-c", TWELVE_LINES, folder, TEXT)
    ours = in_turn_by_the_clock(attnctl("explain", TEXT, "--model", folder, "--layer", "13", "--head", "8"), usual)
    bare = in_turn_by_the_clock(python("-c", BARE, folder, TEXT), usual, 1)
    limit = f"{bare.ratio:.2f} by imports, weights and forward alone"
    yield ours.row("whole process on SmolLM2", "twelve lines of transformers", most=0.6, limit=limit)


# an audit that finds something ends with a code of its own
AUDIT = """
import sys
from attnctl.cli.app import run_command

try:
    run_command(sys.argv[1:])
except SystemExit as ended:
    assert ended.code in (0, 4)
"""


@benchmark(quick=False)
def audits() -> Iterator[Row]:
    """Yield the mask of a packed batch against its leaks."""
    given = "samples/packed.json", "--model", "smollm2"
    costs = [[python("-c", AUDIT, name, *given)().processor for name in ("mask", "leaks")] for _ in range(3)]
    ours, theirs = (statistics.median(side) for side in zip(*costs, strict=True))
    ratio = statistics.median(mask / leaks for mask, leaks in costs)
    times = {"ours": f"{ours:.3g} s", "theirs": f"{theirs:.3g} s"}
    yield Row("mask of a packed batch, SmolLM2", "leaks", ratio, most=1.1, **times)


def register_each(name: str, function: Callable[[str], Iterator[Row]], subjects: Iterable[str]) -> None:
    """Register a benchmark for each subject, so that each runs alone: startup.growth_heads is `function("heads")`."""
    for subject in subjects:
        rows = partial(function, subject)
        rows.__dict__.update(__name__=f"{name}_{subject}", __module__=__name__)
        benchmark(quick=False)(rows)


# --- the second core -----------------------------------------------------------------------------------------------

# commands on a checkpoint, of which each takes seconds
ON_TWO_CORES = {
    "heads": "heads --file TEXT --model smollm2",
    "heatmap": "heatmap --file TEXT --model smollm2 -o OUT.png",
    "ablate": "ablate --file SHORT --model smollm2",
    "sources": "sources --file TEXT --model smollm2 --spans paragraphs --answer pizza",
    "drift": "drift smollm2 smollm2 --dtype-b bfloat16 --file TEXT",
    "batch": "batch LINES --model minilm -o OUT --steps weights --replace",
}
PARAGRAPH = "Alice will eat some warm pizza in the garden while Bob reads a book about the river.\n\n"


TURNS = 4  # the fastest of so many: a neighbour of the machine slows down single runs by a fifth


def second_core(name: str) -> Iterator[Row]:
    """Yield how many times as fast a command on a checkpoint is on two cores as on one, by the clock.

    The process of one core is bound to it, as by `taskset -c 0`: torch's threads are not the only ones of a command. The limit
    is what two cores would give if they halved all that a long text takes beyond a short one.
    """
    if len(cores := sorted(os.sched_getaffinity(0))) < 2:
        return
    long = {"TEXT": PARAGRAPH * 40, "SHORT": PARAGRAPH.strip(), "LINES": PARAGRAPH.replace("\n\n", "\n") * 3000}
    short = {"TEXT": PARAGRAPH * 2, "LINES": PARAGRAPH.replace("\n\n", "\n")}

    def seconds(texts: dict[str, str], count: int) -> float:
        """Return how long the command takes on `count` cores."""
        with tempfile.TemporaryDirectory() as folder:
            for file, text in texts.items():
                Path(folder, file).write_text(text)
            words = [
                str(Path(folder, word)) if word in texts or word.startswith("OUT") else word
                for word in ON_TWO_CORES[name].split()
            ]
            threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(count))
            return on_cores(cores[:count], attnctl(*words, **threads)).wall

    alone, both = (
        min(side) for side in zip(*((seconds(long, 1), seconds(long, 2)) for _ in range(TURNS)), strict=True)
    )
    times, limit = {"ours": f"{both:.3g} s", "theirs": f"{alone:.3g} s"}, ""
    if name != "ablate":  # which runs as many forwards for a short text
        start = min(seconds(short, 1) for _ in range(TURNS))
        limit = f"{2 * alone / (alone + start):.2f} × if all beyond the {start:.1f} s of a short text took half"
    model = "MiniLM" if "minilm" in ON_TWO_CORES[name] else "SmolLM2"
    what = f"{name}, {model}, two cores"
    yield Row(what, "bound to one core", alone / both, "× as fast", least=1.4, limit=limit, **times)


def on_cores(cores: Collection[int], command: Callable[[], ProcessCost]) -> ProcessCost:
    """Return the cost of a command whose process is bound to these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        return command()
    finally:
        os.sched_setaffinity(0, before)


register_each("second_core", second_core, ON_TWO_CORES)


# --- growth --------------------------------------------------------------------------------------------------------

GROWING = {
    "explain": "explain --file TEXT",
    "heatmap": "heatmap --file TEXT --head 0 -o OUT.png",
    "heads": "heads --file TEXT -o OUT.html",
    "ablate": "ablate --file TEXT --query 5 --layer 0 --head 0",
    "mask": "mask WORDS",
    "sources": "sources --file TEXT --answer pizza --model smollm2",
    "batch": "batch TEXT -o OUT --steps weights --replace",
}
SHORTEST, LONGEST = 512, 16_384  # tokens
READ_BY_SMOLLM2 = 8_192  # tokens, with those of the answer
LINES, MOST_LINES = 256, 8_192  # texts of a batch
SECONDS = 60.0  # of the processor, of a run after which no longer text is tried
ROUNDS = 3
PLAIN = "-c FORWARD TEXT"
PLAIN_FORWARD = """
import sys
from pathlib import Path
from attnctl.models import open_model
model, text = open_model("demo"), Path(sys.argv[1]).read_text()
model.run(model.tokenize(text), lambda layer: None, text)
"""


def write_words(file: Path, lines: int, words: int) -> None:
    """Write lines of random words."""
    draw = random.Random(words)
    file.write_text("".join(" ".join(draw.choice(WORDS) for _ in range(words)) + "\n" for _ in range(lines)))


def costs_of_growth(command: str, sizes: Iterable[int], write: Callable[[Path, int], None]) -> dict[int, ProcessCost]:
    """Return the cost of a command on inputs of each size, until a run takes too long.

    It is the least of ROUNDS processes: what else the machine does only adds to a cost, and the start of a process varies as
    much as a text of 2,048 tokens takes.
    """
    costs: dict[int, ProcessCost] = {}
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "text.txt")
        for n in sizes:
            write(text, n)
            values = {
                "TEXT": str(text),
                "OUT": str(Path(folder, f"out-{n}")),
                "OUT.png": str(Path(folder, f"out-{n}.png")),
                "FORWARD": PLAIN_FORWARD,
            }
            values |= {"OUT.html": str(Path(folder, f"out-{n}.html")), "WORDS": text.read_text().strip()}
            words = [values.get(word, word) for word in command.split()]
            run = python(*words, **STEADY) if words[0] == "-c" else attnctl(*words, **STEADY)
            costs[n] = ProcessCost(*map(min, zip(*(run() for _ in range(ROUNDS)), strict=True)))
            if costs[n].processor > SECONDS:
                break
    return costs


def exponent(sizes: list[int], values: list[float], noise: float) -> float:
    """Fit k of nᵏ by least squares to how much more each of the three largest inputs costs than one of half the size.

    So what does not grow, such as the start, has no part in it. NaN if they cost less than `noise` more.
    """
    steps = list(zip(sizes[1:], values, values[1:], strict=False))[-3:]
    points = [(math.log(n), math.log(after - before)) for n, before, after in steps if after - before > noise]
    return statistics.linear_regression(*zip(*points, strict=True)).slope if len(points) > 1 else math.nan


def growth_rows(
    name: str, costs: dict[int, ProcessCost], unit: str, plain: dict[int, ProcessCost] | None = None
) -> Iterator[Row]:
    """Yield the exponents of time and of memory; beside that of time stands that of `plain` forwards, if they are given."""
    sizes, largest = list(costs), costs[max(costs)]
    for what, values, noise, most, ours in (
        ("time", [cost.processor for cost in costs.values()], 0.1, 2.05, f"{largest.processor:.1f} s"),
        ("memory", [cost.memory for cost in costs.values()], 8.0, 1.05, f"{largest.memory:,.0f} MiB"),
    ):
        value, unit_of_cost = exponent(sizes, values, noise), "s" if what == "time" else "MiB"
        limit = (
            f"{values[-2]:,.3g} {unit_of_cost} for half as many"
            if value == value
            else f"grows by less than {noise:g} {unit_of_cost}"
        )
        if plain is not None and what == "time":
            limit += f"; {exponent(list(plain), [cost.processor for cost in plain.values()], noise):.2f} by one plain forward"
        peer = f"{sizes[0]:,} to {sizes[-1]:,} {unit}"
        yield Row(f"{name}: growth of {what}", peer, value, "= k of nᵏ", most=most, ours=ours, limit=limit)


def growth(name: str) -> Iterator[Row]:
    """Yield how time and memory of a command grow with the length of a text, of `batch` with the number of texts."""
    command, of_texts = GROWING[name], name == "batch"
    least, most = (LINES, MOST_LINES) if of_texts else (SHORTEST, LONGEST)
    sizes = [least << step for step in range((most // least).bit_length())]
    if "smollm2" in command:
        sizes = [n for n in sizes if n < READ_BY_SMOLLM2]

    def write(file: Path, n: int) -> None:
        write_words(file, *((n, 8) if of_texts else (1, n)))

    costs = costs_of_growth(command, sizes, write)
    plain = costs_of_growth(PLAIN, sizes, write) if name in ("heads", "ablate") else None
    model = "SmolLM2" if "smollm2" in command else "demo"
    what = "ablate one head" if name == "ablate" else name
    yield from growth_rows(f"{what}, {model}", costs, "texts" if of_texts else "tokens", plain)


register_each("growth", growth, GROWING)


# --- the time left -------------------------------------------------------------------------------------------------

WATCHED = """
import json, sys, time
import rich.progress
updated = rich.progress.Progress.update
moments = []

def update(self, task_id, **fields):
    updated(self, task_id, **fields)
    task = self.tasks[0]
    moments.append((time.monotonic(), task.completed / (task.total or 1), task.fields["work"].left()))

rich.progress.Progress.update = update
from attnctl.cli.app import run_command
try:
    run_command(sys.argv[2:])
finally:
    open(sys.argv[1], "w").write(json.dumps(moments))
"""
LONG = "Alice will eat some warm pizza in the garden while Bob reads a book about the river. " * 700
LASTING = (
    "heads --file LONG",
    "heads --file SHORTER --model smollm2",
    "ablate 'The capital of France is Paris and the capital of Italy is' --model smollm2",
    "sources --file DOCUMENTS --model smollm2 --spans paragraphs",
    "needle --model smollm2 --lengths 256,1024",
    "batch LINES -o OUT --format json --steps weights",
)


def factors(arguments: list[str], folder: str) -> tuple[list[float], float]:
    """Return each time left against what it then was, the larger over the smaller; and the seconds from first bar to end.

    From a tenth of the work to the last two seconds, since bars tell whole ones. The command runs on a terminal of its own.
    """
    written = Path(folder, "moments.json")
    theirs, ours = pty.openpty()
    command, nowhere = [sys.executable, "-c", WATCHED, str(written), *arguments], subprocess.DEVNULL
    run = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=ours)
    os.close(ours)
    try:
        while os.read(theirs, 4096):
            pass
    except OSError:  # the terminal's other end is closed
        pass
    run.wait()
    moments = json.loads(written.read_text())
    end = moments[-1][0] if moments else 0
    true = [(end - when, max(left, 0.5)) for when, share, left in moments if share >= 0.1 and left is not None]
    wrong = [max(left / later, later / left) for later, left in true if later >= 2]
    return wrong, end - moments[0][0] if moments else 0.0


@benchmark(quick=False)
def time_left() -> Iterator[Row]:
    """Yield the median and the largest factor between the time left as a bar tells it and as it was."""
    with tempfile.TemporaryDirectory() as folder:
        files = {
            "LONG": LONG,
            "SHORTER": LONG[: len(LONG) // 8],
            "LINES": "\n".join(LONG[at : at + 60 + at % 90] for at in range(8000)),
            "DOCUMENTS": "".join(f"Document {at}. In house {at} lives a baker called Ann{at}.\n\n" for at in range(24)),
        }
        for name, text in files.items():
            Path(folder, name).write_text(text)
        for command in LASTING:
            words = [str(Path(folder, word)) if word in (*files, "OUT") else word for word in shlex.split(command)]
            wrong, seconds = factors(words, folder)
            name, peer, limit = f"time left of {command[:40]}", "the time it took", f"{seconds:.0f} s in all"
            median, worst = statistics.median(wrong or [math.nan]), max(wrong, default=math.nan)
            yield Row(f"{name}, median", peer, median, most=1.3, limit=limit)
            yield Row(f"{name}, worst moment", peer, worst, most=2, limit=limit)
