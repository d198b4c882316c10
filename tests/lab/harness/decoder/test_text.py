import numpy as np
import pytest

from lab.harness.decoder import text
from lab.meshes.errors import UsageError


def test_the_standard_library_has_modules_in_the_order_of_their_names_and_over_a_million_bytes():
    source = text.standard_library()
    found = source.tobytes()
    assert source.size > 1_000_000
    assert 0 <= found.index(b"def insort_right") < found.index(b"def heappush") < found.index(b"class TextWrapper")


def test_targets_are_the_next_bytes_and_equal_seeds_give_equal_batches():
    source = np.arange(200, dtype=np.uint8)
    steps = text.batches(source, steps=3, batch=4, length=10)
    assert len(steps) == 3
    assert all(tokens.shape == (4, 10) and (targets == tokens + 1).all() for tokens, targets in steps)
    assert np.array_equal(steps, text.batches(source, steps=3, batch=4, length=10))
    assert not np.array_equal(steps[0][0], steps[1][0])


def test_guessing_four_equal_bytes_costs_log_4_and_one_byte_nothing():
    assert text.guessing(np.array([1, 2, 3, 4] * 8, np.uint8)) == pytest.approx(np.log(4))
    assert text.guessing(np.array([7, 7], np.uint8)) == 0


def test_a_python_without_sources_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(text.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(UsageError, match=r"has no \.py files"):
        text.standard_library()
