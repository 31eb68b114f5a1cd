"""Pictures in any torch module: where patches lie is computed by hand, and the weights are those that the module returns."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("PIL", reason="attnctl[hf] is not installed")
from matplotlib.text import Text
from PIL import Image

import attnctl
from attnctl.errors import AttnctlError, UsageError
from attnctl.models.torch.picture_tokens import grid_of_tokens, lines_of_transform, patches_in
from tests.conftest import Refused, Run

OWN = '''
import numpy as np
import torch
from PIL import Image
from torch import nn

class Vit(nn.Module):
    def __init__(self, before):
        super().__init__()
        torch.manual_seed(0)
        self.patch, self.before = nn.Conv2d(3, 16, 8, 8), nn.Parameter(torch.randn(1, before, 16))
        self.attend, self.head = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 5)

    def forward(self, x):
        x = torch.cat([self.before.expand(len(x), -1, -1), self.patch(x).flatten(2).mT], 1)
        self.weights = self.attend(x, x, x, average_attn_weights=False)[1]
        return self.head((x + self.attend(x, x, x, need_weights=False)[0])[:, 0])

class Windows(Vit):
    def forward(self, x):
        x = self.patch(x)  # (batch, 16, 4, 4)
        x = x.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 4, 5, 1).reshape(-1, 4, 16)
        return self.head(self.attend(x, x, x, need_weights=False)[0]).mean(1)

def cropped(image):
    """Resize the shorter side to 40 pixels, and keep the middle, 32 x 32."""
    scale = 40 / min(image.size)
    image = image.resize(tuple(round(side * scale) for side in image.size), Image.BILINEAR)
    left, top = ((side - 32) // 2 for side in image.size)
    return squeezed(image.crop((left, top, left + 32, top + 32)))

def squeezed(image):
    pixels = np.asarray(image.resize((32, 32), Image.BILINEAR), dtype=np.float32)
    return (torch.from_numpy(pixels.copy()).permute(2, 0, 1) / 255 - 0.5) / 0.2

def build():
    return Vit(1), cropped

def with_registers():
    return Vit(3), squeezed

def windows():
    return Windows(1), squeezed

def at_random():
    def transform(image):
        return torch.randn(3, 32, 32)
    return Vit(1), transform
'''


@pytest.fixture(autouse=True)
def photo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("own_vit.py").write_text(OWN)
    pixels = np.random.default_rng(0).integers(0, 255, (12, 16, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((200, 120), Image.BILINEAR).save("photo.png")
    return tmp_path / "photo.png"


def opened(name: str = "photo.png") -> Image.Image:
    with Image.open(name) as image:
        return image.convert("RGB")


def own(name: str):
    scope: dict[str, object] = {}
    exec(OWN, scope)
    model, transform = scope[name]()
    return model.eval(), transform


def test_where_a_crop_lies() -> None:
    """120 pixels become 40 rows, of which 4 to 36 are kept: 12 to 108 of the picture; of 67 columns 17 to 49."""
    _, transform = own("build")
    photograph = opened()
    rows, columns = lines_of_transform(transform, photograph)
    assert rows == pytest.approx((12 / 120, 96 / 120), abs=0.004)
    assert columns == pytest.approx((17 / 67, 32 / 67), abs=0.004)
    boxes = [token.box for token in patches_in(photograph, (4, 4), (rows, columns))]
    expected = [
        (50.7 + 23.9 * column, 12 + 24 * row, 50.7 + 23.9 * (column + 1), 36 + 24 * row)
        for row in range(4)
        for column in range(4)
    ]
    assert np.abs(np.subtract(boxes, expected)).max() <= 1


def test_a_mirrored_picture() -> None:
    _, transform = own("with_registers")
    photograph = opened()
    _, columns = lines_of_transform(
        lambda image: transform(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)), photograph
    )
    assert columns == pytest.approx((1, -1), abs=0.01)
    first = patches_in(photograph, (4, 4), (None, columns))[0]
    assert np.abs(np.subtract(first.box, (150, 0, 200, 30))).max() <= 1


@pytest.mark.parametrize(
    ("n", "side", "sizes", "grid"),
    [
        (197, (224, 224), (), (14, 14)),
        (201, (224, 224), (), (14, 14)),
        (33, (64, 32), (), (8, 4)),
        (17, (64, 64), [(2, 8), (1, 1)], (2, 8)),
        (7, (64, 64), (), None),
        (12, None, (), None),
    ],
)
def test_grids(n: int, side, sizes, grid) -> None:
    assert grid_of_tokens(n, side, sizes) == grid


def test_the_weights_over_a_photograph(run: Run) -> None:
    model, transform = own("build")
    with torch.no_grad():
        model(transform(opened())[None])
    done = run("heatmap", "photo.png", "--model", "own_vit.py:build", "--head", "1")
    lines = [line.split("\t") for line in done.out.splitlines()]
    weights = np.array([float(line[-1]) for line in lines[1:]])
    assert np.abs(weights - model.weights[0, 1, 0].numpy()).max() < 1e-5
    assert [line[2] for line in lines[1:4]] == ["[CLS]", "r0c0", "r0c1"]
    assert run("heatmap", "photo.png", "--model", "own_vit.py:build", "-o", "over.png").code == 0
    assert opened("over.png").size[0] > 400
    done = run("explain", "photo.png", "--model", "own_vit.py:with_registers")
    assert done.code == 0 and "[REG1]" in done.out and "tokenizer" not in done.out


def test_a_captured_model_over_a_photograph() -> None:
    model, transform = own("build")
    photograph = opened()
    with torch.no_grad(), attnctl.capture(model) as traces:
        model(transform(photograph)[None])
    call = traces[-1]
    assert [token.text for token in call.trace(grid=(4, 4)).tokens][:3] == ["[CLS]", "r0c0", "r0c1"]
    trace = call.trace(picture="photo.png", transform=transform)
    assert trace.text == "photo.png" and trace.tokens[1].box == pytest.approx((51, 12, 75, 36), abs=1)
    figure = trace.figure(picture=photograph, head=1, query="r1c1")
    written = [text.get_text() for text in figure.findobj(Text)]
    assert "layer 0, head 1" in written and any("where r1c1 looks in photo.png" in line for line in written)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": (9, 9)}, r"grid=\(9, 9\): there are 17 keys"),
        ({"picture": "none.png"}, "no picture 'none.png'"),
        ({"transform": len}, "transform needs the picture"),
        ({"grid": (4, 4), "tokens": ["a"] * 17}, "names of their own"),
    ],
)
def test_what_is_no_grid_is_refused(options, message: str) -> None:
    model, transform = own("build")
    with torch.no_grad(), attnctl.capture(model) as traces:
        model(torch.randn(1, 3, 32, 32))
    with pytest.raises(AttnctlError, match=message):
        traces[-1].trace(**options)
    with pytest.raises(UsageError, match="no places in a picture"):
        traces[-1].trace(grid=(4, 4)).figure(picture="photo.png")
    with pytest.raises(TypeError, match=r"grid is \(rows, columns\)"):
        traces[-1].trace(grid="4x4")


def test_what_has_no_map_is_one_line(refused: Refused) -> None:
    assert "within 4 windows" in refused("heatmap", "photo.png", "--model", "own_vit.py:windows")
    assert "at random" in refused("heatmap", "photo.png", "--model", "own_vit.py:at_random")
