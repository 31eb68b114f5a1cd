"""No module leads back to itself; `.importlinter` holds who may import whom."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_no_module_leads_back_to_itself() -> None:
    """Imports inside functions and those for type checkers count."""
    graph = grimp.build_graph("attnctl", cache_dir=None)
    # the public names of the package are looked up when they are used
    imports = {name: graph.find_modules_directly_imported_by(name) - {"attnctl"} for name in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError with the modules of a circle
