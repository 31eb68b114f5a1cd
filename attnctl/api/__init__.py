"""Functions for Python alone, without a command: capture, intervene, spans, AttentionLog."""
