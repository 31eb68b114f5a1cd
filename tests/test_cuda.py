"""`--device cuda`: the same numbers as on the CPU, to 1e-5 in float32 and 2e-2 in bfloat16, and nothing mixed between the two.

Every test runs on a pretended CUDA device (see `pretend_cuda`), so that each machine walks the whole path; on a machine that
has a GPU it runs there as well (marked `gpu`).
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
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
from tests.conftest import SAMPLES, Result, Run
from tests.tools import architectures, folders
from tests.tools.pretend_cuda import PretendCuda, pretend_cuda
from tests.tools.sweep.checkpoints import opened
from tests.tools.sweep.families import Family, build

Device = Callable[[], Any]
WORDS = " ".join(f"w{number}" for number in (7, 20, 31, 7, 55, 90, 12, 64, 33))  # of the sweep's tiny vocabulary

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
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands read: a checkpoint, texts long enough for a sweep, a batch, a corpus."""
    made = tmp_path_factory.mktemp("cuda")
    folders.write(made / "llama", "llama", max_position_embeddings=4096)
    days = [f"On day {day} of the year Alice ate {day % 7} pizzas." for day in range(60)]
    (made / "words.txt").write_text("\n".join(days[:52]))
    (made / "bytes.txt").write_text("\n".join(days[:15]))
    (made / "texts.txt").write_text("Alice will eat pizza\nBob likes tea very much\nYes\n")
    (made / "corpus.txt").write_text("the cat sat on the mat\nthe dog ran home\na bird sang\n" * 4)
    shutil.copy(SAMPLES / "sentences.conllu", made)
    return made


@pytest.fixture(autouse=True)
def _in_the_folder(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)


def both(cuda: Device, run: Run, line: str) -> Iterator[Result]:
    """What a command answers on the CPU and on the GPU."""
    stdin = b"heads --json --quiet\nablate --json --quiet\n" if line.startswith("shell") else b""
    for device, context in (("cpu", contextlib.nullcontext), ("cuda", cuda)):
        with context():
            result = run(*shlex.split(line), "--device", device, stdin=stdin)
        untrained = line.startswith("needle") and "answers none of the" in result.err
        assert result.code == untrained, result.err
        yield result


def numbers(value: Any) -> list[float]:
    """Every number of a JSON document, in order; the model's own description left out."""
    if isinstance(value, dict):
        value = [part for key, part in value.items() if key != "model"]
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [float(value)] if isinstance(value, int | float) else []


def printed_numbers(result: Result) -> list[float]:
    """Every number of lines of JSON, or of the cells of a table."""
    if result.out.startswith("{"):
        return numbers([json.loads(line) for line in result.out.splitlines()])
    return [float(cell) for cell in re.split(r"[\t\n]", result.out) if re.fullmatch(r"\d+(\.\d+)?(e-?\d+)?", cell)]


A = "Alice will eat pizza"
NEEDLE = "--needle 'The cat is red.' --question 'What is the cat?' --expect red"
WORDS_FILE, BYTES_FILE = "--file words.txt --model random", "--file bytes.txt --model llama"
EXACT = [
    *(f"explain '{A}' --json --model {model}" for model in ("random", "dot", "demo", "llama", "llama --generate 3")),
    f"explain '{A}' --json --model random --layers 2 --heads 4 --kv-heads 2 --positions rope --causal --window 3",
    f"explain '{A}' --json --model random --dropout 0.3 --positions sinusoidal --temperature 0.5",
    "batch texts.txt --model demo",
    "batch texts.txt --model llama",
    f"heatmap {BYTES_FILE} --layer 0 --head 0",
    *(f"heatmap {WORDS_FILE} {grid}" for grid in ("--pool max", "--rows 100-139 --columns 0-39", "--drop first")),
    *(f"heatmap {text} --spans lines" for text in (WORDS_FILE, BYTES_FILE)),
    *(f"explain --json --query 200 {text}" for text in (WORDS_FILE, BYTES_FILE)),
]
NEAR = [  # layers add up rounding
    f"explain '{A}' --json --model demo-causal",
    *(f"heads --json {text}" for text in (WORDS_FILE, BYTES_FILE)),
    *(f"ablate '{A}' --json --model llama {how}" for how in ("", "--edges", "--approximate")),
    f"contributions '{A}' --json --model llama",
    f"explain '{A}' --json --model llama --measure value-norm",
    f"explain '{A}' --json --model llama --measure rollout --words",
    f"explain '{A}' --json --model llama --off 1.2",
    f"sources 'Bob likes tea.\n\n{A}' --answer ' Alice' --json --model llama",
    f"compare llama dot '{A}' --json",
    "evaluate sentences.conllu --json --model llama",
    f"needle --model llama --lengths 300 --depths 0,100 {NEEDLE} --json",
    f"shell '{A}' --model llama",
    f"leaks '{A}' 'Bob likes tea' --pack --model llama --json",
]


