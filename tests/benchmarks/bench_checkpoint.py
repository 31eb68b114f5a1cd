"""Checkpoints, as ratios: `python tests/benchmarks/bench_checkpoint.py`. Asserts nothing.

One head of a GPT-2-small-sized checkpoint at 1,024 tokens against the usual way (eager, output_attentions); and the whole
process on SmolLM2, as safetensors, against the twelve lines that people write. Peak memory is measured in processes of
their own, since a process never gives it back.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

TOKENS = 1024
USUAL = """
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


def one_forward(way: str) -> tuple[float, float]:
    """Seconds and extra peak MB of one recorded forward, the second of two (the first warms up on a short text)."""
    import torch
    from transformers.models.gpt2.modeling_gpt2 import GPT2Config, GPT2LMHeadModel

    import attnctl

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(attn_implementation="eager" if way == "eager" else "sdpa")).eval()
    ids = torch.randint(0, 50257, (1, TOKENS))

    def forward(ids: torch.Tensor) -> object:
        with torch.inference_mode():
            if way == "eager":
                return model(ids, output_attentions=True, use_cache=False, logits_to_keep=1).attentions
            if way == "fused":
                return model(ids, use_cache=False, logits_to_keep=1)
            with attnctl.capture(model, layers=[5], heads=[3]) as traces:
                model(ids, use_cache=False, logits_to_keep=1)
            return traces

    forward(ids[:, :16])
    before = resident("VmRSS")
    start = time.perf_counter()
    kept = forward(ids)
    seconds = time.perf_counter() - start
    del kept
    return seconds, resident("VmHWM") - before


def resident(field: str) -> float:
    """This process's memory in MB: now (VmRSS), or at its peak (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return float("nan")


def head(pairs: int) -> None:
    """One head recorded, against every layer's weights put out under eager."""
    found: dict[str, list[tuple[float, float]]] = {"eager": [], "fused": [], "capture": []}
    for _ in range(pairs):
        for way, runs in found.items():
            done = subprocess.run([sys.executable, __file__, way], capture_output=True, text=True, check=True)
            seconds, megabytes = done.stdout.split()
            runs.append((float(seconds), float(megabytes)))
    time_, memory = (
        {way: statistics.median(run[part] for run in runs) for way, runs in found.items()} for part in (0, 1)
    )
    for way in ("fused", "capture"):
        print(
            f"{way:8} {time_[way]:6.2f} s against eager's {time_['eager']:6.2f} s: ratio {time_[way] / time_['eager']:.2f}"
            f" (budget 0.45)   {memory[way]:6.0f} MB against {memory['eager']:6.0f} MB: "
            f"ratio {memory[way] / memory['eager']:.2f} (budget 0.20)"
        )


def process(folder: str, pairs: int) -> None:
    """The whole process on a checkpoint's folder, against the twelve lines."""
    text = "Alice will eat pizza"
    ours = [sys.executable, "-m", "attnctl", "explain", text, "--model", folder, "--layer", "13", "--head", "8"]
    theirs = [sys.executable, "-c", USUAL, folder, text]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "COLUMNS": "80"}

    def seconds(command: list[str]) -> float:
        start = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, env=environment)
        return time.perf_counter() - start

    seconds(ours), seconds(theirs)  # warm the caches
    times = [(seconds(ours), seconds(theirs)) for _ in range(pairs)]
    ratio = statistics.median(mine / other for mine, other in times)
    mine, other = (statistics.median(side) for side in zip(*times, strict=True))
    print(f"process  {mine:6.2f} s against the usual {other:6.2f} s: ratio {ratio:.2f} (budget 0.80)")


def main(pairs: int = 3) -> None:
    head(pairs)
    from attnctl.errors import AttnctlError
    from attnctl.models.gguf import folder_of
    from attnctl.models.places import find

    try:
        folder = find("smollm2")
    except AttnctlError as error:
        print(f"process  not measured: {error}")
        return
    process(str(folder_of(folder) if folder.suffix == ".gguf" else folder), pairs)


if __name__ == "__main__":
    if sys.argv[1:2] and not sys.argv[1].isdigit():
        print(*one_forward(sys.argv[1]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
