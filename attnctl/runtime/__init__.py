"""The machine: files, arrays and devices, interrupts, imports."""

from __future__ import annotations

import os


def core_count() -> int:
    """Return how many cores this process may use: those that it is bound to, where the system can say it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
