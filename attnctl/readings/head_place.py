"""The layer and the head that a result names."""

from __future__ import annotations

from attnctl.checks.document_fields import Index, Part


class HeadPlace(Part):
    """A layer and a head, by their numbers."""

    layer: Index
    head: Index