@pytest.mark.grid
@pytest.mark.parametrize("line", [*EXACT, *NEAR])
def test_a_command_prints_the_same_numbers(cuda: Device, run: Run, line: str) -> None:
    on_cpu, on_gpu = both(cuda, run, line)
    tolerance = 1e-5 if line in EXACT else 1e-4
    np.testing.assert_allclose(printed_numbers(on_gpu), printed_numbers(on_cpu), rtol=tolerance, atol=tolerance)
    assert len(printed_numbers(on_cpu)) > 10
    if line.startswith("explain") and "200" not in line:
        assert on_gpu.json["model"]["device"].startswith("cuda")


@pytest.mark.parametrize(
    "line",
    [
        f"check '{A}' --model llama",
        f"quiz '{A}' --model llama --questions 2 --json",
        f"heatmap '{A}' --model llama --layer 0 -o grid.png",
        f"view '{A}' --model llama -o page.html",
    ],
)
def test_a_command_runs(cuda: Device, run: Run, files: Path, line: str) -> None:
    _, on_gpu = both(cuda, run, line)
    name = line.rpartition(" -o ")[2]
    assert on_gpu.out.strip() if name == line else (files / name).stat().st_size > 1000


def test_training(cuda: Device, run: Run, tmp_path: Path) -> None:
    small = ("--d-model", "8", "--heads", "2", "--batch-size", "8", "--max-steps", "4")
    losses = []
    for device in ("cpu", "cuda"):
        with cuda() if device == "cuda" else contextlib.nullcontext():
            result = run("train", "corpus.txt", "-o", tmp_path / device, "--device", device, *small)
        assert result.code == 0, result.err
        losses.append([json.loads(line)["loss"] for line in result.out.splitlines()])
    np.testing.assert_allclose(losses[1], losses[0], atol=1e-4)


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


@pytest.mark.parametrize("case", ["llama", "gemma3, window", "t5, bias"])
def test_leaks(cuda: Device, case: str) -> None:
    ids = torch.arange(5, 17)[None]
    owners = torch.tensor([[0] * 4 + [1] * 5 + [-1] * 3])
    seen = (owners[:, :, None] == owners[:, None])[:, None] | (torch.arange(12) == 2)  # all look at the third token
    batches = [
        {"segments": owners},
        {"segments": owners, "attention_mask": torch.zeros(1, 1, 12, 12).masked_fill(~seen, -1e4)},
    ]
    for batch in batches:
        model = architectures.build(case)
        on_cpu = attnctl.leaks(model, input_ids=ids, **batch)
        with cuda():
            on_gpu = attnctl.leaks(model.to("cuda"), input_ids=ids.to("cuda"), **batch)
        states = [[pair.state for pair in found.pairs] for found in (on_cpu, on_gpu)]
        assert states[0] == states[1] and "leak" in states[0]
        for name in ("change", "largest", "mean", "divergence"):
            told = [[getattr(pair, name) or 0.0 for pair in found.pairs] for found in (on_cpu, on_gpu)]
            np.testing.assert_allclose(told[1], told[0], atol=1e-4)


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
    (expected, _), context = pool_between_parts(call, parts, parts), fused_context(call)
    with cuda():
        there = Call(*(x.to("cuda") for x in (q, k, v)), **{name: to_device(value) for name, value in how.items()})
        (pooled, _), moved = pool_between_parts(there, parts, parts), fused_context(there)
        assert moved.device.type == "cuda"
        moved = moved.cpu()
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(pooled, expected, atol=tolerance)
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


@pytest.mark.parametrize("kind", ["diffllama", "gpt_oss", "qwen3_next", "deepseek_v32", "inkling2_text"])
def test_what_families_do_beside_the_softmax(cuda: Device, kind: str) -> None:
    """Two maps, sinks, gates, indexers' picks: seen on the device as on the CPU."""
    family = Family(kind, "causal")
    network = build(family)
    network.set_experts_implementation("eager")  # experts' grouped kernels are the device's own business
    on_cpu = record_trace(opened(family, network, "self"), WORDS)
    with cuda():
        on_gpu = record_trace(opened(family, network.to("cuda"), "self"), WORDS)
    for one, other in zip(on_cpu.layers, on_gpu.layers, strict=True):
        arrays = {array.name: there for array, there in other.arrays_kept()}
        assert {array.name for array, _ in one.arrays_kept()} == arrays.keys()
        if kind == "deepseek_v32" and cuda is not pretend_cuda and not np.array_equal(arrays["mask"], one.mask):
            break  # a GPU rounds otherwise: where an indexer's scores nearly tie, it picks other keys
        for array, there in one.arrays_kept():  # scores of these peaky networks are up to 40
            np.testing.assert_allclose(arrays[array.name], there, rtol=1e-5, atol=1e-4, err_msg=array.name)
