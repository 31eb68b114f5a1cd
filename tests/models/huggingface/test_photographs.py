"""Vision transformers: weights of eager to the last bit, patches with their boxes in the picture, damaged pictures refused."""

from __future__ import annotations

import copy
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from attnctl.checks.selection import find_several
from attnctl.errors import AttnctlError, UsageError
from attnctl.formats.photographs import read_photograph
from attnctl.models import open_model
from attnctl.readings.picture_heat import heat_of_boxes
from attnctl.source import record_trace
from tests.conftest import Run

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.usefixtures("network_kept")

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "image_size": 32,
    "patch_size": 8,
}
SQUEEZED = {"size": {"height": 32, "width": 32}}
CROPPED = {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}, "do_center_crop": True}
# family → class, further settings, processor, the names of its first tokens
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any], list[str]]] = {
    "ViT": ("ViTForImageClassification", {"num_labels": 3}, SQUEEZED, ["[CLS]", "r0c0"]),
    "DeiT": ("DeiTModel", {}, CROPPED, ["[CLS]", "[DIST]", "r0c0"]),
    "Dinov2": ("Dinov2Model", {}, CROPPED, ["[CLS]", "r0c0"]),
    "Dinov2WithRegisters": (
        "Dinov2WithRegistersModel",
        {"num_register_tokens": 2},
        CROPPED,
        ["[CLS]", "[REG0]", "[REG1]", "r0c0"],
    ),
    "DINOv3ViT": ("DINOv3ViTModel", {}, SQUEEZED, ["[CLS]", "r0c0"]),
    "CLIPVision": ("CLIPVisionModel", {}, CROPPED, ["[CLS]", "r0c0"]),
    "SiglipVision": ("SiglipVisionModel", {}, SQUEEZED, ["r0c0"]),
    "Beit": ("BeitModel", {}, SQUEEZED, ["[CLS]", "r0c0"]),
    "Yolos": ("YolosModel", {"image_size": [32, 32], "num_detection_tokens": 3}, SQUEEZED, ["[CLS]", "r0c0"]),
}


