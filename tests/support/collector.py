"""A pytest plugin that freezes all objects before the tests, so that garbage collections skip them.

Full collections would visit a million objects of modules and pending tests. ``gc.get_freeze_count()`` still visits the
frozen objects, which takes 20 ms.
"""

from __future__ import annotations

import gc

import pytest

_unfreeze = gc.unfreeze
_is_frozen = False


def _noted_unfreeze() -> None:
    global _is_frozen
    _is_frozen = False
    _unfreeze()


def _freeze() -> None:
    global _is_frozen
    gc.freeze()
    _is_frozen = True


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()
    gc.unfreeze = _noted_unfreeze  # pillarbox's tasks call it, too


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    _freeze()
    gc.set_threshold(20_000, 20, 20)  # a test makes little that lives on, and hypothesis is called at each collection
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not _is_frozen:  # the test before this one has called gc.unfreeze()
        _freeze()
