"""Build and run networks of our own: their vocabularies, their parameters, the mathematics of a layer, and their files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnctl.public import public_names

if TYPE_CHECKING:
    from attnctl.models.builtin.network import Parameters as Parameters
    from attnctl.models.builtin.network import layers_of as layers_of
    from attnctl.models.builtin.network import random_parameters as random_parameters
    from attnctl.models.builtin.network import sentence_rows as sentence_rows
    from attnctl.models.builtin.stack import mix_heads as mix_heads
    from attnctl.models.builtin.stack import project_rows as project_rows
    from attnctl.models.builtin.stack import row_angles as row_angles
    from attnctl.models.builtin.stack import unembed_rows as unembed_rows
    from attnctl.models.builtin.vocabulary import SHAPES as SHAPES
    from attnctl.models.builtin.vocabulary import ids_of_words as ids_of_words
    from attnctl.models.builtin.vocabulary import letter_pieces as letter_pieces
    from attnctl.models.builtin.vocabulary import shape_of as shape_of
    from attnctl.models.builtin.vocabulary import vocabulary_tokenizer as vocabulary_tokenizer
    from attnctl.models.builtin.weights import reports_of as reports_of
else:
    __getattr__, __dir__, __all__ = public_names(
        __name__,
        {
            "attnctl.models.builtin.network": "Parameters layers_of random_parameters sentence_rows",
            "attnctl.models.builtin.stack": "mix_heads project_rows row_angles unembed_rows",
            "attnctl.models.builtin.vocabulary": "SHAPES ids_of_words letter_pieces shape_of vocabulary_tokenizer",
            "attnctl.models.builtin.weights": "reports_of",
        },
    )