TEXT = {
    **SIZES,
    "vocab_size": 300,
    "max_position_embeddings": 40,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
BOTH = {"text_config": TEXT, "vision_config": SIZES}
TOWERS = ("CLIP", "Siglip")
FAMILIES_WITH_TEXT = {
    "CLIP": ("CLIPModel", BOTH, CROPPED, ["[CLS]", "r0c0"]),
    "Siglip": ("SiglipModel", BOTH, SQUEEZED, ["r0c0"]),
}


def saved(folder: Path, family: str) -> Path:
    """A tiny checkpoint of a family, its scores far apart."""
    import torch

    name, more, processor, _ = (FAMILIES | FAMILIES_WITH_TEXT)[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**more if family in TOWERS else SIZES | more)
    network = getattr(transformers, name)(config).eval()
    for parameter in network.parameters():
        parameter.data.mul_(4 if parameter.ndim > 1 else 1)
    network.save_pretrained(folder)
    kind = "CLIPImageProcessor" if processor is CROPPED else "ViTImageProcessor"
    settings = {"image_processor_type": kind, "do_resize": True, "do_normalize": True, "image_mean": [0.5] * 3}
    settings |= {"image_std": [0.5] * 3, "do_rescale": True, "resample": 2, "rescale_factor": 1 / 255} | processor
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


@pytest.mark.parametrize("family", TOWERS)
def test_each_tower_is_read_and_captions_are_chosen_among(family: str, run: Run, tmp_path: Path, picture: str) -> None:
    import torch

    from tests.tools.folders import tokenizer

    folder = saved(tmp_path / family, family)
    tokenizer(True, True).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    text, seen = record_trace(open_model(str(folder)), "a will"), record_trace(open_model(str(folder)), picture)
    assert seen.tokens[-1].box is not None and [token.text for token in text.tokens][0] == "<s>"
    network = getattr(transformers, f"{family}Model").from_pretrained(folder, attn_implementation="eager").eval()
    beside: Any = {"image": picture} if family == "CLIP" else {}
    tower: Any = open_model(str(folder), **beside).model_for(picture)
    pixels = tower.reader.processor(read_photograph(picture), return_tensors="pt")["pixel_values"]
    ids = torch.tensor([[token.id for token in text.tokens]])
    with torch.inference_mode():
        own = network.vision_model(pixel_values=pixels, output_attentions=True).attentions
        said = network.text_model(input_ids=ids, output_attentions=True).attentions
    for trace, weights in ((seen, own), (text, said)):
        assert len(trace.layers) == 2
        assert all(
            np.array_equal(layer.weights, one[0].numpy()) for layer, one in zip(trace.layers, weights, strict=True)
        )
    model = ("--model", str(folder), "--image", picture)
    assert run("model", str(folder)).code == 0
    off = run("explain", picture, *model[:2], "--off", "0.1", "--json").json
    with torch.inference_mode():
        weight = network.vision_model.encoder.layers[0].self_attn.out_proj.weight
        before = weight.detach().clone()
        weight.data[:, 8:16] = 0
        without = network.vision_model(pixel_values=pixels, output_attentions=True).attentions[1][0].numpy()
        weight.data[:] = before
    told = np.array([head["weights"] for head in off["layers"][1]["heads"]], np.float32)
    assert (
        off["model"]["off"] and np.allclose(told, without, atol=1e-5) and not np.allclose(told, seen.layers[1].weights)
    )
    if family == "Siglip":
        assert "does not choose among captions" in run("explain", "a cat | a dog", *model).err
        return
    captions = ["a cat", "at will, or not", "a dog"]
    asked = run("explain", " | ".join(captions), *model, "--json").json
    batch = [tower.reader.text_tower.tokenize(caption) for caption in captions]
    longest = max(map(len, batch))
    rows = torch.tensor([[token.id for token in one] + [0] * (longest - len(one)) for one in batch])
    mask = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in batch])
    with torch.inference_mode():
        shares = network(input_ids=rows, attention_mask=mask, pixel_values=pixels).logits_per_image[0].softmax(-1)
    assert {one["text"]: one["probability"] for one in asked["predictions"]} == pytest.approx(
        dict(zip(captions, shares.tolist(), strict=True)), abs=1e-5
    )
    traced = record_trace(tower, " | ".join(captions))
    assert all(np.array_equal(a.weights, b.weights) for a, b in zip(traced.layers, seen.layers, strict=True))
    found = run("ablate", " | ".join(captions), *model, "--target", "a dog", "--against", "a cat", "--json").json
    assert found["baseline"]["probability"] == pytest.approx(float(shares[2]), abs=1e-5)
    for one in found["heads"]:
        weight = network.vision_model.encoder.layers[one["layer"]].self_attn.out_proj.weight
        before, columns = weight.detach().clone(), slice(8 * one["head"], 8 * one["head"] + 8)
        with torch.inference_mode():
            weight.data[:, columns] = 0
            after = (
                network(input_ids=rows, attention_mask=mask, pixel_values=pixels).logits_per_image[0].log_softmax(-1)
            )
            weight.data[:] = before
        assert one["log_probability"] == pytest.approx(float(after[2] - shares[2].log()), abs=2e-5)
    assert len(run("ablate", " | ".join(captions), *model, "--spans", "regions", "--json").json["spans"]) == 9
    assert run("heatmap", "a cat | a dog", *model, "-o", str(tmp_path / "heat.png")).code == 0
    listed = tmp_path / "list.txt"
    listed.write_text(f"{picture}\n")
    assert '"box":[24,4,32,12]' in run("batch", str(listed), "--model", str(folder)).out
    alone = run("explain", "a cat", *model)
    assert alone.code == 2 and "give two captions or more" in alone.err and alone.err.count("\n") == 1


