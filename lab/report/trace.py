"""The predicted timeline of a step as a trace that https://ui.perfetto.dev opens, in Chrome's format: times in
microseconds."""

from __future__ import annotations

import json

from lab.measure.prediction import Prediction

TRACKS = ("kernels", "wires", "copies", "loop")


def trace_text(found: Prediction) -> str:
    names = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"{found.source} on {found.target}, predicted"}}
    ]
    tracks = [
        {"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": track}}
        for number, track in enumerate(TRACKS)
    ]
    events = [
        {
            "ph": "X",
            "pid": 1,
            "tid": TRACKS.index(event.track),
            "name": event.name,
            "ts": event.start * 1e6,
            "dur": (event.end - event.start) * 1e6,
        }
        for event in found.events
    ]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": [*names, *tracks, *events]})
