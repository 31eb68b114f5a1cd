"""Each test stands in an empty folder of its own."""

from tests.cli.conftest import _here as _here
