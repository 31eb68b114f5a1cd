"""Where a head stands, as results name it."""

from __future__ import annotations

from attnctl.document_fields import Index, Part


class HeadPlace(Part):
    """Where a head stands."""

    layer: Index
    head: Index
