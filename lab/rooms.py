"""The rooms of this package, in the one order in which they may import: a room imports from those above it, never from
those below.

Lazy imports and those for types alone count. `python -m tests.rooms` prints what breaks the order; a test finds
nothing.
"""

ROOMS = (
    "lab.meshes",
    "lab.core",
    "lab.book",
    "lab.zoo",
    "lab.hlo",
    "lab.collectives",
    "lab.redistribution",
    "lab.attention",
    "lab.programs",
    "lab.programs.transforms",
    # Of `lab.programs` it may know the sizes alone: what judges a step shares nothing with it.
    "lab.reference",
    "lab.settle",
    "lab.diagnosis",
    "lab.compile",
    "lab.harness",
    "lab.measure",
    "lab.laws",
    "lab.resilience",
    "lab.guard",
    "lab.frontier",
    "lab.report",
    "lab.cli",
    # Commands under the names that they had before: `python -m NAME`.
    "lab.redistribution.table",
    "lab.tour",
    "lab.__main__",
    "lab",
    "lab.experiments",
)
"""The longest name that a module's begins with says which room it is in."""
