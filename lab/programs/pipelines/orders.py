"""The schedules of the literature, a generator each (Ch. 16, Ch. 31a); P stages, m micro-batches, v chunks a stage, s
the stage."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, repeat

from lab.meshes.errors import UsageError, no_such
from lab.programs.pipelines.schedule import Schedule, Task, Work

MOST_VISITS = 1 << 16
"""Of stages by micro-batches, once for each chunk: what is simulated in seconds."""


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards, the last micro-batch first. Source: Huang et al. 2019; Ch. 16."""
    _check_size("gpipe", stages, micro_batches)
    order = (*_all(Work.FORWARD, micro_batches), *reversed(_all(Work.BACKWARD, micro_batches)))
    return Schedule("gpipe", stages, micro_batches, 1, (order,) * stages)


def one_f_one_b(stages: int, micro_batches: int) -> Schedule:
    """P - s - 1 forwards, then one forward and one backward in turn. Source: PipeDream-Flush, Narayanan et al. 2021;
    Ch. 16."""
    return _split("1f1b", stages, micro_batches, range(stages - 1, -1, -1), repeat(None, stages))


def eager_1f1b(stages: int, micro_batches: int) -> Schedule:
    """2 (P - s - 1) forwards first, then one forward and one backward in turn: a stage has work for every tick of a
    pipeline in lockstep. Source: Zhuang et al. 2022 (arXiv:2211.05322)."""
    return _split("eager_1f1b", stages, micro_batches, range(2 * stages - 2, -1, -2), repeat(None, stages))


def zb_h1(stages: int, micro_batches: int) -> Schedule:
    """1F1B whose weight gradients come s micro-batches after their backward. Source: Qi et al. 2023; Ch. 16."""
    return _split("zb_h1", stages, micro_batches, range(stages - 1, -1, -1), range(stages))


def zb_h2(stages: int, micro_batches: int) -> Schedule:
    """2 (P - s - 1) forwards first, and weight gradients 2 s micro-batches late. Source: Qi et al. 2023; Ch. 16."""
    return _split("zb_h2", stages, micro_batches, range(2 * stages - 2, -1, -2), range(0, 2 * stages, 2))


def interleaved(stages: int, micro_batches: int, chunks: int) -> Schedule:
    """1F1B over chunks: groups of P micro-batches pass chunk after chunk, and 2 (P - s - 1) + (v - 1) P forwards come
    first.

    Raises:
      UsageError: P does not divide m, or there is one chunk.
    Source: Narayanan et al. 2021; Ch. 16.
    """
    if chunks < 2 or micro_batches % stages:
        found = f"{micro_batches} micro-batches and {chunks} chunks on {stages} stages"
        raise UsageError(
            f"interleaved: {found}; expected a multiple of {stages} micro-batches and 2 chunks or more; change them, "
            "or use 1f1b"
        )
    _check_size("interleaved", stages, micro_batches, chunks)
    groups = [range(first, first + stages) for first in range(0, micro_batches, stages)]
    forwards = [Task(Work.FORWARD, i, chunk) for group in groups for chunk in range(chunks) for i in group]
    backwards = [Task(Work.BACKWARD, i, chunk) for group in groups for chunk in reversed(range(chunks)) for i in group]
    orders = (tuple(_woven(forwards, backwards, 2 * (stages - s - 1) + (chunks - 1) * stages)) for s in range(stages))
    return Schedule("interleaved", stages, micro_batches, chunks, tuple(orders))


def dual_pipe(stages: int, micro_batches: int) -> Schedule:
    """Two pipelines in opposite directions, half of the micro-batches each; a forward of one and a backward of the
    other overlap.

    Raises:
      UsageError: P or m is odd, or m is below 2 P.
    Source: DeepSeek-V3 report, section 3.2.1 and its published code; Ch. 31a.
    """
    if stages % 2 or micro_batches % 2 or micro_batches < 2 * stages:
        found = f"{micro_batches} micro-batches on {stages} stages"
        raise UsageError(f"dual_pipe: {found}; expected even numbers of both and at least {2 * stages} micro-batches")
    _check_size("dual_pipe", stages, micro_batches)
    orders = (_dual_pipe_order(stages, micro_batches, stage) for stage in range(stages))
    return Schedule("dual_pipe", stages, micro_batches, 2, tuple(orders), is_two_way=True)


PLAIN = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "eager_1f1b": eager_1f1b,
    "zb_h1": zb_h1,
    "zb_h2": zb_h2,
    "dual_pipe": dual_pipe,
}
"""By name, what needs no number of chunks."""