def test_pictures_that_are_not_cut_into_one_grid_of_patches_are_refused_in_one_line(
    run: Run, tmp_path: Path, picture: str
) -> None:
    sizes = {
        "embed_dim": 16,
        "depths": [1, 1],
        "num_heads": [2, 4],
        "window_size": 4,
        "image_size": 32,
        "patch_size": 4,
    }
    settings = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
    for kind, more in (("Swin", sizes), ("ConvNext", {"depths": [1] * 4}), ("Segformer", {}), ("ViTMAE", SIZES)):
        network = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**more))
        network.save_pretrained(tmp_path / kind)
        (tmp_path / kind / "preprocessor_config.json").write_text(json.dumps(settings))
        refused = run("heatmap", picture, "--model", str(tmp_path / kind))
        assert refused.code == 1 and not refused.out and refused.err.count("\n") == 1
        assert any(why in refused.err for why in ("makes other tokens", "no attention", "patches of one grid"))


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_those_of_eager_and_every_patch_has_its_box(family: str, tmp_path: Path, picture: str) -> None:
    import torch

    model: Any = open_model(str(saved(tmp_path / family, family)))
    trace = record_trace(model, picture)
    names = FAMILIES[family][3]
    assert [token.text for token in trace.tokens[: len(names)]] == names
    patches = {token.text: token.box for token in trace.tokens if token.box is not None}
    assert len(patches) == 16 and all(token.special == (token.box is None) for token in trace.tokens)
    if FAMILIES[family][2] is SQUEEZED:
        assert patches["r0c0"] == (0, 0, 20, 10) and patches["r3c3"] == (60, 30, 80, 40)
    else:  # 80 × 40 becomes that again, of which the middle 32 × 32 is seen: the shortest edge is 40
        assert patches["r0c0"] == (24, 4, 32, 12) and patches["r3c3"] == (48, 28, 56, 36)
    model.network.set_attn_implementation("eager")
    with torch.inference_mode():
        pixels = model.reader.processor(read_photograph(picture), return_tensors="pt")["pixel_values"]
        own = model.network(pixel_values=pixels, output_attentions=True).attentions
    for layer, weights in zip(trace.layers, own, strict=True):
        assert np.array_equal(layer.weights, weights[0].numpy())
    if family == "ViT":
        assert (
            len(trace.predictions) == 3
            and trace.predictions[0].is_class
            and trace.predictions[0].text.startswith("LABEL_")
        )


def test_what_a_patch_shows_is_what_its_box_holds(tmp_path: Path, picture: str) -> None:
    """The network sees, where a patch is, the pixels of its box: their mean colour."""
    for family in ("ViT", "Dinov2"):
        model: Any = open_model(str(saved(tmp_path / family, family)))
        photograph = read_photograph(picture)
        pixels = model.reader.processor(photograph, return_tensors="np")["pixel_values"][0] * 0.5 + 0.5  # (3, 32, 32)
        given = np.asarray(photograph, np.float32) / 255
        for token in model.tokenize(picture):
            if token.box is not None:
                row, column = map(int, token.text[1:].split("c"))
                left, top, right, bottom = token.box
                seen = pixels[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8].mean((1, 2))
                assert np.allclose(seen, given[top:bottom, left:right].mean((0, 1)), atol=0.01)


@pytest.mark.parametrize("size", [(80, 40), (45, 90), (50, 37)])
def test_patches_of_padding_have_no_box(size: tuple[int, int], run: Run, tmp_path: Path) -> None:
    """YOLOS fills a picture up to the right and below: what is painted in a box changes its patch, and no other as much."""
    folder = saved(tmp_path / "yolos", "Yolos")
    (folder / "preprocessor_config.json").unlink()
    shape = {"height": 48, "width": 64}
    resized = transformers.YolosImageProcessorPil(size={"shortest_edge": 16, "longest_edge": 40}, pad_size=shape)
    resized.save_pretrained(folder)
    grey = Image.new("RGB", size, (120, 120, 120))
    grey.save(tmp_path / "grey.png")
    photo = str(tmp_path / "grey.png")
    model: Any = open_model(str(folder))

    def patches(picture: Image.Image) -> Any:
        pixels = model.reader.processor(picture, return_tensors="np")["pixel_values"][0]
        return pixels.reshape(3, 6, 8, 8, 8).transpose(1, 3, 0, 2, 4).reshape(48, -1)

    tokens = model.tokenize(photo)
    assert [token.text for token in tokens if "r" not in token.text] == ["[CLS]", "[DET0]", "[DET1]", "[DET2]"]
    grid = tokens[1:-3]
    seen = np.abs(patches(Image.new("RGB", size, "white")) - patches(Image.new("RGB", size, "black"))).max(1) > 0
    assert [token.box is not None for token in grid] == seen.tolist() and 0 < seen.sum() < 48
    assert all(token.special == token.text.startswith("padding-r") == (token.box is None) for token in grid)
    for at, token in enumerate(grid):
        if token.box is not None:
            left, top, right, bottom = token.box
            painted = grey.copy()
            painted.paste((255, 255, 0), (left, top, right, bottom))
            assert int(np.abs(patches(painted) - patches(grey)).sum(1).argmax()) == at, token
    boxes = [token.box for token in grid if token.box is not None]
    assert (max(box[2] for box in boxes), max(box[3] for box in boxes)) == size
    command = ("--model", str(folder), "--head", "0", "--quiet")
    told = [line.split("\t") for line in run("heatmap", photo, *command).out.splitlines()[1:]]
    assert [bool(line[3]) for line in told][1:-3] == seen.tolist()
    corner = run(
        "heatmap", photo, "--query", f"{size[0] - 1},{size[1] - 1}", *command, "-o", str(tmp_path / "heat.png")
    )
    assert corner.code == 0, corner.err
    heads = run("heads", photo, *command[:2], "--json").json["heads"]
    cls = [
        np.array(one["weights"][0]) for one in run("explain", photo, *command[:2], "--json").json["layers"][0]["heads"]
    ]
    assert [one["picture"] for one in heads if one["layer"] == 0] == pytest.approx(
        [float(row[1:-3][seen].sum()) for row in cls], abs=1e-4
    )


