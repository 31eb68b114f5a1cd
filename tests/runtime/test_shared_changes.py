"""A change of the whole process: begun once, undone by the last holder, and undone at once where it fails."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from attnctl.runtime.shared_changes import is_held, shared_change


def test_the_last_holder_undoes_the_change() -> None:
    events = list[str]()

    def begin(stack: ExitStack) -> None:
        events.append("begun")
        stack.callback(events.append, "undone")

    with shared_change("bell", begin):
        with shared_change("bell", begin):
            assert events == ["begun"] and is_held("bell")
        assert events == ["begun"]
    assert events == ["begun", "undone"] and not is_held("bell")


def test_a_change_that_fails_half_way_is_undone() -> None:
    events = list[str]()

    def fail(stack: ExitStack) -> None:
        stack.callback(events.append, "undone")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), shared_change("bell", fail):
        pass
    assert events == ["undone"] and not is_held("bell")
