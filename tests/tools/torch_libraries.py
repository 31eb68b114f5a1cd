"""Hold `attnctl.capture` against models of other libraries, by what these say of themselves, and print a table.

    pip install --target FOLDER --no-deps x-transformers torch-einops-utils einops einx frozendict loguru vit-pytorch timm \\
        open_clip_torch ftfy wcwidth keras namex optree h5py ml_dtypes absl-py
    PYTHONPATH=FOLDER python -m tests.tools.torch_libraries

timm, open_clip and vit-pytorch import torchvision, which their models here do not use: without it, an empty module stands in.
The references: the weights that a library returns, or the softmax of a module's own queries and keys in float64, from hooks.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

import attnctl

Case = tuple[nn.Module, Callable[[], object], Callable[[], list[Tensor]]]  # model, forward, expected weights after it


class AnyName(type):
    """A class that has every attribute."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An empty torchvision: each name in it is a class without content."""

    def find_spec(self, name, path, target=None):
        return (
            importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "torchvision" else None
        )

    def create_module(self, spec):
        class Empty(types.ModuleType):
            __version__ = "0.29.1"

            def __getattr__(self, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return AnyName(name, (), {})

        return Empty(spec.name)

    def exec_module(self, module):
        pass


def softmax64(q: Tensor, k: Tensor, scale: float, mask: Tensor | None = None) -> Tensor:
    """Return softmax(q kᵀ · scale) in float64: q, k (batch, heads, n, d)."""
    scores = q.double() @ k.double().transpose(-2, -1) * scale
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1)


def heads_of(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)


def outputs_of(model: nn.Module, names: list[str]) -> dict[str, list[Tensor]]:
    """Return name → the outputs of these modules in each forward from now on."""
    kept: dict[str, list[Tensor]] = {name: [] for name in names}
    for name, module in model.named_modules():
        if name in kept:
            module.register_forward_hook(lambda _, __, out, name=name: kept[name].append(out.detach()))
    return kept


def timm_vit(fused: bool) -> Case:
    import timm

    model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=3, num_classes=5).eval()
    for block in model.blocks:
        block.attn.fused_attn = fused
    kept = outputs_of(model, [f"blocks.{i}.attn.qkv" for i in range(3)])
    heads = model.blocks[0].attn.num_heads

    def expected() -> list[Tensor]:
        parts = [out.reshape(*out.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4) for (out,) in kept.values()]
        return [softmax64(q, k, q.shape[-1] ** -0.5) for q, k, _ in parts]

    return model, lambda: model(torch.randn(2, 3, 64, 64)), expected


def timm_swin() -> Case:
    import timm

    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, window_size=7, depths=(2, 2), num_heads=(3, 6), num_classes=5
    )
    model = model.eval()
    attentions = [module for module in model.modules() if type(module).__name__ == "WindowAttention"]
    weights: list[Tensor] = []
    for module in attentions:
        module.fused_attn = False
        module.softmax.register_forward_hook(lambda _, __, out: weights.append(out.detach()))
    return model, lambda: model(torch.randn(1, 3, 56, 56)), lambda: weights


def open_clip_text() -> Case:
    from open_clip.transformer import TextTransformer

    model = TextTransformer(context_length=9, vocab_size=50, width=32, heads=4, layers=2, output_dim=16).eval()
    return model, lambda: model(torch.randint(1, 50, (2, 9))), asked_afterwards(model)


def asked_afterwards(model: nn.Module) -> Callable[[], list[Tensor]]:
    """Return a function that asks each nn.MultiheadAttention for its weights, with what it got in the forward."""
    calls: list[tuple] = []
    for block in model.transformer.resblocks:
        block.attn.register_forward_hook(lambda *call: calls.append(call[:3]), with_kwargs=True)

    def expected() -> list[Tensor]:
        more = {"need_weights": True, "average_attn_weights": False}
        with torch.no_grad():  # the class's own forward, so that no hook is called again
            return [type(module).forward(module, *args, **{**keywords, **more})[1] for module, args, keywords in calls]

    return expected


def open_clip_vision() -> Case:
    from open_clip.transformer import VisionTransformer

    model = VisionTransformer(32, 8, width=32, layers=2, heads=4, mlp_ratio=2.0, output_dim=16).eval()
    return model, lambda: model(torch.randn(2, 3, 32, 32)), asked_afterwards(model)


def x_transformers(**options: object) -> Case:
    from x_transformers import Decoder, TransformerWrapper

    def built(**more: object) -> nn.Module:
        layers = Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **options | more)
        return TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=layers).eval()

    model, plain = built(), built(attn_flash=False)
    plain.load_state_dict(model.state_dict())
    ids = torch.randint(0, 50, (2, 9))

    def expected() -> list[Tensor]:
        with torch.no_grad():
            return list(plain(ids, return_attn=True)[1])  # what the library itself returns

    return model, lambda: model(ids), expected


def vit_pytorch() -> Case:
    from vit_pytorch import ViT

    model = ViT(image_size=32, patch_size=8, num_classes=5, dim=32, depth=2, heads=4, dim_head=8, mlp_dim=32).eval()
    weights: list[Tensor] = []
    for module in model.modules():
        if isinstance(module, nn.Softmax):
            module.register_forward_hook(lambda _, __, out: weights.append(out.detach()))
    return model, lambda: model(torch.randn(2, 3, 32, 32)), lambda: weights


def keras_attention() -> Case:
    import keras

    layer = keras.layers.MultiHeadAttention(num_heads=4, key_dim=8, flash_attention=False)
    x = torch.randn(2, 6, 32)
    layer(x, x)

    def expected() -> list[Tensor]:
        with torch.no_grad():
            return [layer(x, x, return_attention_scores=True)[1]]

    return layer, lambda: layer(x, x), expected


CASES: dict[str, Callable[[], Case]] = {
    "timm, ViT, fused": lambda: timm_vit(True),
    "timm, ViT, written out": lambda: timm_vit(False),
    "timm, Swin": timm_swin,
    "open_clip, text": open_clip_text,
    "open_clip, picture": open_clip_vision,
    "x-transformers, decoder": lambda: x_transformers(),
    "x-transformers, flash": lambda: x_transformers(attn_flash=True),
    "x-transformers, rotary, one key head": lambda: x_transformers(rotary_pos_emb=True, attn_one_kv_head=True),
    "x-transformers, memory keys": lambda: x_transformers(attn_num_mem_kv=3),
    "vit-pytorch, ViT": vit_pytorch,
    "keras on torch": keras_attention,
}


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield library, how it was read, largest difference: or what stands in the way."""
    for name, build in CASES.items():
        try:
            torch.manual_seed(0)
            model, forward, expected = build()
            with torch.no_grad(), attnctl.capture(model) as traces:
                forward()
            references = expected()
            assert len(traces) == len(references), f"{len(traces)} calls for {len(references)}"
            gap = max(float((call.weights - other).abs().max()) for call, other in zip(traces, references, strict=True))
            yield name, ", ".join(sorted({call.way for call in traces})), f"{gap:.1e}"
        except Exception as error:  # a library that is not installed, or a difference: the table says so
            yield name, "", f"{type(error).__name__}: {str(error)[:150]}"


def main() -> None:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    if importlib.util.find_spec("torchvision") is None:
        sys.meta_path.append(StandIn())
    print("| library | read by | largest difference |\n| --- | --- | --- |")
    for row in rows():
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
