"""What may be padded with what, in float32 (`law.identities`)."""

import numpy as np
import pytest

X_N = np.array([-0.0, 0.0, 1.5, -3.0, np.inf, -np.inf], np.float32)


@pytest.mark.parametrize(
    ("operation", "identity"), [(np.add, -0.0), (np.multiply, 1), (np.maximum, -np.inf), (np.minimum, np.inf)]
)
def test_an_identity_changes_no_bit(operation, identity):
    assert operation(X_N, np.float32(identity)).tobytes() == X_N.tobytes()


def test_plus_zero_loses_the_sign_of_minus_zero():
    assert not np.signbit(np.float32(-0.0) + np.float32(0.0))
