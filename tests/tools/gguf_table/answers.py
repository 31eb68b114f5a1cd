"""Store llama.cpp's answers to the files of the table: `python -m tests.tools.gguf_table.answers FOLDER [WORD …]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.tools.gguf_table.checkpoints import TEXT, rows
from tests.tools.llamacpp import ask, isolated


def main() -> None:
    """Write ids, logits and weights of each file beside it."""
    folder, words = Path(sys.argv[1]), sys.argv[2:]
    for row in rows():
        path = folder / f"{row.name}.gguf"
        if not path.exists() or (words and not any(word in row.name for word in words)):
            continue
        try:
            (answer,) = isolated(ask, path, [TEXT])
        except ValueError as error:
            print("FAILED", row.name, str(error)[:300], flush=True)
            continue
        arrays: dict[str, Any] = {f"weights_{layer}": array for layer, array in answer.weights.items()}
        np.savez(path.with_suffix(".npz"), ids=answer.ids, logits=answer.logits, **arrays)
        print("answered", row.name, len(arrays), next(iter(arrays.values())).shape, flush=True)


if __name__ == "__main__":
    main()
