"""Vision-language models: a text beside a picture, whose tokens have boxes; weights are eager's to the last bit."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import attnctl
from attnctl.checks.selection import find_several
from attnctl.errors import AttnctlError
from attnctl.formats.photographs import read_photograph, read_photographs
from attnctl.models import open_model
from attnctl.models.huggingface.readers.picture_views import PictureLayout
from attnctl.readings.head_statistics import spatial_entropy
from attnctl.readings.picture_heat import heat_of_boxes
from attnctl.source import record_trace
from attnctl.text.tokens import Token
from attnctl.trace import Trace
from tests.conftest import Run

transformers = pytest.importorskip("transformers")

TEXT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 32,
    "vocab_size": 320,
    "max_position_embeddings": 512,
}
SEEING = {
    "hidden_size": 32,
    "num_hidden_layers": 3,  # more than the text's: they are not its layers
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
}
TEMPLATE = (
    "{% for part in messages[0]['content'] %}{% if part['type'] == 'image' %}MARK\n{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %} ASSISTANT:"
)


def tokenizer(*special: str, **called: str) -> Any:
    """A character a token, and these; `called` are known to the processor by a name."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = ["<unk>", "<s>", "</s>", "<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    made = Tokenizer(models.BPE(vocab={piece: at for at, piece in enumerate(vocabulary)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    made.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    named = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, extra_special_tokens=called or list(special), **named
    )


def llava() -> tuple[Any, Any]:
    words = tokenizer("<image>")
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**SEEING),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=words.convert_tokens_to_ids("<image>"),
    )
    resized = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor = transformers.LlavaProcessor(
        resized,
        words,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE.replace("MARK", "<image>"),
    )
    return transformers.LlavaForConditionalGeneration(config), processor


def padded_llava() -> tuple[Any, Any]:
    network, processor = llava()
    crop = {"height": 32, "width": 32}
    processor.image_processor = transformers.LlavaImageProcessorPil(
        size={"shortest_edge": 32}, crop_size=crop, do_pad=True
    )
    return network, processor


def deepseek_vl() -> tuple[Any, Any]:
    words = tokenizer(image_token="<image_placeholder>")
    config = transformers.DeepseekVLConfig(
        vision_config=transformers.SiglipVisionConfig(**SEEING),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=words.image_token_id,
    )
    resized = transformers.DeepseekVLImageProcessorPil(size={"height": 32, "width": 32})
    template = TEMPLATE.replace("MARK", "<image_placeholder>")
    processor = transformers.DeepseekVLProcessor(resized, words, chat_template=template, num_image_tokens=16)
    return transformers.DeepseekVLForConditionalGeneration(config), processor


LAYERS = ["sliding_attention", "full_attention"]


def gemma3(side: int = 2, window: int = 8) -> tuple[Any, Any]:
    words = tokenizer(boi_token="<start_of_image>", eoi_token="<end_of_image>", image_token="<image_soft_token>")
    config = transformers.Gemma3Config(
        vision_config=transformers.SiglipVisionConfig(**SEEING),
        text_config=transformers.Gemma3TextConfig(**TEXT, sliding_window=window, layer_types=LAYERS),
        mm_tokens_per_image=side**2,
        image_token_index=words.image_token_id,
    )
    resized = transformers.Gemma3ImageProcessorPil(size={"height": 32, "width": 32})
    processor = transformers.Gemma3Processor(
        resized, words, image_seq_length=side**2, chat_template=TEMPLATE.replace("MARK", "<start_of_image>")
    )
    return transformers.Gemma3ForConditionalGeneration(config), processor


def paligemma(window: int | None = None) -> tuple[Any, Any]:
    words = tokenizer(image_token="<image>")
    config = transformers.PaliGemmaConfig(
        vision_config=transformers.SiglipVisionConfig(**SEEING, projection_dim=32),
        text_config=transformers.Gemma2Config(**TEXT, sliding_window=window)
        if window
        else transformers.GemmaConfig(**TEXT),
        image_token_index=words.image_token_id,
        projection_dim=32,
    )
    resized = transformers.SiglipImageProcessorPil(size={"height": 32, "width": 32})
    resized.image_seq_length = 16
    return transformers.PaliGemmaForConditionalGeneration(config), transformers.PaliGemmaProcessor(resized, words)


class Files:
    """The files of a processor, which transformers makes only where torchvision is, since it has a part for videos.

    `nested`: in one file, as save_pretrained writes them; else one for each part, as most checkpoints on the hub have them.
    """

    nested = False

    def __init__(self, kind: str, image_processor: Any, words: Any, mark: str, **more: Any) -> None:
        self.kind, self.image_processor, self.words, self.mark, self.more = kind, image_processor, words, mark, more

    def save_pretrained(self, folder: Path) -> None:
        self.words.save_pretrained(folder)
        (folder / "chat_template.jinja").write_text(TEMPLATE.replace("MARK", self.mark))
        named = {"processor_class": f"{self.kind}Processor"}
        pictures = self.image_processor.to_dict()
        pictures["image_processor_type"] = pictures["image_processor_type"].removesuffix("Pil")
        videos = {"video_processor_type": f"{self.kind}VideoProcessor", "size": {"height": 32, "width": 32}}
        files = {"processor_config.json": named | self.more | {"image_processor": pictures, "video_processor": videos}}
        if not self.nested:
            files = {"preprocessor_config.json": pictures | named, "video_preprocessor_config.json": videos | named}
            files |= {"processor_config.json": named | self.more} if self.more else {}
        for name, settings in files.items():
            (folder / name).write_text(json.dumps(settings))


