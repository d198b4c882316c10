"""`lab inspect`."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from lab import diagnosis
from lab.cli import options
from lab.cli.output import print_json, print_text
from lab.cli.programs import CompilerEnded, Script, programs
from lab.cli.progress import stages
from lab.cli.refusals import UNUSABLE, refuse
from lab.cli.studies import Study, studied
from lab.compile import sources
from lab.compile.other_process import Call, Stage, other_process
from lab.compile.saved import saved_as
from lab.compile.script import is_script
from lab.core.files import write_whole
from lab.diagnosis.proof import Measured, proven
from lab.diagnosis.remedy import NotApplicable, Remedy
from lab.meshes.axes import TypedAxes
from lab.meshes.errors import UsageError
from lab.meshes.targets import Target
from lab.report.diagnosis import diagnosis_text
from lab.report.seconds import time_lines

MOST_STEPS = 10**9
"""Of a round: no training takes more."""


@click.command(cls=options.OfScripts)
@click.argument("given", metavar="SOURCE...", nargs=-1, required=True, type=click.Path())
@options.typed_mesh
@options.target(f"What to compile for: {options.TARGET_FORMS}. By default fake CPU devices, as many as the mesh has.")
@click.option(
    "--fail-on",
    "kinds",
    metavar="KIND",
    multiple=True,
    type=options.KIND,
    help="Exit with status 1 if there is a finding of this kind, be it a remark; any: of any kind, remarks left out. "
    "With status 2 if there is none, and not all of the program could be read.",
)
@click.option(
    "--round",
    "round_steps",
    metavar="STEPS",
    type=click.IntRange(1, MOST_STEPS),
    help="Count a round of so many steps, in one of which transfers in branches run, such as the outer step of DiLoCo "
    "in a lax.cond. A program without transfers in branches is such a round already.",
)
@options.functions
@options.calls
@options.prove
@options.html
@options.as_json
@click.pass_context
def inspect(
    context: click.Context,
    given: tuple[str, ...],
    mesh: TypedAxes | None,
    target: Target | None,
    kinds: tuple[str, ...],
    round_steps: int | None,
    functions: tuple[str, ...],
    calls: int,
    prove: bool,
    html: Path | None,
    as_json: bool,
) -> int:
    """Diagnose a compiled program and list its communication.

    The worst finding stands first; lab explain KIND says what a finding means.

    SOURCE is a compiled text (.hlo, .txt, .gz), the folder of an XLA dump, or file.py:build or package.module:build,
    where build(mesh) returns (function, args) with args as arrays or ShapeDtypeStructs with shardings, or what
    jax.export or jax.experimental.serialize_executable saved.

    A script, such as train.py, is followed as it is: it finds the devices of --target, its arrays have no values, and
    the functions that it calls on several devices are compiled and not run. What comes after -- are its arguments.
    """
    script = Script(context.meta[options.ARGUMENTS], functions, calls)
    if any(map(_is_built, given)):
        # So that XLA says where it finds no way between two shardings; what it says is caught.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    found: list[tuple[str, int, Study]] = []
    refusals = []
    with stages() as stage:
        with other_process(stage) as call:
            for source in given:
                try:
                    those = _diagnosed(source, mesh, target, stage, call, script, prove)
                    found += [(source, which, each) for which, each in enumerate(those)]
                except UsageError as refusal:
                    if len(given) == 1 or not _is_built(source):
                        raise
                    refusals.append(refusal)  # The other programs may do.
        studies = [
            replace(each, diagnosis=_tried(source, which, each.diagnosis, mesh, target, stage, script))
            for source, which, each in found
        ]
    for each in refusals:
        refuse(each)
    if not studies:
        return UNUSABLE
    if round_steps:
        studies = [_of_round(each, round_steps) for each in studies]
    diagnoses = [each.diagnosis for each in studies]
    if html:
        from lab.report.html import reports

        write_whole(html, reports.inspection(diagnoses, [each.time for each in studies]))
    if as_json:
        print_json(studies if len(studies) + len(refusals) > 1 else studies[0])
    else:
        print_text("\n\n".join("\n".join([diagnosis_text(each.diagnosis), *time_lines(each.time)]) for each in studies))
    if refusals:
        return UNUSABLE
    findings = [finding for each in diagnoses for finding in each.findings]
    if any(finding.kind in kinds or ("any" in kinds and not finding.is_remark) for finding in findings):
        return 1
    partly = [each.ledger.source for each in diagnoses if not each.ledger.is_complete]
    if kinds and partly:
        raise UsageError(f"{partly[0]} could not be read whole (see its notes), so that --fail-on cannot pass it")
    unseen = [each for each in diagnoses if each.unknown_axes]
    if kinds and unseen:
        raise UsageError(
            f"{unseen[0].ledger.source}: {unseen[0].unknown_axes}; without it --fail-on cannot pass a program"
        )
    return 0


def _diagnosed(
    source: str,
    mesh: TypedAxes | None,
    target: Target | None,
    stage: Stage,
    call: Call,
    script: Script,
    prove: bool,
) -> list[Study]:
    try:
        return programs(source, mesh, target, stage, call, partial(studied, prove=prove), script)
    except CompilerEnded:
        if not prove:
            raise
        # It may be a change that XLA aborts at.
        of = partial(studied, why_not="the process ended while it compiled the program or a change of it")
        return programs(source, mesh, target, stage, call, of, script)


def _tried(
    source: str,
    which: int,
    found: diagnosis.Diagnosis,
    mesh: TypedAxes | None,
    target: Target | None,
    stage: Stage,
    script: Script,
) -> diagnosis.Diagnosis:
    """With the remedies tried that the process which compiled the program was too busy for."""
    if found.trial is None:
        return found

    def attempt(remedy: Remedy) -> Measured:
        with other_process(stage) as alone:
            try:
                return programs(source, mesh, target, stage, alone, Measured.of, script, remedy, which)[0]
            except UsageError as refusal:
                raise NotApplicable(str(refusal)) from None

    return replace(found, findings=proven(found.findings, found.trial, attempt), trial=None)


def _of_round(study: Study, steps: int) -> Study:
    """With the ledger of so many steps; how long a step takes in which all branches run says nothing of a round."""
    ledger = study.diagnosis.ledger
    in_branches = any(t.conditional for t in ledger.transfers)
    return Study(replace(study.diagnosis, ledger=ledger.of_round(steps)), None if in_branches else study.time)


def _is_built(source: str) -> bool:
    return sources.is_program(source) or is_script(source) or saved_as(source) is not None
