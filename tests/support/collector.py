"""A pytest plugin: the cycle collector leaves alone what was there before the tests.

That is a million objects, of modules and of tests that are yet to run, at which each full collection would look.
"""

from __future__ import annotations

import gc

import pytest


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not gc.get_freeze_count():  # the test before this one has called gc.unfreeze()
        gc.freeze()
