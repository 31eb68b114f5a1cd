"""`--device cuda`: the same numbers as on the CPU, to 1e-5 in float32 and 2e-2 in bfloat16, and nothing mixed between the two.

Every test runs on a pretended CUDA device (see `pretend_cuda`), so that each machine walks the whole path; on a machine that
has a GPU it runs there as well (marked `gpu`).
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attnctl
from attnctl.attention import Call
from attnctl.blockwise import even_parts
from attnctl.blockwise.rows import fused_context
from attnctl.blockwise.sweep import pool_between_parts
from attnctl.source import record_trace
from tests.conftest import SAMPLES, Result
from tests.tools import architectures, folders
from tests.tools.pretend_cuda import PretendCuda, pretend_cuda
from tests.tools.sweep.checkpoints import opened
from tests.tools.sweep.families import Family, build

Run = Callable[..., Result]
Device = Callable[[], Any]

TEXT = "Alice will eat pizza"
WORDS = " ".join(f"w{number}" for number in (7, 20, 31, 7, 55, 90, 12, 64, 33))  # of the sweep's tiny vocabulary
LONG = " ".join(f"On day {day} of the year Alice ate {day % 7} pizzas." for day in range(60))  # some 600 tokens

REAL = pytest.param(
    contextlib.nullcontext,
    id="gpu",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here")],
)


@pytest.fixture(params=[pytest.param(pretend_cuda, id="pretended"), REAL])
def cuda(request: pytest.FixtureRequest) -> Device:
    """A context in which there is a CUDA device."""
    return request.param


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write(tmp_path_factory.mktemp("llama"), "llama", max_position_embeddings=4096)


def both(cuda: Device, run: Run, *args: Any) -> tuple[Result, Result]:
    """What a command answers on the CPU and on the GPU."""
    on_cpu = run(*args, "--device", "cpu")
    with cuda():
        on_gpu = run(*args, "--device", "cuda")
    assert (on_cpu.code, on_gpu.code) == (0, 0), on_gpu.err
    return on_cpu, on_gpu


def numbers(value: Any) -> np.ndarray:
    """Every number of a JSON document, in order; the model's own description left out."""
    if isinstance(value, dict):
        value = [part for key, part in value.items() if key != "model"]
    if isinstance(value, list):
        return np.concatenate([np.zeros(0), *map(numbers, value)])
    return np.array([float(value)] if isinstance(value, (int, float)) else [])


