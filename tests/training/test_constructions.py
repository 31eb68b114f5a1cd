"""The sentences of constructions are what their templates and the sentences by hand give, and their marks name their words."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.tools.calibration import TRAINING, read_sentences
from tests.tools.constructions.__main__ import KIND, files
from tests.tools.constructions.notation import marked_line


def test_the_files_are_what_is_written_for_them() -> None:
    for name, text in files().items():
        assert TRAINING.joinpath(name).read_text(encoding="utf-8") == text
        sentences = [" ".join(marked.words) for marked in read_sentences(name)]
        assert len(sentences) == sum(" | " in line for line in text.splitlines())
        assert Counter(sentences).most_common(1)[0][1] == 1
    fitted, unseen = (
        {line.split(" | ")[0] for line in files()[name].splitlines() if not line.startswith(KIND)}
        for name in ("constructions-fitted.txt", "constructions.txt")
    )
    assert not fitted & unseen


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("The boys'* coach* ran[s coach] .", "The boys' coach ran . | vs ran>coach ; dn The>boys'"),
        ("We ate[s We] fried~ rice*[o ate] .", "We ate fried rice . | vs ate>We ; ov rice>ate ; an fried>rice"),
        ("The dog* saw[s dog] the dog*[o saw] .", "The dog saw the dog . | vs saw>dog#1 ; ov dog#2>saw ; dn The>dog#1 the>dog#2"),
    ],
)  # fmt: skip
def test_the_notation(text: str, line: str) -> None:
    assert marked_line(text) == line
    with pytest.raises(ValueError, match="has no 'cat'"):
        marked_line("The dog* ran[s cat] .")
