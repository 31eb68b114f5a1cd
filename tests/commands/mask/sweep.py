"""Every family of the sweep under `attnctl.mask`: nothing is wrong with any, so any violation is a false alarm.

`python -m tests.commands.mask.sweep [words…] [--part K/N]` runs all families, or those whose name contains one of the words.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from attnctl.commands.mask.compute import MaskCheck, mask
from attnctl.errors import AttnctlError
from tests.tools.sweep.families import Family, build, families
from tests.tools.sweep.modes import N, given
from tests.tools.sweep.verdict import calm, supports_fused

# families in which something is wrong; `test_families` shows it without attnctl
FINDINGS = {
    "moshi": "its configuration has a sliding window, and eager and sdpa do not apply it",
    "prophetnet": "what it predicts at a token moves with later tokens, through the streams that predict",
}
WAYS = ("plain", "left", "right")


def inputs_of(family: Family, network: Any, way: str) -> dict[str, Any]:
    """Return what the network is called with: a text, or two of which one is padded."""
    inputs = given(family, network, batch=1 if way == "plain" else 2)
    if way != "plain":
        shown = torch.ones(2, N, dtype=torch.long)
        shown[1, slice(0, 4) if way == "left" else slice(N - 4, N)] = 0
        inputs["attention_mask"] = shown
    return inputs


def checks(family: Family, ways: tuple[str, ...] = WAYS) -> Iterator[tuple[str, str, MaskCheck | str]]:
    """Yield (way, kernel, result) for every way and kernel; a text if it is refused, "not built: …" if it does not run."""
    try:
        with calm(60):
            kernels = ["eager", "sdpa"] if supports_fused(family) else ["eager"]
    except Exception as error:
        yield "plain", "eager", f"not built: {type(error).__name__}: {error}"[:150]
        return
    for kernel in kernels:
        for way in ways:
            try:
                with calm(60):
                    network = build(family, kernel)
                    inputs = inputs_of(family, network, way)
                    network(**inputs)
            except Exception as error:
                yield way, kernel, f"not built: {type(error).__name__}: {error}"[:150]
                continue
            try:
                with calm(60):
                    yield way, kernel, mask(network, **inputs)
            except AttnctlError as error:
                yield way, kernel, f"refused: {error}"
            except Exception as error:
                yield way, kernel, f"error: {type(error).__name__}: {error}"[:300]


def main() -> None:
    """Run the sweep; print every false alarm, error and refusal, and a count of each at the end."""
    import transformers

    parser = argparse.ArgumentParser(prog="python -m tests.commands.mask.sweep")
    parser.add_argument("words", nargs="*", help="families whose name contains one of these [default: all]")
    parser.add_argument("--part", default="1/1", help="K/N: run only the K-th of N parts [default: 1/1]")
    parser.add_argument("--all", action="store_true", help="print every line, and the sentences")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"[default: {','.join(WAYS)}]")
    arguments = parser.parse_args()
    part, parts = map(int, arguments.part.split("/"))
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    counts: Counter[str] = Counter()
    started = time.monotonic()
    for family in list(families())[part - 1 :: parts]:
        if arguments.words and not any(word in str(family) for word in arguments.words):
            continue
        for way, kernel, result in checks(family, tuple(arguments.ways.split(","))):
            if isinstance(result, str):
                outcome, why = result.partition(":")[0], result
            else:
                checked = "holds" if result.exchanges or not result.unchecked else "holds, unchecked"
                checked = "holds, masks unread" if result.holds is None else checked
                outcome = "finding" if family.kind in FINDINGS else "FALSE ALARM"
                outcome = outcome if result.violations else checked
                why = str(result).replace("\n", " | ") + "".join(
                    f" [{note}]" for note in (*result.notes, *result.unchecked)
                )
            counts[outcome] += 1
            if arguments.all or outcome not in ("holds", "holds, masks unread", "finding", "not built"):
                print(f"{outcome:12} {family} | {way} | {kernel} | {why[:600]}", flush=True)
    print(dict(counts), f"{time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
