"""Lines of source code as people read them: `model.py:88` for `/home/me/project/src/model.py:88`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

from lab.core.frame import Frame, Stack
from lab.core.ledger import Ledger
from lab.core.note import Note, note_kinds
from lab.diagnosis import Diagnosis, Finding

_INSTALLED = re.compile(r"(?<!\S)/\S*/(?:site|dist)-packages/")


def common_folder(*ledgers: Ledger, findings: Iterable[Finding] = ()) -> str:
    """The deepest folder that holds the files of all lines outside installed packages, with a slash at its end; ""
    where there is none, or where some path is relative already."""
    origins = {t.origin for ledger in ledgers for t in ledger.transfers} | {finding.origin for finding in findings}
    lines = {line for origin in origins if origin for line in origin.split(" via ") if not line.startswith("line ")}
    own = {line.rpartition("/")[0] for line in lines if not _INSTALLED.match(line)}
    if not own or not all(folder.startswith("/") for folder in own):
        return ""
    common = os.path.commonpath(own)
    return "" if common == "/" else f"{common}/"


def short_ledger(ledger: Ledger, folder: str) -> Ledger:
    """With lines relative to `folder`, in its notes as well."""
    short = {origin: origin and shortened(origin, folder) for origin in {t.origin for t in ledger.transfers}}
    stacks = {id(t.stack): t.stack for t in ledger.transfers}
    short_stacks = {key: _short_stack(stack, folder) for key, stack in stacks.items()}
    transfers = tuple(
        t
        if short[t.origin] == t.origin and short_stacks[id(t.stack)] == t.stack
        else replace(t, origin=short[t.origin], stack=short_stacks[id(t.stack)])
        for t in ledger.transfers
    )
    kinds = note_kinds(ledger.notes)
    notes = tuple(Note(kind, shortened(note, folder)) for kind, note in zip(kinds, ledger.notes, strict=True))
    return replace(ledger, transfers=transfers, notes=notes)


def short_diagnosis(diagnosis: Diagnosis, folder: str) -> Diagnosis:
    findings = tuple(
        replace(
            finding,
            origin=finding.origin and shortened(finding.origin, folder),
            stack=_short_stack(finding.stack, folder),
            edit=finding.edit and replace(finding.edit, line=shortened(finding.edit.line or "", folder) or None),
        )
        for finding in diagnosis.findings
    )
    at_peak = tuple(replace(each, origin=each.origin and shortened(each.origin, folder)) for each in diagnosis.at_peak)
    return replace(diagnosis, ledger=short_ledger(diagnosis.ledger, folder), findings=findings, at_peak=at_peak)


def frame_text(frame: Frame) -> str:
    """`attentions.py:839 Attention.out_projection`."""
    return " ".join(filter(None, (frame.place, frame.name, "(library)" * frame.is_library)))


def stack_lines(stack: Stack) -> list[str]:
    """A line a frame, innermost first; frames alike one after the other, as calls within one line are, are one."""
    return [line for line, _ in groupby(map(frame_text, stack))]


def folder_lines(folder: str) -> list[str]:
    """What a reader must know of the paths, if anything."""
    return [f"paths are relative to {folder}"] if folder else []


def shortened(text: str, folder: str) -> str:
    """A line, or a sentence with one in it; files of installed packages are relative to where these are installed."""
    text = _INSTALLED.sub("", text)
    return re.sub(rf"(?<!\S){re.escape(folder)}", "", text) if folder else text


def _short_stack(stack: Stack, folder: str) -> Stack:
    return tuple(replace(frame, file=shortened(frame.file, folder)) for frame in stack)
