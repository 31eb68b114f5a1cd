"""Bugs that were here once, put back one by one: `python -m tests.tools.bugs [WORDS …]` says which test notices each.

A bug is a text of the program as it stands, the text that it would be, and the tests that are run against it in a copy. It
ends with 1 where a bug goes unnoticed, or where its text is no longer found.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.tools.mutation import copy_of_repository, first_failure


class Bug(NamedTuple):
    """What was wrong, and where."""

    told: str
    path: str
    now: str
    then: str
    tests: tuple[str, ...]


BUGS = (
    Bug(
        "results of one input were removed where another was given",
        "attnctl/batching/manifest.py",
        'if "input" in names:',
        "if False:",
        ("tests/cli/commands/test_batch.py", "tests/batching"),
    ),
    Bug(
        "docs --site removed any folder that held a page",
        "attnctl/docs/site.py",
        "if target.exists() and not (target / MARK).is_file()",
        'if target.exists() and not (target / "index.html").is_file()',
        ("tests/documentation/test_docs.py",),
    ),
    Bug(
        "texts with options of their own ran on another model than the opened one",
        "attnctl/batching/work.py",
        "if not self.work.is_named:",
        "if False:",
        ("tests/cli/commands/test_batch.py", "tests/batching"),
    ),
    Bug(
        "--qkv took any name of a model beside it",
        "attnctl/models/__init__.py",
        "if name != DEFAULT:",
        "if False:",
        ("tests/models/builtin", "tests/cli"),
    ),
    Bug(
        "a rollout, of all heads together, bore the name of one head",
        "attnctl/source/__init__.py",
        "causal=None, finds=None)",
        "causal=None)",
        ("tests/commands/heads", "tests/readings"),
    ),
    Bug(
        "the untrained network beside one with heads off had all of them",
        "attnctl/commands/evaluate/compute.py",
        "    return fresh\n",
        '    return __import__("dataclasses").replace(fresh, intervention=None)\n',
        ("tests/commands/evaluate/test_compute.py",),
    ),
    Bug(
        "modules that were frozen in evaluation mode were put back into training",
        "attnctl/log.py",
        "trained = [module for module in network.modules() if module.training]",
        "trained = list(network.modules())",
        ("tests/models/huggingface/files/test_wrapped.py",),
    ),
    Bug(
        "of selected rows weights were looked up by place",
        "attnctl/layer/__init__.py",
        "return rows if self.rows is None else np.reshape(",
        "return rows if True else np.reshape(",
        ("tests/layer", "tests/readings"),
    ),
    Bug(
        "an encoder of which no layer can be shown was missing without a word",
        "attnctl/capturing.py",
        "if recording.traces.unseen:",
        "if False:",
        ("tests/models/huggingface/test_capture.py",),
    ),
    Bug(
        "the limit on padded tokens counted the shortest text",
        "attnctl/batching/work.py",
        "fitting = sum(count * size <= limits.PASS_TOKENS",
        "fitting = sum(count * sizes[0] <= limits.PASS_TOKENS",
        ("tests/models/huggingface/test_batches.py", "tests/batching"),
    ),
    Bug(
        "whether padding changes a model was tried once, on the first lengths",
        "attnctl/batching/work.py",
        "if padded and self._sound_to < len(long) < self._changed_from:",
        "if padded and not self._sound_to and len(long) < self._changed_from:",
        ("tests/models/huggingface/test_batches.py", "tests/batching"),
    ),
    Bug(
        "a snapshot of the hub that holds only a configuration counted as whole",
        "attnctl/models/huggingface/hub.py",
        "return found if named and all(",
        "return found if True or all(",
        ("tests/models/huggingface/files/test_hub.py",),
    ),
    Bug(
        "a look at the defaults wrote them where the environment held ATTNCTL_SETTING",
        "attnctl/commands/config.py",
        '"--set",\n',
        '"--set",\n            envvar="ATTNCTL_SETTING",\n',
        ("tests/cli/commands/test_config.py",),
    ),
    Bug(
        "shell --quiet was lost after a line",
        "attnctl/cli/command.py",
        'ctx.params.pop("quiet") or (ctx.obj is not None and ctx.obj.quiet)',
        'ctx.params.pop("quiet")',
        ("tests/cli/commands/test_shell.py",),
    ),
    Bug(
        "view --sources passed over the options of other pages",
        "attnctl/commands/view/command.py",
        "refuse_unused(context, *OF_WEIGHTS, WeightOptions, *OF_NO_PROMPT,",
        "refuse_unused(context, *OF_NO_PROMPT,",
        ("tests/test_refusals.py", "tests/cli/test_option_effects.py"),
    ),
    Bug(
        "a CSV matrix with a semicolon among its tokens was refused",
        "attnctl/formats/arrays.py",
        'delimiters = [mark for mark in "\\t;," if mark in text] or [","]',
        'delimiters = [mark for mark in "\\t;," if mark in text][:1] or [","]',
        ("tests/cli/inputs", "tests/formats"),
    ),
    Bug(
        "config --path passed over --set",
        "attnctl/commands/config.py",
        'refuse_unused(context, "setting", "unset", because="--path prints the path alone")',
        "pass",
        ("tests/test_refusals.py", "tests/cli/commands/test_config.py"),
    ),
)


def main() -> None:
    """Put each bug back, run its tests, and say whether they noticed."""
    words, unnoticed = sys.argv[1:], 0
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_of_repository(Path(folder))
        for bug in BUGS:
            if words and not any(word in bug.told for word in words):
                continue
            file = copy / bug.path
            sound = file.read_text(encoding="utf-8")
            if sound.count(bug.now) != 1:
                said = "its text is not there any more"
            else:
                file.write_text(sound.replace(bug.now, bug.then), encoding="utf-8")
                said = "noticed" if first_failure(copy, bug.tests) else "NOT NOTICED"
                file.write_text(sound, encoding="utf-8")
            unnoticed += said != "noticed"
            print(f"{said}: {bug.told}", flush=True)
    sys.exit(1 if unnoticed else 0)


if __name__ == "__main__":
    main()
