"""XLA's parser in a process of its own, since damaged texts may abort it: `python -m tests.damage.xla_parser_process`
takes texts on stdin and prints them as XLA does, or nothing where it refuses them."""

from __future__ import annotations

import subprocess
import sys
from select import select

from tests.paths import ROOT

PATIENCE_S = 20


class XlaParser:
    """A text as XLA prints it again; None where it refuses, aborts or does not end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def printed(self, text: str) -> str | None:
        process = self._process = self._process or subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        raw = text.encode(errors="surrogatepass")
        try:
            process.stdin.write(b"%d\n" % len(raw) + raw)
            process.stdin.flush()
            if select([process.stdout], [], [], PATIENCE_S)[0] and (size := process.stdout.readline()):
                return process.stdout.read(int(size)).decode() or None
        except BrokenPipeError:
            pass
        self.end()
        return None

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def main() -> None:
    from jaxlib import _hlo  # Private, but nothing public parses HLO text.

    while size := sys.stdin.buffer.readline():
        text = sys.stdin.buffer.read(int(size))
        try:
            printed = _hlo.hlo_module_from_text(text.decode()).to_string().encode()
        except Exception:
            printed = b""
        sys.stdout.buffer.write(b"%d\n" % len(printed) + printed)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