def test_a_picture_is_drawn_told_and_refused(run: Run, tmp_path: Path, picture: str) -> None:
    model = str(saved(tmp_path / "registers", "Dinov2WithRegisters"))
    told = run("heatmap", picture, "--model", model, "--head", "1", "--quiet")
    lines = [line.split("\t") for line in told.out.splitlines()]
    assert lines[0][-1] == "weight" and lines[4][2:7] == ["r0c0", "24", "4", "32", "12"] and len(lines) == 1 + 3 + 16
    assert sum(float(line[-1]) for line in lines[1:]) == pytest.approx(1, abs=1e-4)
    assert run("heatmap", picture, "--model", model, "-o", str(tmp_path / "heat.png"), "--query", "30,10").code == 0
    with Image.open(tmp_path / "heat.png") as drawn:
        assert drawn.width > 500
    assert run("heatmap", picture, "--model", model, "-o", str(tmp_path / "heat.json")).code == 0
    assert json.loads((tmp_path / "heat.json").read_text())["tokens"][3]["box"] == [24, 4, 32, 12]
    assert run("heads", picture, "--model", model, "--json").code == 0
    listed = tmp_path / "list.txt"
    listed.write_text(f"{picture}\n{tmp_path}/none.png\n")
    many = run("batch", str(listed), "--model", model)
    records = [json.loads(line) for line in many.out.splitlines()]
    assert many.code == 3 and ["error" in record for record in records] == [False, True] and "no picture" in many.err
    checked = run("check", picture, "--model", model)
    assert checked.code == 0 and "bit for bit" in checked.out and "19 × 19" in checked.out
    for words, said in {
        (
            "heatmap",
            picture,
            "--model",
            model,
            "--query",
            "2,2",
        ): "--query 2,2: no patch is there: the model sees 24,4 to 55,35",
        ("heatmap", picture): "is a picture, and demo reads text",
        ("heads", "a sentence", "--model", model): "no picture 'a sentence': this model reads pictures",
        ("ablate", picture, "--model", model, "--target", "cat"): "predicts no words; its final states are compared",
        ("needle", "--model", model): "reads pictures: this needs a model that reads texts",
        ("batch", picture, "--model", model): "give a file with the names of pictures",
        ("heatmap", picture, "--model", model, "--rows", "1-2"): "--rows has no effect here: a photograph is shown",
        ("heatmap", picture, "--model", model, "--log"): "--log has no effect here: numbers are written",
        ("heatmap", picture, "--model", model, "-o", f"{tmp_path}/a.json", "--vmax", "1"): "--vmax has no effect here",
        (
            "heatmap",
            picture,
            "--model",
            model,
            "-o",
            f"{tmp_path}/a.png",
            "--vmax",
            "0",
            "--quiet",
        ): "would go from 0 to 0",
        ("heatmap", picture, "--model", model, "--no-bos"): "--bos is for models of text",
        ("explain", picture, "--model", model, "--generate", "2"): "--generate is for models of text",
    }.items():
        refused = run(*words)
        assert refused.code in (1, 2) and not refused.out and said in refused.err and refused.err.count("\n") == 1
    (Path(model) / "preprocessor_config.json").unlink()
    assert "has no preprocessor_config.json" in run("heads", picture, "--model", model).err


