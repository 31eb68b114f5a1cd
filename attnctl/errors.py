"""The errors a user can meet, and the exit codes they end with."""

DONE, FAILED, USAGE, PARTIAL, INTERRUPTED = 0, 1, 2, 3, 130


class AttnctlError(Exception):
    """Something that the user can understand and mend: one line that says what, where, and what to do about it."""

    exit_code = FAILED


class UsageError(AttnctlError):
    """The command line asks for something that cannot be: a head that is not there, options that exclude each other."""

    exit_code = USAGE


def in_one_line(error: BaseException, most: int = 200) -> str:
    """What an error of another library says, on one line of `most` characters."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else text[: most - 1] + "…"
