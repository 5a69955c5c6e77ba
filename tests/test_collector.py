from __future__ import annotations

import gc

import pytest

from tests.support import collector


def test_objects_left_by_a_test_are_frozen_before_the_next_test(request: pytest.FixtureRequest):
    assert gc.get_freeze_count() > 10_000
    gc.unfreeze()
    assert gc.get_freeze_count() == 0
    collector.pytest_runtest_setup(request.node)
    assert gc.get_freeze_count() > 10_000
    # Otherwise garbage of earlier tests stays with the collector.
    ring: list[object] = []
    ring.append(ring)
    collector.pytest_runtest_setup(request.node)
    # get_objects() omits frozen objects. Their number proves nothing: another thread may free some.
    assert any(tracked is ring for tracked in gc.get_objects())
