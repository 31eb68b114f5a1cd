"""What a process of attnctl's own imports: no compiler and no other architecture, unless something needs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import transformers

from attnctl.models import attend
from attnctl.runtime import light_import
from tests.models.huggingface.conftest import Shelf

START = "import sys; from attnctl.runtime import light_import; light_import.alone = True\n"


def printed(code: str, *args: str) -> str:
    """What code prints in a process of its own, silent on stderr."""
    done = subprocess.run([sys.executable, "-c", START + code, *args], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def test_a_process_of_its_own_imports_no_compiler_and_no_other_architecture(shelf: Shelf) -> None:
    """And reads the weights that are read here, in the company of all of transformers; its quick listing is the same."""
    code = (
        "from attnctl.models import attend\n"
        "print([layer.weights.tolist() for path in sys.argv[1:] for layer in attend('at', path).layers])\n"
        "compilers = ('torch._dynamo', 'torch.distributed.tensor', 'scipy', 'sympy'); other = ('bert', 'qwen2', 'gemma')\n"
        "print(*(name in sys.modules for name in (*compilers, *(f'transformers.models.{name}' for name in other))))\n"
        "import transformers as listed; print(listed.__version__, sorted(listed._class_to_module.items()))"
    )
    paths = [shelf(case) for case in ("mixtral", "t5, bias", "llama")]
    weights, imported, listing = printed(code, *paths).splitlines()
    assert imported == "False False False False False False False"
    assert weights == str([layer.weights.tolist() for path in paths for layer in attend("at", path).layers])
    listed = sorted(transformers._class_to_module.items())
    assert listing == f"{transformers.__version__} {listed}" and len(listed) > 4000


def test_no_garbage_is_collected_while_torch_is_imported_or_at_the_end() -> None:
    """And what stands in for Python's own functions meanwhile does so only then."""
    code = (
        "import atexit, gc, inspect\n"
        "from attnctl.models.huggingface.hub import import_extra\n"
        "own, passes = (inspect.getframeinfo, inspect.getmodule), []\n"
        "gc.callbacks.append(lambda phase, info: passes.append(info['generation']))\n"
        "gc.set_threshold(20_000)  # torch makes more than ten times as many objects\n"
        "import_extra('torch')\n"
        "print(len(passes), gc.isenabled(), (inspect.getframeinfo, inspect.getmodule) == own)\n"
        "from attnctl.__main__ import main\n"
        "atexit.register(lambda: print(len(gc.get_objects()) < 1000 < gc.get_freeze_count()))\n"
        "sys.argv = ['attnctl', 'softmax', '1', '2']\n"
        "main()"
    )
    first, *_, last = printed(code).splitlines()
    assert (first, last) == ("0 True True", "True")


def test_a_part_of_a_library_is_imported_without_the_others() -> None:
    """And whoever asks for another part of it gets the whole library."""
    code = (
        "quants = light_import.import_part('gguf.quants')\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('gguf', 'yaml', 'sentencepiece')))\n"
        "import gguf, importlib.util\n"
        "print(importlib.util.find_spec('gguf') is not None, gguf.GGUFWriter.__name__, 'gguf.metadata' in sys.modules)\n"
        "from gguf import quants as again, GGUFReader\n"
        "import gguf.metadata\n"
        "print(again is quants, gguf.quants is quants, gguf.constants is light_import.import_part('gguf.constants'))"
    )
    pytest.importorskip("gguf")
    parts, whole, same = printed(code).splitlines()
    assert parts == "['gguf', 'gguf.constants', 'gguf.lazy', 'gguf.quants']"
    assert whole == "True GGUFWriter True" and same == "True True True"


def test_markdown_and_tracebacks_of_a_help_are_imported_where_they_are_used() -> None:
    code = (
        "help = light_import.help_renderer()\n"
        "print('rich.markdown' in sys.modules, 'rich.traceback' in sys.modules)\n"
        "page = help.Markdown('*once*')\n"
        "from rich.markdown import Markdown\n"
        "from rich.traceback import Traceback\n"
        "print(type(page) is Markdown, isinstance(page, help.Markdown), help.Traceback.from_exception == Traceback.from_exception)"
    )
    assert printed(code).splitlines() == ["False False", "True True True"]


RUNNING = """
import warnings
from attnctl.models import attend, open_model

def stand_ins():
    "What is called as the compiler is, and was made by no import: modules, what modules hold, and torch's own."
    known = [value for module in list(sys.modules.values()) for value in list(vars(module).values())]
    modules = [one for one in (*sys.modules.values(), *known) if type(one) is type(sys)]
    return [one.__name__ for one in modules if one.__name__.startswith("torch._dynamo") and one.__spec__ is None]

model = open_model(sys.argv[2])
import torch
found = []
model.network.register_forward_pre_hook(lambda *_: found.append(stand_ins()))
attend("at", model)
from transformers.utils import is_torch_distributed_available
print(len(found) > 0, any(found), is_torch_distributed_available() == torch.distributed.is_available())
"""
COMPILED = """
ids = torch.tensor([[1, 2, 3]])
model.network.set_attn_implementation("eager")
with torch.inference_mode():
    plain = model.network(ids).logits
warnings.simplefilter("ignore")  # of the compiler's own
compiled = torch.compile(model.network, backend="eager")  # by the real compiler
with torch.no_grad():
    print(torch.equal(compiled(ids).logits, plain), sys.modules["torch._dynamo"].__spec__ is not None)
"""


