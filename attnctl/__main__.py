"""The program: `attnctl`, or `python -m attnctl`."""

import os
import signal
import threading


def _leave_quietly(*_: object) -> None:
    """Ctrl-C while the program is still being read: there is nothing to clean up, and no line of Python to show."""
    os.write(2, b"attnctl: interrupted\n")
    os._exit(130)


STARTING = threading.current_thread() is threading.main_thread() and (
    signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if STARTING:
    signal.signal(signal.SIGINT, _leave_quietly)

from functools import partial  # noqa: E402

from attnctl.cli import run_program  # noqa: E402

main = partial(run_program, STARTING)

if __name__ == "__main__":
    main()
