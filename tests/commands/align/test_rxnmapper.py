"""An outside reference: the atoms of a product aligned by the head that rxnmapper published, layer 10, head 5 of its ALBERT."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers", reason="attnctl[hf] is not installed")
import attnctl
from tests.models.huggingface import test_rxnmapper as rxnmapper
from tests.models.huggingface.test_rxnmapper import PUBLISHED, TOKEN, is_atom

folder = rxnmapper.folder

MAPPED = (
    "[CH3:1][CH:2]([CH3:3])[SH:4].CN(C)C=O.F[c:5]1[n:6][cH:7][cH:8][cH:9][c:10]1[F:11].O=C([O-])[O-].[K+].[K+]"
    ">>[CH3:1][CH:2]([CH3:3])[S:4][c:5]1[n:6][cH:7][cH:8][cH:9][c:10]1[F:11]",
    "C1COCCO1.CC(C)(C)[O:3][C:2](=[O:1])[CH2:4][O:5][NH:6][C:7](=[O:8])[NH:9][CH2:10][c:11]1[cH:12][cH:13][cH:14][c:15]2"
    "[cH:16][cH:17][cH:18][cH:19][c:20]12.Cl"
    ">>[O:1]=[C:2]([OH:3])[CH2:4][O:5][NH:6][C:7](=[O:8])[NH:9][CH2:10][c:11]1[cH:12][cH:13][cH:14][c:15]2[cH:16][cH:17]"
    "[cH:18][cH:19][c:20]12",
    "S=[C:17]=[N:4][CH2:3][CH:2]=[CH2:1].[NH:18]([CH3:19])[CH2:20][c:21]1[cH:22][cH:23][c:24]([C:25]#[N:26])[cH:27]"
    "[cH:28]1.O=[C:5]([c:6]1[cH:7][n:8]2[c:9]([n:10]1)[CH2:11][CH2:12][CH2:13][CH2:14]2)[NH:15][NH2:16]"
    ">>[CH2:1]=[CH:2][CH2:3][n:4]1[c:5](-[c:6]2[cH:7][n:8]3[c:9]([n:10]2)[CH2:11][CH2:12][CH2:13][CH2:14]3)[n:15][n:16]"
    "[c:17]1[N:18]([CH3:19])[CH2:20][c:21]1[cH:22][cH:23][c:24]([C:25]#[N:26])[cH:27][cH:28]1",
)


def numbers_of_atoms(smiles: str) -> list[int | None]:
    """The number that each atom has."""
    found = (re.search(r":([0-9]+)]", token) for token in re.findall(TOKEN, smiles) if is_atom(token))
    return [None if number is None else int(number[1]) for number in found]


def test_the_published_head_aligns_atoms_as_published(folder: Path) -> None:
    """57 of the 59 atoms of these products; the package itself also asks what is bound to what, and uses no atom twice."""
    right, count = 0, 0
    for mapped in MAPPED:
        before, after = map(numbers_of_atoms, mapped.split(">>"))
        plain = re.sub(r"\[([A-Za-z]+?)(?:H[0-9]?)?:[0-9]+]", r"\1", mapped)
        found = attnctl.align(plain, folder, heads="10.5")
        rows = [at for at, link in enumerate(found.links) if is_atom(link.text)]
        columns = [at for at, token in enumerate(found.sources) if is_atom(token.text)]
        best = found.weights[np.ix_(rows, columns)].argmax(axis=1)
        right += sum(before[at] == number for at, number in zip(best, after, strict=True))
        count += len(after)
    assert count == 59 and right >= 56


def test_the_published_head_is_among_those_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 96 heads the tenth at most by the mean of its scores over the published reactions."""
    monkeypatch.setattr("attnctl.commands.align.texts.LISTED_HEADS", 96)
    each = [attnctl.align(reaction, folder).found_heads for reaction in PUBLISHED]
    scores = [{(one.layer, one.head): one.score for one in found} for found in each]
    mean = {place: np.mean([of_one[place] for of_one in scores]) for place in scores[0]}
    assert len(mean) == 96 and (10, 5) in sorted(mean, key=lambda place: -mean[place])[:10]