def test_a_processor_that_is_saved_whole_is_read(tmp_path: Path, picture: str) -> None:
    """As CLIPProcessor.save_pretrained does: without a file for pictures alone."""
    model: Any = open_model(str(saved(tmp_path / "CLIPVision", "CLIPVision")))
    known = record_trace(model, picture)
    settings = json.loads((tmp_path / "CLIPVision/preprocessor_config.json").read_text())
    (tmp_path / "CLIPVision/preprocessor_config.json").unlink()
    (tmp_path / "CLIPVision/processor_config.json").write_text(json.dumps({"image_processor": settings}))
    again = record_trace(open_model(str(tmp_path / "CLIPVision")), picture)
    assert again.tokens == known.tokens and np.array_equal(again.layers[1].weights, known.layers[1].weights)


@pytest.mark.skipif(find_spec("torchvision") is not None, reason="torchvision is installed")
def test_dinov3_says_that_its_processor_needs_torchvision(run: Run, tmp_path: Path, picture: str) -> None:
    folder = saved(tmp_path / "dino", "DINOv3ViT")
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    settings["image_processor_type"] = "DINOv3ViTImageProcessorFast"  # as its checkpoints have it
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    refused = run("heatmap", picture, "--model", str(folder))
    assert "the processor of dino needs torchvision, which is not installed: pip install" in refused.err
    assert refused.code == 1 and not refused.out and refused.err.count("\n") == 1


def test_what_matters_for_the_class_of_a_picture_is_that_of_a_plain_run_changed_by_hand(
    run: Run, tmp_path: Path, picture: str
) -> None:
    """Heads off: columns of the output projection are 0. Edges cut: a plain attention with the key hidden from CLS."""
    import torch
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    folder = str(saved(tmp_path / "vit", "ViT"))
    settings = json.loads((tmp_path / "vit/config.json").read_text())
    settings |= {"id2label": {"0": "tabby, tabby cat", "1": "dog", "2": "2"}}
    (tmp_path / "vit/config.json").write_text(json.dumps(settings))
    command = ("ablate", picture, "--model", folder)
    found = run(*command, "--target", "Tabby Cat", "--against", "1", "--json").json
    cut = run(*command, "--target", "0", "--edges", "--json").json
    assert (
        found["target"] == {"text": "tabby, tabby cat", "id": 0, "is_class": True} and found["against"]["text"] == "dog"
    )
    assert found["query"] == 0 and found["tokens"][1]["box"] == [0, 0, 20, 10]

    model: Any = open_model(folder)
    network = copy.deepcopy(model.network)  # it is changed, and the commands share the other
    pixels = model.reader.processor(read_photograph(picture), return_tensors="pt")["pixel_values"]

    def logits() -> Any:
        with torch.inference_mode():
            return network(pixel_values=pixels).logits[0]

    plain = logits()
    said = plain.softmax(-1)
    assert found["baseline"]["probability"] == pytest.approx(float(said[0]), abs=1e-6)
    assert run(*command, "--json").json["target"]["id"] == int(plain.argmax())
    for one in found["heads"]:
        weight = network.vit.layers[one["layer"]].attention.o_proj.weight
        before, own = weight.detach().clone(), slice(8 * one["head"], 8 * one["head"] + 8)
        weight.data[:, own] = 0
        after = logits()
        weight.data[:] = before
        change = after.log_softmax(-1) - plain.log_softmax(-1)
        assert one["log_probability"] == pytest.approx(float(change[0]), abs=1e-5)
        assert one["logit_difference"] == pytest.approx(float(change[0] - change[1]), abs=1e-5)

    def hide(key: int) -> Any:
        def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, **_: Any) -> Any:
            scores = q @ k.transpose(2, 3) * scaling
            scores[:, :, 0, key] = -torch.inf
            return (scores.softmax(-1) @ v).transpose(1, 2).contiguous(), None

        return attend

    assert [one["key"] for one in cut["edges"]] == list(range(17))
    for one in cut["edges"]:
        ALL_ATTENTION_FUNCTIONS.register("hiding", hide(one["key"]))
        network.config._attn_implementation = "hiding"
        change = logits().log_softmax(-1) - plain.log_softmax(-1)
        assert one["log_probability"] == pytest.approx(float(change[0]), abs=1e-5)

    network.config._attn_implementation = "eager"
    vit, names = network.vit, [token["text"] for token in found["tokens"]]
    inner = run(*command, "--target", "0", "--spans", "regions", "--json").json["spans"][4]
    assert (inner["name"], inner["token_count"], inner["start"], inner["end"]) == ("middle", 4, 6, 12)
    with torch.inference_mode():
        states = vit.embeddings(pixels)[
            :, [at for at, name in enumerate(names) if name not in ("r1c1", "r1c2", "r2c1", "r2c2")]
        ]
        for layer in vit.layers:  # what no other token sees might as well not be there
            states = layer(states)
        left = network.classifier(vit.layernorm(states)[:, 0])[0]
    assert states.shape == (1, 13, 32)
    assert inner["log_probability"] == pytest.approx(float((left.log_softmax(-1) - plain.log_softmax(-1))[0]), abs=1e-5)
    for words, what in {
        ("--target", "bird"): "no such class among its 3: tabby, tabby cat (0), dog (1), 2 (2)",
        ("--query", "r9c9"): "r9c9",
    }.items():
        refused = run(*command, *words)
        assert refused.code in (1, 2) and what in refused.err and refused.err.count("\n") == 1 and not refused.out


