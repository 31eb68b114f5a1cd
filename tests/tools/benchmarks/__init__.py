"""What attnctl is promised to be, in time and memory, against named peers: `python -m tests.tools.benchmarks [NAME …] [--quick]`.

A benchmark is a generator of rows in a `bench_*.py` file. The runner starts each in a process of its own, with one thread,
and prints one table. Ratios are taken within one run, ours and the peer's in turn. Nothing is asserted.
"""
