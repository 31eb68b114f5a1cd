"""Fill chat templates in a process with bounded memory: the program that `template_process` starts.

A question is a line of JSON with a number, and so is its answer. The first question says where packages are, how much memory
the templates may take, and whether to ask the system for a limit: `{"path": …, "bytes": …, "limit": …}`; its answer is
`{"limited": …}`. Each further question holds a template, conversations and variables; its answer is `{"texts": …}` or
`{"error": …}`. The program is run as a file, so that it imports nothing of attnctl.
"""

from __future__ import annotations

import json
import signal
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "transformers.utils.chat_template_utils"
MESSAGE_CHARACTERS = 1000  # of an error


def main() -> None:
    """Answer each line of standard input with one line, until the input ends or the memory does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process if it must
    start = json.loads(sys.stdin.readline())
    sys.path[:] = start["path"]
    render = templates_module().render_jinja_template
    limited = start["limit"] and limit_memory(start["bytes"])
    print(json.dumps({"number": start["number"], "limited": limited}), flush=True)
    for line in sys.stdin:
        try:
            answer = filled(render, **json.loads(line))
        except MemoryError:
            return
        print(answer, flush=True)


def filled(render: Any, number: int, template: str, conversations: Any, variables: Any, characters: int) -> str:
    """Return the answer to question `number` as JSON. Raises MemoryError if the template needs too much memory."""
    try:
        rendered = render(conversations=conversations, chat_template=template, **variables)[0]
        texts = [str(text) for text in rendered]
    except MemoryError:
        raise
    except Exception as error:  # a template may raise any error
        message = " ".join(str(error).split())[:MESSAGE_CHARACTERS] or type(error).__name__
        return json.dumps({"number": number, "error": message})
    return json.dumps({"number": number, "texts": None if sum(map(len, texts)) > characters else texts})


def templates_module() -> Any:
    """Return the module of transformers that fills templates, without the rest of the package: a tenth of its import."""
    package = find_spec("transformers")
    if package is not None and package.origin is not None:
        folder = Path(package.origin).parent
        stand_ins = {"transformers": folder, "transformers.utils": folder / "utils"}
        try:
            for name, path in stand_ins.items():
                sys.modules[name] = ModuleType(name)
                sys.modules[name].__path__ = [str(path)]
            return import_module(MODULE)
        except Exception:  # this version needs more of the package
            for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
                del sys.modules[name]
    return import_module(MODULE)


def limit_memory(count: int) -> bool:
    """Let this process take `count` bytes more than now; return whether the system holds it to that."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + count,) * 2)
    except (ImportError, OSError, ValueError):
        return False
    try:
        bytes(count)
    except MemoryError:
        return True
    return False


if __name__ == "__main__":
    main()