def same(on_cpu: Any, on_gpu: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(numbers(on_gpu), numbers(on_cpu), rtol=tolerance, atol=tolerance)
    assert numbers(on_cpu).size > 10


MODELS = [
    ("--model", "random"),
    ("--model", "random", "--layers", "2", "--heads", "4", "--kv-heads", "2", "--rope", "--causal", "--window", "3"),
    ("--model", "random", "--dropout", "0.3", "--positions", "sinusoidal", "--temperature", "0.5"),
    ("--model", "dot",),
    ("--model", "demo",),
    ("--model", "demo-causal",),
]  # fmt: skip


@pytest.mark.parametrize("model", MODELS, ids=" ".join)
def test_explain(cuda: Device, run: Run, model: tuple[str, ...]) -> None:
    on_cpu, on_gpu = both(cuda, run, "explain", TEXT, "--json", *model)
    same(on_cpu.json, on_gpu.json, 1e-4 if "demo-causal" in model else 1e-5)  # its layers add up rounding
    assert on_gpu.json["model"]["device"].startswith("cuda")


def test_explain_a_checkpoint(cuda: Device, run: Run, llama: Path) -> None:
    same(*(result.json for result in both(cuda, run, "explain", TEXT, "--json", "--model", llama)))
    assert both(cuda, run, "explain", TEXT, "--model", llama, "--layer", "1")[1].out.strip()


def test_a_checkpoint_goes_on_and_is_checked(cuda: Device, run: Run, llama: Path) -> None:
    same(*(result.json for result in both(cuda, run, "explain", TEXT, "--json", "--model", llama, "--generate", "3")))
    with cuda():
        assert run("explain", TEXT, "--model", llama, "--check", "--device", "cuda").code == 0


@pytest.mark.parametrize("model", ["random", "llama"])
def test_a_long_text(cuda: Device, run: Run, llama: Path, tmp_path: Path, model: str) -> None:
    text = tmp_path / "long.txt"
    text.write_text(LONG)
    options = ("--file", text, "--model", llama if model == "llama" else model)
    on_cpu, on_gpu = both(cuda, run, "heads", "--json", *options)
    same(on_cpu.json["heads"], on_gpu.json["heads"], 1e-4)
    for more in (
        (),
        ("--pool", "max"),
        ("--spans", "lines"),
        ("--rows", "100-139", "--columns", "0-39"),
        ("--drop", "first"),
    ):
        tables = [
            list(csv.reader(io.StringIO(r.out), delimiter="\t")) for r in both(cuda, run, "heatmap", *options, *more)
        ]
        first = tables[0][0].index(next(name for name in tables[0][0] if ":" in name))  # the columns after are keys
        cells = [np.array([[float(cell or 0) for cell in row[first:]] for row in table[1:]]) for table in tables]
        np.testing.assert_allclose(cells[1], cells[0], atol=1e-5)
    on_cpu, on_gpu = both(cuda, run, "explain", "--json", "--query", "200", *options)
    same(on_cpu.json["heads"], on_gpu.json["heads"])


def test_a_picture(cuda: Device, run: Run, llama: Path, tmp_path: Path) -> None:
    with cuda():
        for name in ("grid.png", "grid.svg", "page.html"):
            result = run("heatmap", TEXT, "--model", llama, "--layer", "0", "-o", tmp_path / name, "--device", "cuda")
            assert result.code == 0 and (tmp_path / name).stat().st_size > 1000, result.err


def test_training(cuda: Device, run: Run, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the cat sat on the mat\nthe dog ran home\na bird sang\n" * 4)
    small = ("--d-model", "8", "--heads", "2", "--batch-size", "8", "--max-steps", "4")
    losses = []
    for device in ("cpu", "cuda"):
        with cuda() if device == "cuda" else contextlib.nullcontext():
            result = run("train", corpus, "-o", tmp_path / device, "--device", device, *small)
        assert result.code == 0, result.err
        losses.append([json.loads(line)["loss"] for line in result.out.splitlines()])
    np.testing.assert_allclose(losses[1], losses[0], atol=1e-4)


def test_a_batch(cuda: Device, run: Run, llama: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text(f"{TEXT}\nBob likes tea very much\nYes\n")
    for model in ("demo", llama):
        on_cpu, on_gpu = both(cuda, run, "batch", texts, "--model", model)
        for one, other in zip(on_cpu.out.splitlines(), on_gpu.out.splitlines(), strict=True):
            same(json.loads(one), json.loads(other))


@pytest.mark.parametrize("case", ["gpt2", "llama", "phi3", "bert", "bart", "gptj"])
def test_capture(cuda: Device, case: str) -> None:
    """Any transformers model on the device: forward and generate, tensors left on the device."""
    model = architectures.build(case)
    ids = torch.tensor([[5, 6, 7, 8, 9], [9, 8, 7, 6, 5]])
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if model.config.is_encoder_decoder else {})
    with torch.no_grad(), attnctl.capture(model) as on_cpu:
        model(**inputs)
    with cuda():
        moved = model.to("cuda")
        with torch.no_grad(), attnctl.capture(moved) as on_gpu:
            moved(**{name: value.to("cuda") for name, value in inputs.items()})
        for one, other in zip(on_cpu, on_gpu, strict=True):
            assert other.weights.device.type == "cuda"
            np.testing.assert_allclose(other.weights.cpu().numpy(), one.weights.numpy(), atol=1e-5)


CALLS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "window": {"causal": True, "window": 50},
    "cap": {"causal": True, "soft_cap": 5.0},
    "sinks": {"causal": True, "sinks": torch.linspace(-1, 2, 4)},
    "bias": {"bias": torch.randn(4, 700, 700, generator=torch.Generator().manual_seed(0))},
    "mask": {"mask": torch.rand(700, 700, generator=torch.Generator().manual_seed(0)) < 0.6},
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", CALLS)
def test_blocks_on_the_device(cuda: Device, kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overview and a context from queries and keys that live on the device."""
    if dtype == "bfloat16" and cuda is pretend_cuda:
        monkeypatch.setattr("attnctl.blockwise.sweep.is_fusible", lambda call: False)  # the CPU lacks CUDA's kernel
    made = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(heads, 700, 16, generator=made).to(getattr(torch, dtype)) for heads in (4, 2, 2))
    parts = even_parts(0, 700, 50)
    how = {name: x.to(q.dtype) if name in ("bias", "sinks") else x for name, x in CALLS[kind].items()}
    call = Call(q, k, v, **how)
    expected, context = pool_between_parts(call, parts, parts), fused_context(call)
    with cuda():
        there = Call(*(x.to("cuda") for x in (q, k, v)), **{name: to_device(value) for name, value in how.items()})
        found, moved = pool_between_parts(there, parts, parts), fused_context(there)
        assert moved.device.type == "cuda"
        moved = moved.cpu()
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(found, expected, atol=tolerance)
    np.testing.assert_allclose(moved.float().numpy(), context.float().numpy(), atol=tolerance)


def to_device(value: Any) -> Any:
    return value.to("cuda") if isinstance(value, torch.Tensor) else value


# --- the pretended device itself ---------------------------------------------------------------------------------


def test_the_pretended_device_refuses_what_a_gpu_refuses() -> None:
    with pretend_cuda():
        there, here = torch.ones(3, device="cuda"), torch.ones(3)
        assert isinstance(there, PretendCuda) and there.device == torch.device("cuda:0") and there.is_cuda
        assert not isinstance(there.cpu(), PretendCuda) and here.to("cuda").is_cuda
        assert (there * 2)[None].is_cuda and there.new_zeros(2).is_cuda and (there + torch.tensor(1.0)).is_cuda
        for mixed in (lambda: there + here, lambda: torch.cat([there, here]), lambda: here @ there):
            with pytest.raises(RuntimeError, match="same device"):
                mixed()
        for read in (there.numpy, lambda: np.asarray(there)):
            with pytest.raises(TypeError, match="cpu"):
                read()
    assert not torch.cuda.is_available() or torch.cuda.device_count() > 0


def test_a_census(cuda: Device, run: Run, llama: Path) -> None:
    for model in (llama, "demo"):
        on_cpu, on_gpu = both(cuda, run, "evaluate", SAMPLES / "sentences.conllu", "--json", "--model", model)
        same(on_cpu.json["heads"], on_gpu.json["heads"], 1e-4)
        assert [row["correct"] for row in on_gpu.json["relations"]] == [
            row["correct"] for row in on_cpu.json["relations"]
        ]


@pytest.mark.parametrize("kind", ["diffllama", "gpt_oss", "qwen3_next", "deepseek_v32", "deepseek_v4", "inkling2_text"])
def test_what_families_do_beside_the_softmax(cuda: Device, kind: str) -> None:
    """Signed weights, sinks, gates, indexers' scores: seen on the device as on the CPU."""
    family = Family(kind, "causal")
    network = build(family)
    network.set_experts_implementation("eager")  # experts' grouped kernels are the device's own business
    on_cpu = record_trace(opened(family, network, "self"), WORDS)
    with cuda():
        on_gpu = record_trace(opened(family, network.to("cuda"), "self"), WORDS)
    for one, other in zip(on_cpu.layers, on_gpu.layers, strict=True):
        arrays = {array.name: there for array, there in other.arrays_kept()}
        assert {array.name for array, _ in one.arrays_kept()} == arrays.keys()
        for array, there in one.arrays_kept():
            np.testing.assert_allclose(arrays[array.name], there, atol=2e-5, err_msg=array.name)


@pytest.mark.parametrize(
    "args",
    [
        ("ablate", TEXT),
        ("ablate", TEXT, "--edges"),
        ("ablate", TEXT, "--approximate"),
        ("explain", TEXT, "--steps", "contributions"),
        ("explain", TEXT, "--measure", "value-norm"),
        ("explain", TEXT, "--measure", "rollout", "--words"),
        ("explain", TEXT, "--off", "1.2"),
        ("sources", "Bob likes tea.\n\nAlice likes pizza.", "--answer", " Alice"),
    ],
    ids=lambda args: " ".join(args[:1] + args[2:]),
)
def test_effects_and_measures(cuda: Device, run: Run, llama: Path, args: tuple[str, ...]) -> None:
    same(*(result.json for result in both(cuda, run, *args, "--json", "--model", llama)), 1e-4)


NEEDLE = ("--needle", "The cat is red.", "--question", "What is the cat?", "--expect", "red")


def test_needles(cuda: Device, run: Run, llama: Path) -> None:
    """Each cell as on the CPU; the command fails either way, since the model answers none."""
    args = ("needle", "--model", llama, "--lengths", "300", "--depths", "0,100", *NEEDLE, "--json")
    on_cpu = run(*args, "--device", "cpu")
    with cuda():
        on_gpu = run(*args, "--device", "cuda")
    assert on_cpu.code == on_gpu.code == 1 and "answers none of the 2 needles" in on_gpu.err
    same(*([json.loads(line) for line in result.out.splitlines()] for result in (on_cpu, on_gpu)), 1e-4)


@pytest.mark.parametrize("model", ["llama", "random"])
def test_a_page_a_comparison_and_a_quiz(cuda: Device, run: Run, llama: Path, tmp_path: Path, model: str) -> None:
    named = str(llama) if model == "llama" else model
    same(*(result.json for result in both(cuda, run, "compare", named, "dot", TEXT, "--json")), 1e-4)
    assert both(cuda, run, "quiz", TEXT, "--model", named, "--questions", "2", "--json")[1].out.strip()
    with cuda():
        result = run("view", TEXT, "--model", named, "-o", tmp_path / "page.html", "--device", "cuda")
    assert result.code == 0 and (tmp_path / "page.html").stat().st_size > 10_000, result.err


@pytest.mark.parametrize("model", ["llama", "demo-causal"])
def test_many_questions_in_one_session(cuda: Device, run: Run, llama: Path, model: str) -> None:
    named, lines = str(llama) if model == "llama" else model, b"heads --json --quiet\nablate --json --quiet\n"
    outputs = []
    for device in ("cpu", "cuda"):
        with cuda() if device == "cuda" else contextlib.nullcontext():
            result = run("shell", TEXT, "--model", named, "--device", device, stdin=lines)
        assert (result.code, result.err) == (0, ""), result.err
        outputs.append([json.loads(line) for line in result.out.splitlines() if line.startswith("{")])
    same(*outputs, 1e-4)
