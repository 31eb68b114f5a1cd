"""Detectors: the attention of object queries and their boxes, held against eager transformers and the checkpoint's processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import attnctl
from attnctl.readings.picture_heat import heat_of_boxes, panels_of_queries
from attnctl.source.links import query_rows
from tests.conftest import Refused, Run

pytestmark = pytest.mark.usefixtures("no_gradients", "quiet", "network_kept")

LABELS = ["cat", "dog", "cup"]
STAGES: dict[str, Any] = {
    "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "layer_type": "basic",
}  # fmt: skip
SIZES: dict[str, Any] = {
    "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_queries": 7,
}  # fmt: skip
PLAIN: dict[str, Any] = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
LEVELS = ["stage2", "stage3", "stage4"]
SIDES = {"shortest_edge": 96, "longest_edge": 200}


def configuration(family: str) -> Any:
    backbone = transformers.ResNetConfig(**STAGES, out_features=["stage4"])
    if family == "RTDetr":
        backbone = transformers.RTDetrResNetConfig(**STAGES, out_features=LEVELS)
        sizes = {name: value for name, value in SIZES.items() if name != "encoder_layers"}
        return transformers.RTDetrConfig(
            backbone_config=backbone, d_model=32, encoder_hidden_dim=32, encoder_in_channels=[16, 24, 32],
            decoder_in_channels=[32] * 3, num_denoising=0, **sizes,
        )  # fmt: skip
    if family == "Yolos":
        return transformers.YolosConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32, image_size=[32, 48],
            patch_size=8, num_detection_tokens=5,
        )  # fmt: skip
    more: dict[str, Any] = {"hidden_size" if family == "DabDetr" else "d_model": 32}
    if family == "DeformableDetr":
        backbone, more["num_feature_levels"] = transformers.ResNetConfig(**STAGES, out_features=LEVELS), 4
    return getattr(transformers, f"{family}Config")(backbone_config=backbone, **PLAIN, **SIZES, **more)


def saved(folder: Path, family: str, sure: bool = True, **processor: Any) -> Path:
    """Write a small random detector whose boxes and labels differ from query to query."""
    torch.manual_seed(3)
    config = configuration(family)
    config.id2label, config.label2id = dict(enumerate(LABELS)), {name: number for number, name in enumerate(LABELS)}
    model = getattr(transformers, f"{family}ForObjectDetection")(config)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            sharp = any(part in name for part in ("q_proj", "k_proj", "query", "key", "bbox", "class_labels"))
            parameter.mul_(6 if sharp and sure else 2)
    if family != "Yolos" and hasattr(model.model, "query_position_embeddings"):
        model.model.query_position_embeddings.weight.normal_(0, 3)
    model.save_pretrained(folder)
    kind = {"TableTransformer": "Detr", "DabDetr": "ConditionalDetr"}.get(family, family)
    size = {"height": 96, "width": 96} if family == "RTDetr" else SIDES if family != "Yolos" else {
        "shortest_edge": 32, "longest_edge": 48,
    }  # fmt: skip
    getattr(transformers, f"{kind}ImageProcessorPil")(size=size, **processor).save_pretrained(folder)
    return folder


def photograph(folder: Path, size: tuple[int, int]) -> str:
    folder.mkdir(exist_ok=True)
    pixels = np.random.default_rng(1).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "photo.png")
    return str(folder / "photo.png")


def right_answer(folder: Path, picture: str, family: str) -> tuple[Any, list[dict[str, Any]]]:
    """What transformers' own eager model puts out for the picture, and what its own processor makes of it."""
    model = getattr(transformers, f"{family}ForObjectDetection").from_pretrained(folder, attn_implementation="eager")
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    with Image.open(picture) as opened:
        inputs, size = processor(opened.convert("RGB"), return_tensors="pt"), opened.size[::-1]
    output = model.eval()(**inputs, output_attentions=True)
    result = processor.post_process_object_detection(output, threshold=0.5, target_sizes=[size])[0]
    columns = [result[name].tolist() for name in ("scores", "labels", "boxes")]
    return output, [
        {"score": score, "label": LABELS[label], "box": box} for score, label, box in zip(*columns, strict=True)
    ]


