"""Forms of compiled text that a reader has to know, as patterns; each stands in a kept text.

Of jax 0.10.2 alone. What another version writes otherwise stands in `tests/lab/hlo/test_read.py`, by hand: the tuples
of 0.11's starts, `replica_groups={}`, and asynchronous computations wrapped in `async-start`.
"""

import re

_GROUPS = "replica_groups="
_SEVERAL = r"= \([^=]*\) "
FORMS = {
    "groups as axes of a mesh": _GROUPS + r"mesh\[",
    "groups as axes of a mesh of reordered devices": _GROUPS + r"mesh\[[^\]]*\], device_ids=",
    "groups as part of an axis": _GROUPS + r"mesh\[[^{]*\{'axis_\d+':\(\d+\)\d+\}",
    "groups as two axes": _GROUPS + r"mesh\[[^{]*\{'axis_\d+','axis_\d+'\}",
    "groups as iota": _GROUPS + r"\[[\d,]+\]<=\[\d+\]",
    "groups as transposed iota": _GROUPS + r"\[[\d,]+\]<=\[[\d,]+\]T\(",
    "groups as a list": _GROUPS + r"\{\{\d+,",
    "groups of one device": _GROUPS + r"\{\{\d+\}",
    "pairs of source and target": r"source_target_pairs=\{\{",
    "several operands of an all-reduce": _SEVERAL + r"all-reduce\(",
    "arrays concatenated for one all-reduce-start": r" all-reduce-start\(%wrapped_concatenate",
    "several operands of an all-gather-start": r"= \(\([^=]*, [^=]*\), \([^=]*\)\) all-gather-start\(",
    "several operands of a reduce-scatter-start": r"= \(\([^=]*, [^=]*\), \([^=]*\)\) reduce-scatter-start\(",
    "all-to-all of a tuple": _SEVERAL + r"all-to-all\(",
    "all-to-all of an array": r"= \w+\[[^=]* all-to-all\(",
    "all-gather-start": r" all-gather-start\(",
    "all-reduce-start": r" all-reduce-start\(",
    "reduce-scatter": r" reduce-scatter\(",
    "reduce-scatter-start": r" reduce-scatter-start\(",
    "all-to-all-start": r" all-to-all-start\(",
    "collective-permute-start": r" collective-permute-start\(",
    "collective-permute-start with contexts": r"u32\[\]\S*\) collective-permute-start\(",
    "collective-broadcast-start": r" collective-broadcast-start\(",
    "ragged-all-to-all": r" ragged-all-to-all\(",
    "ragged-all-to-all-start": r" ragged-all-to-all-start\(",
    "fusion that reduces and scatters": r"kind=kCustom, calls=%all-reduce-scatter",
    "asynchronous fusion, printed several times": r'custom_call_target="AsyncCollectiveStart"',
    "call that starts on a sparse core": r" call-start\(",
    "messages between slices": r"_xla_megascale_transfer_type",
    "messages in place of permutes": r"_xla_send_recv_source_target_pairs",
    "loop with a trip count": r" while\(.*known_trip_count",
    "loop without a trip count": r" while\((?!.*known_trip_count)",
    "loop of a windowed einsum": r"windowed_dot_general_body",
    "conditional": r" conditional\(",
    "reduction that the compiler promoted": r"to_apply=%\S*_promoted",
    "numbered elements of a tuple": r"/\*index=5\*/",
    "numbers of 4 bits": r"\bs4\[",
    "tables of source lines": r"^StackFrames$",
    "Pallas kernel": r'custom_call_target="tpu_custom_call"',
    "callback to Python": r'custom_call_target="xla_ffi_(?:partitioned_)?python_',
    "misleading names": r'op_name="[^"]*all-reduce\(fake\)',
}


def forms_in(text: str) -> list[str]:
    return [name for name, pattern in FORMS.items() if re.search(pattern, text, re.M)]
