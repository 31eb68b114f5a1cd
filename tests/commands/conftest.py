"""What the tests of commands share: all that those of the command line and of checkpoints do."""

from tests.cli.conftest import _here, config_file
from tests.models.huggingface.conftest import family, no_gradients, quiet, shelf

__all__ = ["_here", "config_file", "family", "no_gradients", "quiet", "shelf"]
