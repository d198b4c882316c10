"""Trainings as tables: one line for each layout and style."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lab.report.fitted import Column
from lab.report.tables import columns_text
from lab.report.verdicts import claim_text, unsettled

if TYPE_CHECKING:
    from lab.harness.decoder.training import Curve, TrainingResult


def trained_text(trained: Sequence[TrainingResult]) -> str:
    """Each training in full."""
    return "\n\n\n".join(map(training_text, trained))


def training_text(trained: TrainingResult) -> str:
    """The verdict, each curve, what failed, how the loss fell, and what the curves decide."""
    parameters = ", ".join(f"{name} {value}" for name, value in vars(trained.parameters).items())
    head = f"{trained.verdict}: {trained.training.name}, {trained.target}\n{parameters}"
    return "\n\n".join(
        (
            head,
            columns_text(curve_columns(trained.curves)),
            "\n".join([*words(trained), *map(claim_text, trained.claims)]),
        )
    )


def words(trained: TrainingResult) -> list[str]:
    """What failed or was left out, where choices of experts tied, and how the loss fell."""
    return [
        *(f"failed: {failure}" for failure in trained.failures),
        *_left_out(trained),
        *_unsettled(trained.curves),
        *_ties(trained.curves),
        *_fall(trained),
    ]


def curve_columns(curves: Sequence[Curve]) -> list[Column]:
    return [
        Column("ledger", tuple(str(curve.verdict) for curve in curves)),
        Column("layout", tuple(curve.layout for curve in curves)),
        Column("style", tuple(curve.style for curve in curves)),
        Column("mesh", tuple(",".join(f"{name}={size}" for name, size in curve.mesh.items()) for curve in curves)),
        Column(
            "last loss",
            tuple(f"{curve.losses[-1]:.6f}" if curve.losses.size else "" for curve in curves),
            is_number=True,
        ),
        Column("worst relative\nerror", tuple(f"{curve.worst_relative_error:.1e}" for curve in curves), is_number=True),
        Column("compile\n[s]", tuple(f"{curve.seconds.get('compile', 0):.1f}" for curve in curves), is_number=True),
        Column("steps\n[s]", tuple(f"{curve.seconds.get('steps', 0):.1f}" for curve in curves), is_number=True),
    ]


def _left_out(trained: TrainingResult) -> list[str]:
    names = trained.left_out
    return [f"left out, since they have none of the styles: {', '.join(names)}"] * bool(names)


def _unsettled(curves: Sequence[Curve]) -> list[str]:
    return [
        f"{curve.layout} {curve.style}: {trouble}"
        for curve in curves
        if curve.settlement
        for trouble in unsettled(curve.settlement)
    ]


def _ties(curves: Sequence[Curve]) -> list[str]:
    return [
        f"{curve.layout} {curve.style}: {' and '.join(map(str, curve.ties))}; compared with one device that made these "
        "choices"
        for curve in curves
        if curve.ties
    ]


def _fall(trained: TrainingResult) -> list[str]:
    reference, steps = trained.reference, trained.parameters.steps
    return [
        f"one device: the loss is {trained.start:.3f} at first and {trained.end:.3f} over the last tenth of {steps} "
        "steps; "
        f"predicting each byte by its frequency alone would give {trained.guessing:.3f}",
        f"{reference.noise} move that curve by {reference.moved[0]:.1e} at the first step and by "
        f"{reference.moved.max():.1e} at most; "
        f"tolerance {reference.tolerances[0]:.1e} at first and {reference.tolerance:.1e} at the end",
    ]