def test_pictures_of_every_kind_are_read_upright_or_refused(tmp_path: Path) -> None:
    turned = Image.new("RGB", (40, 80), "red")
    exif = turned.getexif()
    exif[0x112] = 6  # the camera was held sideways
    turned.save(tmp_path / "turned.jpg", exif=exif)
    assert read_photograph(str(tmp_path / "turned.jpg")).size == (80, 40)
    for mode in ("L", "P", "CMYK", "I;16", "1", "LA"):
        Image.new(mode, (9, 7)).save(tmp_path / "kind.tiff")
        assert read_photograph(str(tmp_path / "kind.tiff")).mode == "RGB"
    Image.new("RGBA", (3, 3), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert read_photograph(str(tmp_path / "clear.png")).getpixel((1, 1)) == (255, 255, 255)
    Image.new("P", (4, 4)).save(tmp_path / "moving.gif", save_all=True, append_images=[Image.new("P", (4, 4), 3)])
    assert read_photograph(str(tmp_path / "moving.gif")).size == (4, 4)
    whole = (tmp_path / "turned.jpg").read_bytes()
    for name, data, said in (
        ("cut.jpg", whole[:300], "cannot read the picture"),
        ("text.png", b"hello", "cannot read the picture"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(AttnctlError, match=said):
            read_photograph(str(tmp_path / name))
    Image.new("1", (10_000, 10_000)).save(tmp_path / "huge.png")
    with pytest.raises(AttnctlError, match="10,000 × 10,000 pixels"):
        read_photograph(str(tmp_path / "huge.png"))


@pytest.mark.parametrize("name", ["photo.png", "photo.jpg", "photo.tiff"])
def test_a_picture_of_a_format_that_starts_a_program_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from PIL import EpsImagePlugin

    started: list[Any] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given, **_: started.append(given))
    path = tmp_path / name
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(AttnctlError, match="not one of BMP, GIF, JPEG, PNG, TIFF, WEBP"):
        read_photograph(str(path))
    Image.new("RGB", (9, 9)).save(path, "PPM")  # no program, but no format of the list
    with pytest.raises(AttnctlError, match="not one of BMP, GIF, JPEG, PNG, TIFF, WEBP"):
        read_photograph(str(path))
    assert not started


def test_a_picture_of_a_phone_is_read(tmp_path: Path) -> None:
    first, second = (Image.new("RGB", (8, 6), colour) for colour in ("white", "black"))
    first.save(tmp_path / "photo.jpg", "MPO", save_all=True, append_images=[second])
    assert read_photograph(str(tmp_path / "photo.jpg")).getpixel((4, 3)) == (255, 255, 255)


def test_weights_lie_on_the_pixels_of_their_boxes() -> None:
    from attnctl.text.tokens import Token

    keys = (Token("[CLS]", special=True), Token("r0c0", box=(2, 0, 4, 4)), Token("r0c1", box=(4, 0, 6, 4)))
    heat = heat_of_boxes(np.array([0.5, 0.2, 0.3]), keys, (8, 4), (4, 8))
    assert np.isnan(heat[:, :2]).all() and np.isnan(heat[:, 6:]).all()
    assert np.allclose(heat[:, 2:4], 0.2) and np.allclose(heat[:, 4:6], 0.3)
    assert find_several(keys, "3, 1") == [1] and find_several(keys, "r0c1") == [2] and find_several(keys, "2") == [2]
    with pytest.raises(UsageError, match="query='7,1': no patch is there"):
        find_several(keys, "7,1")
