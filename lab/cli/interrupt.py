"""Control-C ends a command at once, also while XLA compiles: the main thread is then inside C++, for half a minute at
times, and Python raises KeyboardInterrupt only when it returns."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from select import select

STATUS = 130
PYTHON_S, ENDING_S = 0.3, 1.0
"""How long Python has to see an interrupt, and then to end."""
RESTORED = b"\x1b[?25h\r\x1b[K"
"""The cursor shown again, and the line of progress gone."""


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Inside, an interrupt that Python does not see ends the process, and so does a second one. Nothing is half written
    then: files are replaced whole, once all is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen = threading.Event()

    def interrupted(*_: object) -> None:
        seen.set()
        raise KeyboardInterrupt

    signals, woken = os.pipe()
    os.set_blocking(woken, False)
    before = signal.signal(signal.SIGINT, interrupted), signal.set_wakeup_fd(woken)
    threading.Thread(target=_watch, args=(signals, os.dup(2), seen), daemon=True).start()
    try:
        yield
    finally:
        if seen.is_set():
            os._exit(STATUS)  # Python would wait for threads that compile.
        signal.signal(signal.SIGINT, before[0])
        signal.set_wakeup_fd(before[1])
        os.close(woken)


def _watch(signals: int, terminal: int, seen: threading.Event) -> None:
    """Learns of signals whatever the main thread is doing."""
    while (number := os.read(signals, 1)) and number[0] != signal.SIGINT:
        pass
    if number and seen.wait(PYTHON_S):
        if not select([signals], [], [], ENDING_S)[0]:
            os.write(terminal, b"interrupted; waiting for XLA (Ctrl-C again ends at once)\n")
        os.read(signals, 1)
    if number:
        os.write(terminal, RESTORED * os.isatty(terminal) + b"interrupted\n")
        os._exit(STATUS)
    os.close(signals)
    os.close(terminal)