def named(name: str, stages: int, micro_batches: int, chunks: int = 2) -> Schedule:
    """The schedule of a name; `chunks` counts for `interleaved` alone.

    Raises:
      UsageError: no such schedule, or one that these sizes do not allow.
    """
    for what, size in (("stages", stages), ("micro_batches", micro_batches), ("chunks", chunks)):
        if size < 1:
            raise UsageError(f"{name}: {what}={size}; expected 1 or more")
    if name == "interleaved":
        return interleaved(stages, micro_batches, chunks)
    if name not in PLAIN:
        raise no_such("schedule", name, [*PLAIN, "interleaved"])
    return PLAIN[name](stages, micro_batches)


def _check_size(name: str, stages: int, micro_batches: int, chunks: int = 1) -> None:
    """Raises UsageError for a schedule that is too large to be simulated in seconds."""
    if (visits := stages * micro_batches * chunks) > MOST_VISITS:
        found = f"stages={stages}, micro_batches={micro_batches}, chunks={chunks}"
        raise UsageError(
            f"{name}: {found}: {visits:,} visits of micro-batches to stages; expected {MOST_VISITS:,} at most, so "
            "that the simulation takes seconds"
        )


def _all(work: Work, micro_batches: int) -> tuple[Task, ...]:
    return tuple(Task(work, i) for i in range(micro_batches))


def _split(name: str, stages: int, micro_batches: int, warm_ups: Iterable[int], lags: Iterable[int | None]) -> Schedule:
    """One chunk a stage."""
    _check_size(name, stages, micro_batches)
    forwards, backwards = _all(Work.FORWARD, micro_batches), _all(Work.BACKWARD, micro_batches)
    orders = tuple(tuple(_woven(forwards, backwards, *way)) for way in zip(warm_ups, lags, strict=True))
    return Schedule(name, stages, micro_batches, 1, orders)


def _woven(forwards: Sequence[Task], backwards: Sequence[Task], warm_up: int, lag: int | None = None) -> Iterator[Task]:
    """`warm_up` forwards; forward and backward in turn; what remains. With a lag, each backward is followed by the
    weight gradient of `lag` backwards ago."""
    yield from forwards[:warm_up]
    for turn, backward in enumerate(backwards):
        yield from forwards[warm_up + turn : warm_up + turn + 1]
        yield backward
        if lag is not None and turn >= lag:
            yield _weight(backwards[turn - lag])
    if lag is not None:
        yield from map(_weight, backwards[max(0, len(backwards) - lag) :])


def _weight(backward: Task) -> Task:
    return Task(Work.WEIGHT, backward.micro_batch, backward.chunk)


def _dual_pipe_order(stages: int, micro_batches: int, stage: int) -> tuple[Task, ...]:
    """Letters are numbered as they come. 0 is the direction whose start is nearer, 1 the other; b leaves the weight
    gradient to the next W."""
    to_end = min(stage, stages - 1 - stage) + 1
    to_middle = stages // 2 - to_end
    tail = [letter + way for letter, way in zip("B" * to_end + "b" * to_end, "10" * to_end, strict=True)]
    letters = 2 * to_middle * ["F0"] + to_end * ["F0", "F1"] + to_middle * ["b1", "W", "F1"]
    letters += (micro_batches // 2 - stages + to_end) * ["F0B1", "F1B0"]
    letters += to_middle * ["B1", "F1B0"] + tail + to_middle * ["W", "b0"] + to_end * ["W"]
    if to_middle == 0:
        # The middle's first pair is done one after the other: its forward is not to wait for the backward's gradient.
        first = letters.index("F0B1")
        letters[first : first + 1] = ["F0", "B1"]
    return tuple(_numbered(letters, micro_batches // 2, is_second_half=stage >= stages // 2))


def _numbered(letters: Sequence[str], half: int, is_second_half: bool) -> Iterator[Task]:
    counters = {(work, chunk): count(chunk * half) for work in "FB" for chunk in (0, 1)}
    put_off: list[Task] = []
    for letter in letters:
        if letter == "W":
            yield _weight(put_off.pop(0))
            continue
        work, chunk = letter[0], int(letter[1]) ^ is_second_half
        task = Task(Work(work.upper()), next(counters[work.upper(), chunk]), chunk)
        if work == "b":
            put_off.append(task)
        if letter[2:]:
            task = Task(
                task.work, task.micro_batch, chunk, Task(Work.BACKWARD, next(counters["B", 1 - chunk]), 1 - chunk)
            )
        yield task
