"""Memory of one query's weights, all heads, over a picture and a long text: `python -m tests.tools.benchmarks.bench_picture_prompt`.

LLaVA of random weights with 32 heads of 128 and 3 layers, 576 tokens of a picture and text to 3,000 in all. Three processes:
a plain forward under sdpa, the row that `attnctl heatmap --image` shows, and eager with every weight. Budget: the row's peak
is at most 1.2 times the forward's. Asserts nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

TOKENS = 3000
SIDE = 336  # pixels of a picture of 24 × 24 patches
WAYS = ("forward", "row", "eager")


def write_llava(folder: Path) -> None:
    """A checkpoint of random weights, its processor, and a picture."""
    import numpy as np
    import torch
    import transformers
    from PIL import Image

    from tests.models.huggingface.test_picture_prompts import TEMPLATE, tokenizer

    words = tokenizer("<image>")
    sizes = {"hidden_size": 4096, "num_hidden_layers": 3, "num_attention_heads": 32, "intermediate_size": 1024}
    seeing = {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    torch.manual_seed(0)
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**seeing, image_size=SIDE, patch_size=14),
        text_config=transformers.LlamaConfig(**sizes, vocab_size=320, max_position_embeddings=4096),
        image_token_id=words.convert_tokens_to_ids("<image>"),
    )
    transformers.LlavaForConditionalGeneration(config).save_pretrained(folder)
    crop = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    transformers.LlavaProcessor(
        transformers.CLIPImageProcessorPil(**crop),
        words,
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE.replace("MARK", "<image>"),
    ).save_pretrained(folder)
    pixels = np.random.default_rng(0).integers(0, 255, (480, 640, 3), np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")


def resident(field: str) -> float:
    """A line of the process's own status, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def measure(way: str, folder: Path) -> None:
    """Prints the tokens, the most memory of one way (MiB), what of it is beyond the loaded model, and its seconds."""
    import torch

    from attnctl.models import open_model
    from attnctl.source import TextSource, prepare
    from attnctl.source.cells import query_row

    torch.set_num_threads(1)
    model = open_model(str(folder), image=str(folder / "photo.png"))
    text = ("what is on the table and who put it there " * TOKENS)[: TOKENS - 576 - 12]
    source = TextSource(model, text)
    network = model.network  # type: ignore[attr-defined]
    inputs = model.read(text, source.tokens).inputs  # type: ignore[attr-defined]
    for weight in network.parameters():
        weight.sum()  # read from the file now
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    start = time.perf_counter()
    if way == "row":
        row = query_row(prepare(source), len(source.tokens) - 1)
        assert len(row.weights) == 3 * 32
    else:
        network.set_attn_implementation("eager" if way == "eager" else "sdpa")
        with torch.inference_mode():
            network(**inputs, use_cache=False, logits_to_keep=1, output_attentions=way == "eager")
    print(len(source.tokens), resident("VmHWM"), resident("VmHWM") - before, time.perf_counter() - start)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        write_llava(Path(name))
        took: dict[str, float] = {}
        for way in WAYS:
            command = [sys.executable, "-m", "tests.tools.benchmarks.bench_picture_prompt", way, name]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            tokens, took[way], beyond, seconds = (float(part) for part in said.split())
            ratio = took[way] / took["forward"]
            print(
                f"{way:8} {tokens:,.0f} tokens, {took[way]:,.0f} MiB, {ratio:.2f} × the forward; beyond the model "
                f"{beyond:,.0f} MiB; {seconds:.1f} s"
            )
        print("budget of the row: 1.2 ×")


if __name__ == "__main__":
    measure(sys.argv[1], Path(sys.argv[2])) if sys.argv[1:] else main()
