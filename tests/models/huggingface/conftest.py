"""What the tests of checkpoints share: tiny ones on disk and in memory, each made once; one thread, and no noise of libraries."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from attnctl.trace import Trace

collect_ignore_glob = [] if find_spec("transformers") else ["*.py"]  # attnctl[hf] is not installed

Shelf = Callable[..., str]
FamilyTrace = Callable[..., tuple[Any, Trace]]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """One thread, as numbers are compared to the last bit; what libraries deprecate is not said."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    """The folder of a case of the zoo ("llama"), or of a family of the sweep ("gpt_oss causal"), written when first asked for."""
    from tests.tools import architectures, folders
    from tests.tools.sweep.checkpoints import saved
    from tests.tools.sweep.families import Family

    root = tmp_path_factory.mktemp("shelf")

    def folder(case: str, **how: Any) -> str:
        path: Path = root / "-".join(map(str, how.items())) / case.split(",")[0].replace(" ", "-")
        if not path.exists() and case in architectures.ALL:
            folders.write(path, case, **how)
        elif not path.exists():
            saved(Family(*case.split()), path, **how)
        return str(path)

    return folder


@pytest.fixture(scope="session")
def family() -> FamilyTrace:
    """A family's tiny model, opened, and its trace, made when first asked for; no test changes it."""
    from attnctl.source import record_trace
    from tests.tools.sweep.checkpoints import TEXT, opened
    from tests.tools.sweep.families import Family, build

    made: dict[tuple[str, ...], tuple[Any, Trace]] = {}

    def of(kind: str, head: str = "causal", kernel: str = "eager", attention: str = "self") -> tuple[Any, Trace]:
        key = (kind, head, kernel, attention)
        if key not in made:
            wanted = Family(kind, head)
            model = opened(wanted, build(wanted, kernel), attention)
            made[key] = model, record_trace(model, TEXT)
        return made[key]

    return of


@pytest.fixture
def picture(tmp_path: Path) -> str:
    """80 × 40 pixels, red to the right, green downwards."""
    pixels = np.zeros((40, 80, 3), np.uint8)
    pixels[..., 0], pixels[..., 1] = np.arange(80) * 3, np.arange(40)[:, None] * 6
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    return str(tmp_path / "picture.png")