class StandIn:
    """Does what Pixtral's processor does, which needs torchvision: a mark becomes as many as the picture has tokens."""

    def __init__(self, image_processor: Any, words: Any, mark: str, marks: Callable[[Any, int], str]) -> None:
        self.image_processor, self.words, self.mark, self.marks = image_processor, words, mark, marks

    def __call__(self, text: list[str], images: list[Any], return_tensors: str) -> dict[str, Any]:
        made = dict(self.image_processor(images, return_tensors=return_tensors))
        first, *rest = text[0].split(self.mark)
        prompt = first + "".join(self.marks(made, at) + part for at, part in enumerate(rest))
        ids = self.words(prompt, return_tensors=return_tensors)["input_ids"]
        return {"input_ids": ids, **made}

    def save_pretrained(self, folder: Path) -> None:
        self.words.save_pretrained(folder)
        (folder / "chat_template.jinja").write_text(TEMPLATE.replace("MARK", self.mark))


def pixtral() -> tuple[Any, Any]:
    words = tokenizer("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    config = transformers.LlavaConfig(
        vision_config=transformers.PixtralVisionConfig(**SEEING | {"image_size": 64}),
        text_config=transformers.MistralConfig(**TEXT),
        image_token_id=words.convert_tokens_to_ids("[IMG]"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    resized = transformers.PixtralImageProcessorPil(size={"longest_edge": 32}, patch_size={"height": 8, "width": 8})

    def rows(made: Any, at: int) -> str:
        high, wide = (int(side) // 8 for side in made["image_sizes"][at])
        return "[IMG_BREAK]".join(["[IMG]" * wide] * high) + "[IMG_END]"

    return transformers.LlavaForConditionalGeneration(config), StandIn(resized, words, "[IMG]", rows)


QWEN: dict[str, dict[str, Any]] = {  # kind → how it sees
    "Qwen2VL": {"embed_dim": 32, "mlp_ratio": 1},
    "Qwen2_5_VL": {"out_hidden_size": 32, "intermediate_size": 32, "window_size": 16, "fullatt_block_indexes": [1]},
    "Qwen3VL": {
        "out_hidden_size": 32,
        "intermediate_size": 32,
        "deepstack_visual_indexes": [0, 1],
        "num_position_embeddings": 64,
    },
}


def qwen(kind: str) -> tuple[Any, Any]:
    words = tokenizer("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
    named = {"image": "image_pad", "video": "video_pad", "vision_start": "vision_start", "vision_end": "vision_end"}
    ids = {f"{name}_token_id": words.convert_tokens_to_ids(f"<|{said}|>") for name, said in named.items()}
    turned = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    turned |= {"mrope_interleaved": True} if kind == "Qwen3VL" else {}
    config = getattr(transformers, f"{kind}Config")(
        text_config=TEXT | {"rope_parameters": turned, "bos_token_id": 1, "eos_token_id": 2},
        vision_config={"depth": 3, "hidden_size": 32, "num_heads": 4, "patch_size": 4} | QWEN[kind],
        **ids,
    )
    resized = transformers.Qwen2VLImageProcessorPil(patch_size=4, min_pixels=64, max_pixels=2048)
    network = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    return network, Files(kind, resized, words, "<|vision_start|><|image_pad|><|vision_end|>")


def llava_next(one: bool = False) -> tuple[Any, Any]:
    words = tokenizer("<image>")
    kind = "LlavaOnevision" if one else "LlavaNext"
    seeing = transformers.SiglipVisionConfig if one else transformers.CLIPVisionConfig
    points = [[32, 64], [64, 32], [64, 64], [32, 96]]
    config = getattr(transformers, f"{kind}Config")(
        vision_config=seeing(**SEEING),
        text_config=(transformers.Qwen2Config if one else transformers.LlamaConfig)(**TEXT),
        image_token_id=words.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=points,
    )
    size = {"height": 32, "width": 32} if one else {"shortest_edge": 32}
    crop = {} if one else {"crop_size": {"height": 32, "width": 32}}
    resized = getattr(transformers, f"{kind}ImageProcessorPil")(size=size, image_grid_pinpoints=points, **crop)
    network = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    if one:
        sizes = {"num_image_tokens": 16, "vision_feature_select_strategy": "full"}
        return network, Files(kind, resized, words, "<image>", **sizes)
    return network, transformers.LlavaNextProcessor(
        resized,
        words,
        patch_size=8,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=TEMPLATE.replace("MARK", "<image>"),
    )


def idefics3(smol: bool = False) -> tuple[Any, Any]:
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    words = tokenizer("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *tiles)
    kind = "SmolVLM" if smol else "Idefics3"
    config = getattr(transformers, f"{kind}Config")(
        vision_config=SEEING,
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=words.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        pad_token_id=3,
    )
    resized = getattr(transformers, f"{kind}ImageProcessorPil")(
        size={"longest_edge": 96}, max_image_size={"longest_edge": 32}
    )
    network = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    if smol:
        return network, Files(kind, resized, words, "<image>", image_seq_len=4)
    return network, transformers.Idefics3Processor(
        resized, words, image_seq_len=4, chat_template=TEMPLATE.replace("MARK", "<image>")
    )


def internvl() -> tuple[Any, Any]:
    named = ("start_image", "end_image", "context_image", "video")
    words = tokenizer(**{f"{name}_token": f"<{name}>" for name in named})
    config = transformers.InternVLConfig(
        vision_config=transformers.InternVLVisionConfig(**(SEEING | {"image_size": [32, 32], "patch_size": [8, 8]})),
        text_config=transformers.Qwen2Config(**TEXT),
        image_token_id=words.context_image_token_id,
        image_seq_length=4,
        downsample_ratio=0.5,
    )
    resized = transformers.GotOcr2ImageProcessorPil(
        size={"height": 32, "width": 32}, crop_to_patches=True, min_patches=1, max_patches=6
    )
    network = transformers.InternVLForConditionalGeneration(config)
    return network, Files("InternVL", resized, words, "<context_image>", image_seq_length=4)


# family → its makers, (rows, columns) of the picture's tokens, the box of the first
FAMILIES = {
    "llava": (llava, (4, 4), (20, 0, 30, 10)),  # the middle of 80 × 40 pixels
    "gemma3": (gemma3, (2, 2), (0, 0, 40, 20)),  # all of it, squeezed
    "paligemma": (paligemma, (4, 4), (0, 0, 20, 10)),
    "paligemma2": (lambda: paligemma(window=64), (4, 4), (0, 0, 20, 10)),
    "pixtral": (pixtral, (2, 4), (0, 0, 20, 20)),
    "qwen2_vl": (lambda: qwen("Qwen2VL"), (4, 8), (0, 0, 10, 10)),
    "qwen2_5_vl": (lambda: qwen("Qwen2_5_VL"), (4, 8), (0, 0, 10, 10)),
    "qwen3_vl": (lambda: qwen("Qwen3VL"), (4, 8), (0, 0, 10, 10)),
}


# family → its makers: the picture in the middle of a square
PADDED = {"llava": padded_llava, "deepseek_vl": deepseek_vl}


# family → its makers: tiles beside a small view of the whole
TILED = {
    "llava_next": llava_next,
    "llava_onevision": lambda: llava_next(one=True),
    "idefics3": idefics3,
    "smolvlm": lambda: idefics3(smol=True),
    "internvl": internvl,
}


def saved(folder: Path, family: str, peaky: float = 4) -> tuple[Path, Any]:
    """A tiny checkpoint of a family, its scores far apart, and its processor."""
    import torch

    torch.manual_seed(0)
    network, processor = TILED[family]() if family in TILED else FAMILIES[family][0]()
    for parameter in network.parameters():
        parameter.data.mul_(peaky if parameter.ndim > 1 else 1)
    network.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder, processor


class Checkpoints:
    """Checkpoints of the families, each saved when it is first asked for; no test changes one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.saved: dict[tuple[str, float], tuple[Path, Any]] = {}

    def of(self, family: str, peaky: float = 4) -> tuple[Path, Any]:
        if (family, peaky) not in self.saved:
            self.saved[family, peaky] = saved(self.root / f"{family}-{peaky}", family, peaky)
        return self.saved[family, peaky]

    def opened(self, family: str, picture: str, patch: pytest.MonkeyPatch, peaky: float = 4) -> tuple[str, Any]:
        """The folder of a family's checkpoint, and the checkpoint opened beside a picture."""
        folder, processor = self.of(family, peaky)
        if isinstance(processor, StandIn):
            patch.setattr(transformers.AutoProcessor, "from_pretrained", lambda *_, **how: processor)
        return str(folder), open_model(str(folder), image=picture)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    return Checkpoints(tmp_path_factory.mktemp("checkpoints"))


class Kept(dict[object, Any]):
    """Networks that are kept when another is read."""

    def clear(self) -> None:
        pass


@pytest.fixture(autouse=True, scope="module")
def _networks_are_read_once() -> Iterator[None]:
    """A checkpoint that is asked again is read once, as in the shell: the questions share its network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("attnctl.models.huggingface.network.loaded_networks", Kept())
        yield


@pytest.fixture(autouse=True)
def _numbers_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """SmolVLM's processor wants a package that writes the times of a video's pictures."""
    monkeypatch.setattr("transformers.models.smolvlm.processing_smolvlm.num2words", str)


def eager(network: Any) -> Any:
    """A copy of a network, which other tests share, with transformers' own eager attention."""
    copied = copy.deepcopy(network)
    copied.set_attn_implementation("eager")
    return copied


def check_eager(model: Any, trace: Trace, text: str, pictures: list[Image.Image]) -> Any:
    """Assert that ids and weights of a trace are those of transformers' own eager path; return its output."""
    import torch

    given = model.reader.processor(text=[model.reader.prompt(model, text)], images=pictures, return_tensors="pt")
    with torch.inference_mode():
        output = eager(model.network)(**given, output_attentions=True)
    assert given["input_ids"][0].tolist() == [token.id for token in trace.tokens]
    for layer, weights in zip(trace.layers, output.attentions, strict=True):
        assert np.abs(layer.weights - weights[0].numpy()).max() < 1e-6
    return output


@pytest.mark.grid
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_those_of_eager_and_the_picture_has_its_boxes(
    family: str, picture: str, monkeypatch: pytest.MonkeyPatch, checkpoints: Checkpoints
) -> None:

    _, model = checkpoints.opened(family, picture, monkeypatch)
    trace = record_trace(model, "What is this?")
    boxes = [token.box for token in trace.tokens if token.box is not None]
    rows, columns = FAMILIES[family][1]
    assert len(boxes) == rows * columns and boxes[0] == FAMILIES[family][2] and len(trace.layers) == 2
    across, down = (len({box[at] for box in boxes}) for at in (0, 1))
    assert (down, across) == (rows, columns)
    output = check_eager(model, trace, "What is this?", [read_photograph(picture)])
    assert trace.predictions[-1].id == int(output.logits[0, -1].argmax()) or len(trace.predictions) > 1


def what_the_text_reads(model: Any, picture: Image.Image) -> Any:
    """What stands for each token before the first layer of the text: (n, d_model)."""
    import torch

    from attnctl.models.huggingface.attention_sites import blocks_of

    given = model.reader.processor(text=[model.reader.prompt(model, "Is it?")], images=[picture], return_tensors="pt")
    text = next(part for name, part in model.network.named_modules() if name.endswith(("language_model", "text_model")))
    seen: list[Any] = []
    handle = blocks_of(text)[0].register_forward_pre_hook(
        lambda _, args, kwargs: seen.append((args or [kwargs["hidden_states"]])[0]), with_kwargs=True
    )
    with torch.inference_mode():
        model.network(**given)
    handle.remove()
    return seen[0][0]


def with_painted_middle(picture: Image.Image, token: Token) -> Image.Image:
    """Return the picture with the middle of a token's box in yellow."""
    left, top, right, bottom = token.box or (0, 0, 0, 0)
    painted = picture.copy()
    first = (3 * left + right) // 4, (3 * top + bottom) // 4
    painted.paste((255, 255, 0), (*first, -(-(left + 3 * right) // 4), -(-(top + 3 * bottom) // 4)))
    return painted


@pytest.mark.grid
@pytest.mark.parametrize("size", [(50, 37), (33, 90), (64, 64)])
@pytest.mark.parametrize("family", [*TILED, "qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_tokens_stand_where_the_network_sees_them(
    family: str, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoints: Checkpoints
) -> None:
    """What is painted in the middle of a token's box changes that token most, of those of its view."""
    import torch

    grey = Image.new("RGB", size, (120, 120, 120))
    grey.save(tmp_path / "grey.png")
    _, model = checkpoints.opened(family, str(tmp_path / "grey.png"), monkeypatch, peaky=1)
    trace = record_trace(model, "Is it?")
    plain = what_the_text_reads(model, grey)
    for small in (False, True) if family in TILED else (False,):
        view = [at for at, token in enumerate(trace.tokens) if token.box and token.text.startswith("whole-") == small]
        assert {trace.tokens[at].text for at in view} and len({trace.tokens[at].text for at in view}) == len(view)
        for at in view[:: max(1, len(view) // 7)]:
            painted = with_painted_middle(grey, trace.tokens[at])
            moved = torch.norm(what_the_text_reads(model, painted) - plain, dim=-1)  # (n,)
            found = view[int(moved[view].argmax())]
            assert found == at, (trace.tokens[at], trace.tokens[found])


@pytest.mark.parametrize("family", TILED)
def test_tiles_have_eagers_weights_and_parts(
    family: str, picture: str, monkeypatch: pytest.MonkeyPatch, checkpoints: Checkpoints
) -> None:

    folder, model = checkpoints.opened(family, picture, monkeypatch)
    trace = record_trace(model, "What is this?")
    check_eager(model, trace, "What is this?", [read_photograph(picture)])
    effects = attnctl.ablate("Is it?", folder, target="y", image=picture, spans="regions")
    found = attnctl.sources("Is it?", folder, answer="y", image=picture)
    last = attnctl.heads("What is this?", folder, image=picture)
    assert all(0 < head["picture"] < 1 and head["spatial_entropy"] is not None for head in last)
    boxed = [at for at, token in enumerate(trace.tokens) if token.box is not None]
    assert last[0]["picture"] == pytest.approx(float(trace.layers[0].weights[0, -1, boxed].sum()), abs=1e-5)
    tiles = {token.box: at for at, token in enumerate(trace.tokens) if token.box and token.text.startswith("r")}
    rows, columns = (sorted({box[side] for box in tiles}) for side in (1, 0))
    grid = np.zeros((4, len(rows), len(columns)), np.float32)
    for box, at in tiles.items():
        grid[:, rows.index(box[1]), columns.index(box[0])] = trace.layers[0].weights[:, -1, at]
    assert [head["spatial_entropy"] for head in last[:4]] == pytest.approx(spatial_entropy(grid).tolist(), abs=1e-6)
    known = {one.name: one for one in effects.spans}
    for part in found.parts:
        assert part.matters == pytest.approx(known[part.name].log_probability, abs=2e-4)


def test_each_word_of_an_answer_is_drawn_over_the_picture(
    run: Run, tmp_path: Path, picture: str, checkpoints: Checkpoints
) -> None:
    folder, _ = checkpoints.of("internvl")
    command = ("heatmap", "Is it?", "--image", picture, "--model", str(folder))
    trace = attnctl.attend("Is it?", str(folder), image=picture, generate=3)
    shown = {
        (): range(len(trace.tokens) - 3, len(trace.tokens)),  # the new words
        ("--query", "each"): range(len(trace.tokens) - 3, len(trace.tokens)),
        ("--query", "-2,-1"): range(len(trace.tokens) - 2, len(trace.tokens)),
    }
    for query, places in shown.items():
        lines = [line.split("\t") for line in run(*command, "--generate", "3", "--head", "2", *query).out.splitlines()]
        assert lines[0][:4] == ["layer", "head", "query", "token"]
        told = np.array([float(line[-1]) for line in lines[1:]]).reshape(len(places), -1)
        assert np.abs(told - trace.layers[1].weights[2, list(places)]).max() < 1e-5
    output = tmp_path / "x.png"
    assert run(*command, "--generate", "3", "-o", str(output)).code == 0 and output.stat().st_size > 3000
    before = [line.split("\t") for line in run(*command, "--query", "each", "--head", "2").out.splitlines()[1:]]
    last_patch = max(place for place, token in enumerate(trace.tokens) if token.is_patch)
    words = [token.text for token in trace.tokens[last_patch + 1 : -3] if not token.special and token.text.strip()]
    assert list(dict.fromkeys(line[2] for line in before)) == list(
        dict.fromkeys(words)
    )  # of the prompt, after the picture


def test_learned_queries_have_no_places() -> None:
    layout = PictureLayout(None, transformers.Idefics2Config(), {}, (), ())
    with pytest.raises(AttnctlError, match="are learned queries, which have no places in the picture"):
        layout.tokens()


@pytest.mark.grid
@pytest.mark.parametrize("family", ["llava", "gemma3", "paligemma", "pixtral", "qwen2_vl", "llava_next", "idefics3"])
def test_several_pictures_stand_side_by_side(
    family: str, tmp_path: Path, picture: str, monkeypatch: pytest.MonkeyPatch, checkpoints: Checkpoints
) -> None:
    Image.new("RGB", (30, 60), (0, 0, 255)).save(tmp_path / "blue.png")
    paths = picture, str(tmp_path / "blue.png")
    folder, model = checkpoints.opened(family, ",".join(paths), monkeypatch)
    alone = [open_model(folder, image=path).tokenize("Is it?") for path in paths]
    trace = record_trace(model, "Is it?")
    assert model.photograph.size == (80 + 1 + 30, 60)
    for number, tokens in enumerate(alone):
        own = [token for token in trace.tokens if token.picture == number and token.box is not None]
        known = [token for token in tokens if token.box is not None]
        assert [token.text for token in own] == [f"p{number}-{token.text}" for token in known]
        moved = [(box[0] - 81 * number, box[1], box[2] - 81 * number, box[3]) for token in own if (box := token.box)]
        assert moved == [token.box for token in known]
    assert {token.picture for token in trace.tokens if token.box is None} <= {None, 0, 1}
    pixel = find_several(trace.tokens, "90,30")
    assert [trace.tokens[at].picture for at in pixel] == [1]
    head = attnctl.heads("Is it?", folder, image=",".join(paths))[0]
    assert head["picture"] is not None and head["spatial_entropy"] is None  # two pictures are no one grid
    effects = attnctl.ablate("Is it?", folder, target="y", image=",".join(paths), spans="regions")
    assert {one.name for one in effects.spans} >= {"picture 0 upper left", "picture 1 lower right"}
    if family in ("llava", "llava_next", "pixtral"):  # of others the mask is of the processor's making
        check_eager(model, trace, "Is it?", list(read_photographs(",".join(paths))))


def test_the_command_reads_a_picture_in_a_process_of_its_own(picture: str, checkpoints: Checkpoints) -> None:
    """Where torch and transformers are imported in part, until Gemma 3's mask of a picture asks for torch's compiler."""
    folder = str(checkpoints.of("gemma3")[0])
    command = [sys.executable, "-m", "attnctl", "explain", "Is it?", "--model", folder, "--image", picture, "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    trace = record_trace(open_model(folder, image=picture), "Is it?")
    for layer, known in zip(told["layers"], trace.layers, strict=True):
        assert np.array_equal(np.array([head["weights"] for head in layer["heads"]], np.float32), known.weights)


def test_a_processor_is_read_from_one_file_as_from_several(
    tmp_path: Path, picture: str, monkeypatch: pytest.MonkeyPatch, checkpoints: Checkpoints
) -> None:
    for family in ("qwen2_vl", "llava_onevision", "smolvlm"):
        several = open_model(str(checkpoints.of(family)[0]), image=picture)
        with monkeypatch.context() as patch:
            patch.setattr(Files, "nested", True)
            folder = saved(tmp_path / "nested" / family, family)[0]
        assert not (folder / "preprocessor_config.json").exists()
        assert open_model(str(folder), image=picture).tokenize("Is it?") == several.tokenize("Is it?")


def test_packages_that_a_processor_needs_are_named(
    run: Run, tmp_path: Path, picture: str, monkeypatch: pytest.MonkeyPatch, checkpoints: Checkpoints
) -> None:
    asked = ("explain", "Is it?", "--image", picture, "--model")
    monkeypatch.setattr("transformers.models.smolvlm.processing_smolvlm.num2words", None)
    refused = [run(*asked, str(checkpoints.of("smolvlm")[0]))]
    assert "pip install num2words" in refused[0].err
    if find_spec("torchvision") is None:
        folder = saved(tmp_path / "pixtral", "pixtral")[0]
        settings = {"image_processor_type": "PixtralImageProcessor", "processor_class": "PixtralProcessor"}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings))
        refused.append(run(*asked, str(folder)))
        assert "the processor of pixtral needs torchvision, which is not installed: pip install" in refused[1].err
    assert all(one.code == 1 and not one.out and one.err.count("\n") == 1 for one in refused)


def test_weights_of_several_pictures_are_spread_over_their_own_boxes() -> None:
    """A large picture and a small one with the same weights have the same colours: theirs is a box's weight, not a pixel's."""
    keys = [
        Token(
            f"p{picture}-{name}",
            box=(left + x * side, y * side, left + (x + size) * side, (y + size) * side),
            picture=picture,
        )
        for picture, left, side in ((0, 0, 40), (1, 200, 10))
        for name, x, y, size in (
            ("r0c0", 0, 0, 1),
            ("r0c1", 1, 0, 1),
            ("r1c0", 0, 1, 1),
            ("r1c1", 1, 1, 1),
            ("whole-r0c0", 0, 0, 2),
        )
    ]
    weights = np.array([0.1, 0.05, 0.05, 0.1, 0.2] * 2, np.float32)
    heat = heat_of_boxes(weights, tuple(keys), (220, 80), (80, 220))
    for left, side in ((0, 40), (200, 10)):
        cells = [[heat[(2 * y + 1) * side // 2, left + (2 * x + 1) * side // 2] for x in (0, 1)] for y in (0, 1)]
        assert np.array(cells) == pytest.approx(np.array([[0.15, 0.1], [0.1, 0.15]]))
    assert np.isnan(heat[10, 190])


def test_names_regions_and_pixels_that_are_not_there(
    run: Run, tmp_path: Path, picture: str, checkpoints: Checkpoints
) -> None:
    model = ("--model", str(checkpoints.of("llava")[0]))
    (tmp_path / "a,b.png").write_bytes(Path(picture).read_bytes())
    both = f"{tmp_path / 'a,b.png'},{picture}"
    assert run("heatmap", "Is it?", *model, "--image", both).code == 0  # a comma of a name parts nothing
    (tmp_path / "regions.csv").write_text("name,left,top,right,bottom\nin,20,0,60,40\nout,900,900,950,950\n")
    for words, said in {
        ("heatmap", "Is it?", *model, "--image", f"{picture},"): "a name is missing",
        ("heatmap", "Is it?", *model, "--image", both, "--query", "5,5"): "of picture 0 and",
        ("ablate", "Is it?", *model, "--image", picture, "--spans", str(tmp_path / "regions.csv")): "the region 'out'",
        ("heatmap", picture, *model): f'ask about it: "…" --image {picture}',
    }.items():
        refused = run(*words)
        assert refused.code in (1, 2) and said in refused.err and refused.err.count("\n") == 1, refused.err
    found = run("compare", model[1], model[1], "Is it?", "--image", picture)
    assert found.code == 0 and "A and B are the same, to the last bit" in found.out


@pytest.mark.grid
@pytest.mark.parametrize("family", FAMILIES)
def test_sources_of_one_token_are_the_effects_of_the_same_regions(
    family: str, tmp_path: Path, picture: str, monkeypatch: pytest.MonkeyPatch, checkpoints: Checkpoints
) -> None:
    """The one reads through the key/value cache, the other whole: two ways to the same number."""
    import torch

    folder, model = checkpoints.opened(family, picture, monkeypatch)
    effects = attnctl.ablate("Is it?", folder, target="y", image=picture, spans="regions")
    found = attnctl.sources("Is it?", folder, answer="y", image=picture)
    assert found.answer.log_probability == pytest.approx(effects.baseline.log_probability, abs=1e-4)
    known = {one.name: one for one in effects.spans}
    assert len(found.parts) == len(known) >= 4
    assert found.forwards == len(known) + (found.together is not None)
    for part in found.parts:
        assert part.matters == pytest.approx(known[part.name].log_probability, abs=2e-4)
        assert part.looks == pytest.approx(known[part.name].looked_at, abs=1e-5) and part.box == known[part.name].box
    assert max(abs(part.matters) for part in found.parts) > 1e-3
    general = "Write a general description of the image."
    plain = attnctl.ablate(general, folder, target="y", image=picture, spans="regions").spans
    times = {one.name: one.looked_at / other.looked_at for one, other in zip(effects.spans, plain, strict=True)}
    assert {part.name: part.relative for part in found.parts} == pytest.approx(times, rel=1e-3)
    given = model.read("Is it?", model.tokenize("Is it?")).inputs
    with torch.inference_mode():
        said = model.network.generate(**given, max_new_tokens=5, do_sample=False)[0, given["input_ids"].shape[1] :]
    (tmp_path / "region.csv").write_text("name,left,top,right,bottom\nhalf,0,0,40,40\n")
    longer = attnctl.sources("Is it?", folder, generate=5, image=picture, spans=str(tmp_path / "region.csv"))
    assert [token.id for token in longer.answer.tokens] == said.tolist()


def test_a_region_is_hidden_from_patches_before_it(
    tmp_path: Path, picture: str, monkeypatch: pytest.MonkeyPatch, checkpoints: Checkpoints
) -> None:
    """Where patches see each other both ways (Gemma 3, PaliGemma), also where the region is all that is left of the picture."""
    monkeypatch.setitem(FAMILIES, "gemma3", (lambda: gemma3(4, 64), (4, 4), (0, 0, 20, 10)))
    regions = tmp_path / "regions.csv"
    for family in ("gemma3", "paligemma"):
        folder = str(checkpoints.of(family, peaky=12)[0])
        for name, box in {"last row": "0,30,80,40", "last patch": "60,30,80,40", "first row": "0,0,80,10"}.items():
            regions.write_text(f"name,left,top,right,bottom\n{name},{box}\n")
            how = {"image": picture, "spans": str(regions)}
            known = attnctl.ablate("Is it?", folder, target="y", **how).spans[0]
            found = attnctl.sources("Is it?", folder, answer="y", **how).parts[0]
            assert known.name == found.name == name and abs(known.log_probability) > 1e-3
            assert found.matters == pytest.approx(known.log_probability, abs=2e-5)


@pytest.mark.parametrize("family", ["paligemma", "paligemma2"])
def test_an_answer_is_not_seen_by_the_prompt(
    family: str, tmp_path: Path, picture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt is what PaliGemma's processor makes of picture and text; it sees itself whole, but nothing behind it."""
    import torch

    monkeypatch.setitem(FAMILIES, "paligemma2", (lambda: paligemma(window=16), (4, 4), (0, 0, 20, 10)))
    folder = str(saved(tmp_path / family, family)[0])
    model: Any = open_model(folder, image=picture)
    given = dict(model.reader.processor(text="Is it?", images=read_photograph(picture), return_tensors="pt"))
    del given["labels"]
    n = given["input_ids"].shape[1]
    assert given["input_ids"][0].tolist() == [token.id for token in model.tokenize("Is it?")]
    how = {"max_new_tokens": 3, "do_sample": False, "output_attentions": True, "return_dict_in_generate": True}
    with torch.inference_mode():
        made = eager(model.network).generate(**given, **how)
    trace = record_trace(open_model(folder, image=picture, generate=3), "Is it?")
    assert made.sequences[0].tolist() == [token.id for token in trace.tokens]
    for layer, prompt in zip(trace.layers, made.attentions[0], strict=True):
        assert np.abs(layer.weights[:, :n, :n] - prompt[0].numpy()).max() < 1e-6 and not layer.weights[:, :n, n:].any()
        for step, later in enumerate(made.attentions[1:], n):
            row = later[layer.layer][0, :, -1].numpy()  # of the last keys, where a window has left out the others
            assert np.abs(layer.weights[:, step, step + 1 - row.shape[-1] : step + 1] - row).max() < 1e-6
    if family == "paligemma2":
        with pytest.raises(AttnctlError, match="layers that see 16 tokens back, and its prompt, .* has 24"):
            attnctl.sources("Is it?", folder, answer="y", image=picture)


@pytest.mark.grid
@pytest.mark.parametrize("size", [(33, 90), (300, 200), (64, 64)])
@pytest.mark.parametrize("family", PADDED)
def test_padding_has_no_box(
    family: str, size: tuple[int, int], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is painted in the middle of a box changes that patch most; what is padding, no picture changes."""
    monkeypatch.setitem(FAMILIES, family, (PADDED[family], (0, 0), (0, 0, 0, 0)))
    grey = Image.new("RGB", size, (120, 120, 120))
    grey.save(tmp_path / "grey.png")
    folder = str(saved(tmp_path / family, family)[0])
    model: Any = open_model(folder, image=str(tmp_path / "grey.png"))

    def patches(picture: Image.Image) -> Any:
        pixels = model.reader.processor.image_processor(picture, return_tensors="np")["pixel_values"][0]
        return pixels.reshape(3, 4, 8, 4, 8).transpose(1, 3, 0, 2, 4).reshape(16, -1)

    tokens = [token for token in model.tokenize("Is it?") if token.box or token.text.startswith("padding-")]
    names = [f"r{row}c{column}" for row in range(4) for column in range(4)]
    assert [token.text.removeprefix("padding-") for token in tokens] == names
    white, black = (patches(Image.new("RGB", size, colour)) for colour in ("white", "black"))
    seen = np.abs(white - black).max(1) / np.abs(white - black).max()  # (16,)
    for at, token in enumerate(tokens):
        if token.box is None:
            assert seen[at] < 0.25, token  # what is blended in at the picture's edge
            continue
        painted = with_painted_middle(grey, token)
        assert int(np.abs(patches(painted) - patches(grey)).sum(1).argmax()) == at, token
    boxes = [token.box for token in tokens if token.box]
    assert (min(box[0] for box in boxes), min(box[1] for box in boxes)) == (0, 0)
    assert (max(box[2] for box in boxes), max(box[3] for box in boxes)) == size
    assert len(boxes) == (16 if size == (64, 64) else 8 if size != (300, 200) else 16)
    asked = ("Is it?", "--model", folder, "--image", str(tmp_path / "grey.png"))
    effects = run("ablate", *asked, "--spans", "regions", "--json").json
    assert sum(one["token_count"] for one in effects["spans"]) == len(boxes)
    if len(boxes) < 16:  # the others are as without padding
        known = {one["name"]: one["log_probability"] for one in effects["spans"]}
        found = attnctl.sources("Is it?", folder, answer=effects["target"]["text"], image=asked[-1])
        assert {part.name: part.matters for part in found.parts} == pytest.approx(known, abs=2e-4)
    corner = find_several(model.tokenize("Is it?"), f"{size[0] - 1},{size[1] - 1}")
    assert (model.tokenize("Is it?")[corner[0]].box or ())[2:] == size
    assert run("heatmap", *asked, "-o", str(tmp_path / "heat.png")).code == 0


def test_regions_are_drawn_over_the_picture(run: Run, tmp_path: Path, picture: str, checkpoints: Checkpoints) -> None:
    asked = ("Is it?", "--model", str(checkpoints.of("llava")[0]), "--image", picture)
    for words in (("sources", *asked, "--generate", "2"), ("ablate", *asked, "--spans", "regions")):
        assert run(*words, "-o", str(tmp_path / "regions.png")).code == 0
        with Image.open(tmp_path / "regions.png") as drawn:
            colours = np.asarray(drawn.convert("RGB")).astype(int)
        assert np.ptp(colours, axis=2).max() > 60  # shades over the grey
    said = run("sources", *asked, "--generate", "2").out.splitlines()
    assert said[0].split("\t")[0] == "part" and {line.split("\t")[0] for line in said} >= {"upper left", "middle"}
    for more, why in {
        ("--remove",): "--remove cannot be combined with --image",
        ("--spans", "lines"): "none of these tokens stands in it",
        ("-o", "a.html"): "--image has no effect here",
    }.items():
        refused = run("sources", *asked, *more)
        assert refused.code == 2 and why in refused.err and not refused.out


def test_commands_take_a_picture_beside_the_text_or_refuse_it(
    run: Run, tmp_path: Path, picture: str, checkpoints: Checkpoints
) -> None:
    model = ("--model", str(checkpoints.of("llava")[0]), "--image", picture)
    told = run("heatmap", "What is this?", *model, "--head", "1", "--quiet")
    lines = [line.split("\t") for line in told.out.splitlines()]
    assert ["1", "1", "r0c0", "20", "0", "30", "10"] in [line[:7] for line in lines]
    assert sum(float(line[-1]) for line in lines[1:]) == pytest.approx(1, abs=1e-4)
    drawn = run("heatmap", "What is this?", *model, "--query", "W", "-o", str(tmp_path / "heat.png"))
    assert drawn.code == 0 and (tmp_path / "heat.png").stat().st_size > 5000
    longer = json.loads(run("explain", "What is this?", *model, "--generate", "3", "--json").out)
    asked = json.loads(run("explain", "What is this?", *model, "--json").out)
    assert len(longer["tokens"]) == len(asked["tokens"]) + 3 and "embeddings" not in asked
    assert asked["tokens"][-1]["id"] == longer["tokens"][-4]["id"]
    assert longer["tokens"][-3]["id"] == asked["predictions"][0]["id"]  # the picture is seen while it writes
    other = tmp_path / "black.png"
    Image.new("RGB", (64, 64)).save(other)
    black = json.loads(run("explain", "What is this?", *model[:3], str(other), "--json").out)
    assert black["predictions"] != asked["predictions"]
    assert run("check", "What is this?", *model).code == 0
    effects = json.loads(run("ablate", "What is this?", *model, "--json").out)
    assert effects["baseline"]["probability"] == pytest.approx(asked["predictions"][0]["probability"], rel=1e-4)
    regions = json.loads(run("ablate", "What is this?", *model, "--spans", "regions", "--json").out)["spans"]
    assert {one["name"] for one in regions} >= {"upper left", "middle", "lower right"}
    row = next(one for one in regions if one["name"] == "upper left")
    assert 0 < row["looked_at"] < 1 and row["token_count"] >= 1
    for words, said in {
        ("explain", "What is this?", "--image", picture): "--image cannot be combined with --model demo",
        ("explain", "What is this?", *model[:3], "none.png"): "no picture 'none.png'",
        ("explain", "What is this?", *model, "--no-bos"): "--bos cannot be combined with --image",
        ("explain", "What is this?", "--model", "minilm", "--image", picture): "reads no picture beside a text",
    }.items():
        refused = run(*words)
        assert refused.code in (1, 2) and not refused.out and said in refused.err and refused.err.count("\n") == 1
