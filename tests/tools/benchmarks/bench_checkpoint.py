"""Checkpoints, as ratios: `python tests/tools/benchmarks/bench_checkpoint.py`. Asserts nothing.

One head of a checkpoint of GPT-2 small's size, and of SmolLM2's, at 1,024 tokens against the usual way (eager,
output_attentions), and against the same without the logits that nobody reads; and the whole process on SmolLM2, as
safetensors, against the twelve lines that people write, and against its parts that cannot be left out: the same imports,
weights, tokenizer and forward, with nothing of attnctl's but its lighter imports. Peak memory is measured in processes of
their own, since a process never gives it back.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
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


BARE = """
import sys
import attnctl.light_import as light

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


def forwards(shape: str) -> dict[str, Callable[[int], object]]:
    """The ways to run a network over so many tokens: eager with every weight, fused with none, capture with one head.

    `lean` is eager with the logits of the last token alone; the capture of the last layer is its worst case.
    """
    import torch
    from transformers.models.gpt2.modeling_gpt2 import GPT2Config, GPT2LMHeadModel
    from transformers.models.llama.modeling_llama import LlamaConfig, LlamaForCausalLM

    import attnctl

    torch.manual_seed(0)
    if shape == "GPT-2":
        model, middle, last = GPT2LMHeadModel(GPT2Config()).eval(), 5, 11
    else:
        heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "num_hidden_layers": 30}
        sizes = {"vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "tie_word_embeddings": True}
        model, middle, last = LlamaForCausalLM(LlamaConfig(**sizes, **heads)).eval(), 14, 29
    ids = torch.randint(0, 49152, (1, TOKENS))

    @torch.inference_mode()
    def eager(n: int, **how: object) -> object:
        model.set_attn_implementation("eager")
        return model(ids[:, :n], output_attentions=True, **how).attentions

    @torch.inference_mode()
    def fused(n: int) -> object:
        model.set_attn_implementation("sdpa")
        return model(ids[:, :n])

    @torch.inference_mode()
    def capture(n: int, layer: int = middle) -> object:
        model.set_attn_implementation("sdpa")
        with attnctl.capture(model, layer=[layer], head=[3], stop=True) as traces:
            model(ids[:, :n])
        return traces

    lean = partial(eager, use_cache=False, logits_to_keep=1)
    return {"eager": eager, "lean": lean, "fused": fused, "middle": capture, "last": partial(capture, layer=last)}


def peak(shape: str, way: str) -> float:
    """Extra peak MB of one forward, after one on a short text."""
    forward = forwards(shape)[way]
    forward(16)
    before = resident("VmRSS")
    kept = forward(TOKENS)
    del kept
    return resident("VmHWM") - before


def resident(field: str) -> float:
    """This process's memory in MB: now (VmRSS), or at its peak (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return float("nan")


def head(shape: str, pairs: int) -> None:
    """One head recorded, against every layer's weights put out under eager."""
    ways = forwards(shape)
    for forward in ways.values():
        forward(TOKENS)
    times: list[dict[str, float]] = []
    for _ in range(2 * pairs):
        times.append({})
        for way, forward in ways.items():
            start = time.perf_counter()
            forward(TOKENS)
            times[-1][way] = time.perf_counter() - start
    memory = {}
    for way in ways:
        done = subprocess.run([sys.executable, __file__, shape, way], capture_output=True, text=True, check=True)
        memory[way] = float(done.stdout)
    for way in ("fused", "middle", "last"):
        for peer in ("eager", "lean"):
            ours, theirs = (statistics.median(run[name] for run in times) for name in (way, peer))
            ratio = statistics.median(run[way] / run[peer] for run in times)
            print(
                f"{shape:7} {way:8} {ours:6.2f} s against {peer:5} {theirs:6.2f} s: ratio {ratio:.2f} (budget 0.45)   "
                f"{memory[way]:6.0f} MB against {memory[peer]:6.0f} MB: ratio {memory[way] / memory[peer]:.2f} (budget 0.20)"
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

    bare = [sys.executable, "-c", BARE, folder, text]
    commands = (ours, bare, theirs)
    for command in commands:
        seconds(command)  # warm the caches
    times = [tuple(map(seconds, commands)) for _ in range(pairs)]
    mine, least, other = (statistics.median(side) for side in zip(*times, strict=True))
    ratio, floor = (statistics.median(run[at] / run[2] for run in times) for at in (0, 1))
    print(
        f"process  {mine:6.2f} s against the usual {other:6.2f} s: ratio {ratio:.2f} (budget 0.45); "
        f"bare imports, weights and forward {least:.2f} s: {floor:.2f}"
    )


def main(pairs: int = 3) -> None:
    head("GPT-2", pairs)
    head("SmolLM2", pairs)
    from attnctl.errors import AttnctlError
    from attnctl.models.huggingface.gguf import dequantised_folder
    from attnctl.models.huggingface.hub import find_checkpoint

    try:
        folder = find_checkpoint("smollm2")
    except AttnctlError as error:
        print(f"process  not measured: {error}")
        return
    process(str(dequantised_folder(folder) if folder.suffix == ".gguf" else folder), pairs)


if __name__ == "__main__":
    if sys.argv[1:2] and not sys.argv[1].isdigit():
        print(peak(*sys.argv[1:]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
