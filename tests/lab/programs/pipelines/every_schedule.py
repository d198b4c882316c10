"""Random schedules of every kind, small enough to run in a millisecond."""

from hypothesis import strategies as st

from lab.programs.pipelines.orders import (
    dual_pipe,
    gpipe,
    interleaved,
    one_f_one_b,
    zb_h1,
    zb_h2,
)

STAGES, MICRO_BATCHES = st.integers(1, 6), st.integers(1, 12)
PLAIN = (gpipe, one_f_one_b, zb_h1, zb_h2)
plain = st.builds(lambda generator, *sizes: generator(*sizes), st.sampled_from(PLAIN), STAGES, MICRO_BATCHES)
in_chunks = st.builds(
    lambda stages, groups, chunks: interleaved(stages, stages * groups, chunks),
    STAGES,
    st.integers(1, 3),
    st.integers(2, 3),
)
two_way = st.builds(
    lambda pairs, more: dual_pipe(2 * pairs, 4 * pairs + 2 * more), st.integers(1, 3), st.integers(0, 3)
)
every = st.one_of(plain, in_chunks, two_way)
