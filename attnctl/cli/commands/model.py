"""`attnctl model`: how large a model's attention is, from its configuration alone; the card of a trained one."""

from __future__ import annotations

from json import dumps

from attnctl.cli.arguments import check_mode
from attnctl.cli.output import print_lines, put_json, show_renderable
from attnctl.models.builtin.weights import read_weights, trained_file
from attnctl.models.huggingface.configured_sizes import known_configurations, model_sizes
from attnctl.render.terminal.console import Shown
from attnctl.render.told.models import card_forms, sizes_forms


def model_command(*, name: str | None, length: int | None, json: bool) -> None:
    """Say how large a model's attention is: heads, parameters, the n × n, the cache. No weights are read."""
    if name is None:
        check_mode("model", "the list of models")
        width = max(map(len, known_configurations()))
        print_lines(*(f"{key:{width}}  {entry['title']}" for key, entry in known_configurations().items()))
    elif (path := trained_file(name)) is not None:
        check_mode("model", "a trained model's card")
        file = read_weights(path)
        if json:
            put_json(file.card_document(name), schema="card")
            return
        show_renderable(Shown(card_forms(name, file.metadata, file.shapes, path.stat().st_size)), soft_wrap=True)
    else:
        found = model_sizes(name)
        n = length or found.context or 1024
        if json:
            print_lines(dumps(found.sizes_document(n)))  # numbers beyond 64 bits, too
            return
        show_renderable(Shown(sizes_forms(found, n)))
