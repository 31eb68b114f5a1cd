"""What the tests of evaluate share with those of pages: a real browser."""

from tests.render.page.conftest import browser, tab

__all__ = ["browser", "tab"]
