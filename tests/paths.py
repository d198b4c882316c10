"""Where tests find the repository's files, and the shared material beside it that a stranger's clone lacks."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"
