"""python -m tools.import_circles PACKAGE: lists circles of imports between modules; exit 1 when there is one.

Imports inside functions and under TYPE_CHECKING count.
"""

import sys

import grimp


def circles(package: str) -> list[tuple[str, ...]]:
    """The shortest circle through each import that is part of one: modules in order, the first one again at the end."""
    graph = grimp.build_graph(package, cache_dir=None)
    found: dict[frozenset[str], tuple[str, ...]] = {}
    for module in sorted(graph.modules):
        for imported in sorted(graph.find_modules_directly_imported_by(module)):
            way_back = graph.find_shortest_chain(imported, module)
            if way_back:
                found.setdefault(frozenset(way_back), (module, *way_back))
    return list(found.values())


def main(package: str) -> int:
    """Print the circles; the exit code."""
    found = circles(package)
    for circle in found:
        print(" → ".join(circle))
    print(f"import circles: {len(found) or 'none'}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
