"""Fixtures of checkpoints, for the tests of this command; each test stands in an empty folder of its own."""

from tests.cli.conftest import _here
from tests.models.huggingface.conftest import collect_ignore_glob, quiet, shelf

__all__ = ["_here", "collect_ignore_glob", "quiet", "shelf"]
