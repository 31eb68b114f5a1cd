"""The program: `attnctl`, or `python -m attnctl`."""

import os
import signal
import threading


def _leave_quietly(*_: object) -> None:
    """End at once on Ctrl-C while the program is still being imported: there is nothing to clean up."""
    os.write(2, b"attnctl: interrupted\n")
    os._exit(130)


STARTING = threading.current_thread() is threading.main_thread() and (
    signal.getsignal(signal.SIGINT) is signal.default_int_handler
)
if STARTING:
    signal.signal(signal.SIGINT, _leave_quietly)

import gc  # noqa: E402

from attnctl.cli.app import run_command_line  # noqa: E402
from attnctl.errors import FAILED, INTERRUPTED  # noqa: E402
from attnctl.runtime import interrupts, light_import  # noqa: E402

CALM = 20_000  # objects between two garbage collections: with Python's 700 they take a tenth of a start without garbage


def main() -> None:
    """Run attnctl in a process of its own. Raises SystemExit with its code."""
    light_import.alone = True
    os.environ.pop("MPLBACKEND", None)  # set by a notebook: no window opens here, and a wrong name is an error
    if not {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"} & os.environ.keys():
        # NumPy's products are small here: a second thread of theirs gains nothing, and spins on a core that torch needs
        os.environ["OPENBLAS_NUM_THREADS"] = "1"
    gc.set_threshold(CALM)
    try:
        if STARTING:  # otherwise another program handles Ctrl-C
            interrupts.watch_interrupts()
        run_command_line()
    except KeyboardInterrupt:  # before the first command, or after the last
        os.write(2, b"attnctl: interrupted\n")
        os._exit(INTERRUPTED)
    except SystemExit as end:
        gc.freeze()  # at its end Python collects garbage: with a network in memory it takes a third of a second to find none
        if STARTING:
            code = end.code if isinstance(end.code, int) else FAILED
            # everything is done and printed: an interrupt while Python ends changes nothing
            signal.signal(signal.SIGINT, lambda *_: os._exit(code))
        raise


if __name__ == "__main__":
    main()
