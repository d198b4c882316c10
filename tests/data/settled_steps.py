"""Steps whose compiled text is kept with the configuration that theory predicts them from: `hlo` of jax 0.10.2, as
`lab run EXPERIMENT --style STYLE --target TARGET --set ...` compiles it."""

import json
import lzma
from dataclasses import dataclass
from functools import cache

from lab.core.ledger import Ledger
from lab.harness.registry import load
from lab.harness.settings import with_settings
from lab.hlo import read_text
from lab.meshes.targets import parse_target
from lab.settle import Context
from tests.paths import ROOT

FOLDER = ROOT / "tests/data/settled"
INDEX = json.loads((FOLDER / "index.json").read_text())


@dataclass(frozen=True)
class Step:
    predicted: Ledger
    measured: Ledger
    context: Context


@cache
def step(name: str) -> Step:
    entry = INDEX[name]
    experiment, target = load(entry["experiment"]), parse_target(entry["target"])
    axes = experiment.axes(target)
    text = lzma.decompress((FOLDER / f"{name}.hlo.xz").read_bytes()).decode()
    is_typed = entry["style"] == "typed"
    return Step(
        experiment.predict(with_settings(experiment.parameters, entry["settings"]), axes),
        read_text(text, source=name, axes=axes, target=target),
        # The rules of the release that compiled it, whatever is installed here.
        Context(
            target.platform,
            "declared" if is_typed else entry["style"],
            axes.shape,
            jax=(0, 10),
            is_typed=is_typed,
            target=target if target.chip else None,
        ),
    )