# The needs of one fork are asked in this order, as the compiler is imported once there, by the need that says so.
SHAPES_FIRST = {
    "an operation whose shape is known in Python alone": (
        "def load():\n"
        "    tries.append(light_import.SHAPES in sys.modules)\n"
        "    row = torch.ones(3, device='meta')\n"
        "    return tuple(row.logcumsumexp(0).shape)\n"
        "tries = []; print(light_import.import_lightly(load), tries)",
        "(3,) [False, True]",
    ),
    "an optimizer, which needs no compiler": (
        "light_import.complete_torch()  # training imports all of it\n"
        "from attnctl.commands.train.compute import begin_training, training_step\n"
        "from attnctl.commands.train.recipe import Recipe\n"
        "from attnctl.commands.train.run import read_corpus\n"
        "recipe = Recipe(steps=2, batch_size=4)\n"
        "training = begin_training(recipe, read_corpus(recipe, ['Alice eats pizza', 'Bob likes tea']))\n"
        "losses = [training_step(training) for _ in range(2)]\n"
        "print(training.step, light_import.COMPILER in sys.modules)",
        "2 False",
    ),
    "a version that wants the compiler, which is imported": (
        "def load():\n"
        "    import transformers.utils as utils\n"
        "    tries.append(utils.is_torch_distributed_available())\n"
        "    from torch._dynamo import config\n"
        "    return config.__name__\n"
        "tries = []; print(light_import.import_lightly(load), tries)",
        "torch._dynamo.config [False, True]",
    ),
    "an optimizer, after the compiler": (
        "import torch._dynamo as compiler\nprint(compiler.__spec__ is not None, training_step(training) > 0)",
        "True True",
    ),
}
NETWORK_FIRST = {
    "a network that runs: no stand-in is left": (RUNNING, "True False True"),
    # as Gemma 3 does while it makes the mask of a picture, in a torch whose shapes in Python were left out
    "the compiler, once the light import is done: it is imported, and the shapes before it": (
        "parts = (light_import.SHAPES, light_import.COMPILER)\n"
        "print(*(part in sys.modules for part in parts), end=' ')\n"
        "row = sys.modules['transformers.masking_utils'].TransformGetItemToIndex()\n"
        "print(*(part in sys.modules for part in parts), type(row).__module__)",
        "False False True True torch._dynamo._trace_wrapped_higher_order_op",
    ),
    "a network that is compiled by the real compiler": (COMPILED, "True True"),
}
FORKS = (SHAPES_FIRST, NETWORK_FIRST)
IN_FORKS = """
import json, os
from attnctl.models.huggingface.hub import import_extra
torch = import_extra('torch')
for codes in json.loads(sys.argv[1]):
    sys.stdout.flush()
    child = os.fork()
    if not child:
        for code in codes:
            exec(code)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, codes
"""


@pytest.mark.skipif(
    not hasattr(os, "fork"), reason="torch is imported in one process, and needs are asked in its forks"
)
def test_what_needs_more_than_a_light_import_gets_it(shelf: Shelf) -> None:
    codes = json.dumps([[code for code, _ in needs.values()] for needs in FORKS])
    lines = printed(IN_FORKS, codes, shelf("llama")).splitlines()
    wanted = {name: answer for needs in FORKS for name, (_, answer) in needs.items()}
    assert dict(zip(wanted, lines, strict=True)) == wanted


def test_versions_that_were_not_tested_are_imported_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    for hf, torch, tested in (
        ("5.23.1", "2.13.0+cpu", True),
        ("5.24.0", "2.13.0", True),
        ("5.25.0", "2.13.0", False),
        ("5.23.0", "2.14.0", False),
    ):
        monkeypatch.setattr(light_import, "version", {"transformers": hf, "torch": torch}.__getitem__)
        assert light_import.are_tested() is tested


@pytest.mark.skipif(sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs a second core, on Linux")
def test_torch_is_loaded_beside_other_imports_where_a_core_is_free() -> None:
    """And is the same library then: the system maps it once."""
    code = (
        "import os, threading\n"
        "def maps(): return {line.split()[-1] for line in open('/proc/self/maps') if 'libtorch_cpu' in line}\n"
        "cores = sorted(os.sched_getaffinity(0))\n"
        "os.sched_setaffinity(0, cores[:1]); light_import.begin_torch(); alone = threading.active_count(), maps()\n"
        "os.sched_setaffinity(0, cores); light_import.begin_torch(['no_such_module', 'mmap'])\n"
        "for thread in threading.enumerate()[1:]: thread.join()\n"
        "begun = maps()\n"
        "print(alone == (1, set()), 'torch' in sys.modules, 'mmap' in sys.modules, len(begun))\n"
        "import torch\n"
        "light_import.begin_torch()\n"
        "print(begun == maps(), threading.active_count(), (torch.ones(2, 3) @ torch.ones(3, 2)).tolist())"
    )
    assert printed(code).splitlines() == ["True False True 1", "True 1 [[3.0, 3.0], [3.0, 3.0]]"]
