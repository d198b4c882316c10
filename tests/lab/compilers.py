"""Threads that still make machine code of a program that was read already: a process that ends before them aborts."""

import threading

from lab.compile.xla_dump import COMPILER


def compilers_end() -> None:
    for thread in threading.enumerate():
        if thread.name == COMPILER:
            thread.join()
