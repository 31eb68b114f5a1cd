"""Measure how a prediction changes while heads are ablated and edges are cut."""
