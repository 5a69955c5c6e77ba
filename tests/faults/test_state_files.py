"""A state file that lost its end is an error at the next start, never a wrong result."""

from __future__ import annotations

import pytest

from tests.faults.state_files import FORMAT, cut, make, newest_state_file, run

pytestmark = pytest.mark.fault

_CHECKSUM = "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"


def test_a_changelog_that_ends_early_is_an_error_that_names_it(spark, tmp_path):
    """By one byte, the mark of the end: no record is lost, and without checksums nobody notices."""
    checkpoint = make(spark, tmp_path / "run", "cut by one byte", {}, epochs=3)
    changelog = newest_state_file(checkpoint.path, "changelog")
    cut(1)(changelog)
    with pytest.raises(Exception, match=_CHECKSUM) as raised:
        run(spark, checkpoint.inputs, checkpoint.path, "after a cut", {})
    assert changelog.name in str(raised.value)


def test_a_checkpoint_keeps_the_format_with_which_it_was_begun(spark, tmp_path):
    checkpoint = make(spark, tmp_path / "run", "begun with format 1", {FORMAT: "1"}, epochs=3)
    old = newest_state_file(checkpoint.path, "changelog")
    assert old.stem.isdigit()
    assert run(spark, checkpoint.inputs, checkpoint.path, "gone on", {}) == checkpoint.right
    new = newest_state_file(checkpoint.path, "changelog")
    assert new.stem.isdigit()
    assert int(new.stem) > int(old.stem)