@pytest.mark.grid
@pytest.mark.parametrize(
    ("family", "size"),
    [
        ("Detr", (150, 41)),
        ("ConditionalDetr", (47, 130)),
        ("DabDetr", (90, 60)),
        ("TableTransformer", (101, 99)),
        ("DeformableDetr", (90, 60)),
        ("RTDetr", (120, 50)),
        ("Yolos", (90, 60)),
    ],
)
def test_weights_are_those_of_eager_and_objects_those_of_the_processor(
    family: str, size: tuple[int, int], tmp_path: Path
) -> None:
    folder, picture = saved(tmp_path / "m", family), photograph(tmp_path, size)
    output, found = right_answer(folder, picture, family)
    kinds = {"DeformableDetr": ["decoder"], "RTDetr": ["encoder", "decoder"], "Yolos": [None]}
    for kind in kinds.get(family, ["cross", "encoder", "decoder"]):
        trace = attnctl.attend(picture, str(folder), **({} if kind is None else {"attention": kind}))
        right = output.attentions if kind is None else output[f"{kind}_attentions"]
        assert len(trace.layers) == len(right)
        for layer, weights in zip(trace.layers, right, strict=True):
            assert np.abs(layer.weights - weights[0].numpy()).max() < 1e-6
        patches = [token for token in trace.key_axis if token.is_patch]
        if kind != "decoder":  # the cells cover the picture, each pixel once
            heat = heat_of_boxes(np.ones(len(trace.key_axis), np.float32), trace.key_axis, size, size[::-1])
            assert not np.isnan(heat).any()
            areas = [(t.box[2] - t.box[0]) * (t.box[3] - t.box[1]) for t in patches if t.box is not None]
            assert sum(areas) == size[0] * size[1]
        if kind == "encoder":
            continue
        queries = [token for token in trace.tokens if token.score is not None]
        assert len(queries) == len(output.pred_boxes[0])
        sure = [token for token in queries if not token.special]
        if len(found) == 0:
            assert 0 < len(sure) <= 6  # RT-DETR's processor names the best pairs of a query and a label alone
            continue
        assert len(sure) == len({tuple(entry["box"]) for entry in found})
        for token in sure:  # the label, the score and the box belong together, and to this query
            entry = min(found, key=lambda entry: abs(entry["score"] - float(token.score or 0)))
            assert entry["score"] == pytest.approx(token.score, abs=1e-6) and token.text.startswith(entry["label"])
            if kind != "decoder":
                assert token.box is not None and np.abs(np.clip(entry["box"], 0, max(size)) - token.box).max() <= 1
        place = {id(token): number for number, token in enumerate(queries)}
        for token in sure if kind != "decoder" else ():
            cx, cy, wide, high = (output.pred_boxes[0][place[id(token)]].numpy() * [*size, *size]).tolist()
            corners = np.clip([cx - wide / 2, cy - high / 2, cx + wide / 2, cy + high / 2], 0, [*size, *size])
            assert token.box is not None and np.abs(corners - token.box).max() <= 1


def test_each_object_has_a_panel_with_the_mean_of_its_heads(run: Run, tmp_path: Path) -> None:
    from attnctl.models import open_model
    from attnctl.source import TextSource, prepare

    folder, picture = saved(tmp_path / "m", "ConditionalDetr"), photograph(tmp_path, (90, 60))
    output, found = right_answer(folder, picture, "ConditionalDetr")
    source = TextSource(open_model(str(folder)), picture)  # cross attention by default
    objects = [place for place, token in enumerate(source.tokens) if token.box is not None]
    heat = panels_of_queries(query_rows(prepare(source, layer="1"), objects))
    for panel, place in zip(heat.panels, objects, strict=True):
        token = source.tokens[place]
        assert panel.title == f"{token.text} {100 * float(token.score or 0):.0f} %" and panel.box == token.box
        right = output.cross_attentions[1][0].mean(0)[place].numpy()
        assert np.abs(panel.weights - right).max() < 1e-6
    assert found and len(objects) == len({tuple(entry["box"]) for entry in found})
    model = ("heatmap", picture, "--model", str(folder))
    drawn = run(*model, "-o", str(tmp_path / "x.png"))
    assert drawn.code == 0 and (tmp_path / "x.png").stat().st_size > 5000
    lines = [line.split("\t") for line in run(*model, "--head", "2").out.splitlines()]
    assert lines[0][:4] == ["layer", "head", "query", "score"] and len(lines) == 1 + len(objects) * len(
        source.key_tokens
    )
    scores = list(dict.fromkeys(line[3] for line in lines[1:]))
    assert scores == sorted(scores, reverse=True)  # the surest first
    assert run(*model, "-o", str(tmp_path / "x.json")).code == 0
    told = json.loads((tmp_path / "x.json").read_text())
    assert {tuple(token["box"]) for token in told["tokens"] if "box" in token} == {
        source.tokens[place].box for place in objects
    }
    assert attnctl.load(tmp_path / "x.json").tokens == source.tokens
    named = source.tokens[objects[0]].text
    one = run(*model, "--query", named, "--layer", "1", "--head", "0").out.splitlines()
    assert one[0].split("\t")[:3] == ["layer", "head", "token"] and len(one) == 1 + len(source.key_tokens)


def test_padding_is_no_part_of_the_picture(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", "Detr", pad_size={"height": 160, "width": 160}, do_pad=True)
    picture = photograph(tmp_path, (90, 60))  # 144 × 96 pixels in 160 × 160
    output, _ = right_answer(folder, picture, "Detr")
    trace = attnctl.attend(picture, str(folder), attention="cross")
    for layer, weights in zip(trace.layers, output.cross_attentions, strict=True):
        assert np.abs(layer.weights - weights[0].numpy()).max() < 1e-6
    names = [key.text for key in trace.key_axis]
    assert len(names) == 25 and names[:5] == ["r0c0", "r0c1", "r0c2", "r0c3", "r0c4"] and names[-1] == "padding-r4c4"
    assert trace.key_axis[14].box == (80, 40, 90, 60) and names[15].startswith("padding-")


def test_what_has_no_map_or_no_sure_box_says_so(run: Run, refused: Refused, tmp_path: Path) -> None:
    picture = photograph(tmp_path, (90, 60))
    sampled = ("heatmap", picture, "--model", str(saved(tmp_path / "d", "DeformableDetr")))
    for kind in ("cross", "encoder"):
        line = refused(*sampled, "--attention", kind, code=2)
        assert "samples a few points of the picture" in line and "no map of tokens: see --attention decoder" in line
    assert "words look at words" in refused(*sampled, "--attention", "decoder", code=2)
    unsure = str(saved(tmp_path / "m", "Detr", sure=False))
    written = run("heatmap", picture, "--model", unsure)
    assert "No box has a score of 50 % or more: shown are the 6 that score highest" in written.err
    assert "give a file's name" in refused("heatmap", "a text", "--model", unsure)
    assert "is for models of text" in refused("heatmap", picture, "--model", unsure, "--generate", "3", code=2)
    assert "is for models of text" in refused("heatmap", picture, "--model", unsure, "--target", "a cat", code=2)
