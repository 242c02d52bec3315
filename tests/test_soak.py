"""The soak of tests/soak.py, for a short time: what grows fast shows soon."""

import pytest
import soak


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rounds():
    seen = soak.soak(seconds=60)
    assert len(seen) >= 3
    later = [size for _, size in seen[len(seen) // 3 :]]
    assert max(later) - later[0] < 150e6, seen


def test_what_grows_is_seen():
    grows = [(i, 5e8 + 1e6 * i) for i in range(30)]
    assert soak.growth(grows) == pytest.approx(1e6)
    assert soak.growth([(i, 5e8 + (1e6 if i < 5 else 0)) for i in range(30)]) == pytest.approx(0)
