"""A state file that lost its end is harmless or an error at the next start, never a wrong result."""

from __future__ import annotations

import pytest

from tests.faults.programs.state_files import FILES, FORMAT, cut, make, newest_state_file, run

pytestmark = pytest.mark.fault


@pytest.mark.long("it shows what Spark does")
@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize(
    "lost, settings, message",
    [
        # The mark of the end: no record is lost.
        pytest.param(1, {}, None, marks=pytest.mark.long("nothing is lost")),
        pytest.param(22, {}, "(?s).", marks=pytest.mark.long("with checksums it is named")),
        (1, {FILES: "true"}, "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED"),
    ],
    ids=["the mark of the end", "a record", "checksums switched on"],
)
def test_a_changelog_that_ends_early(spark, tmp_path, lost, settings, message):
    name = f"cut by {lost} {settings}"
    checkpoint = make(spark, tmp_path / "run", name, settings, epochs=3)
    changelog = newest_state_file(checkpoint.path, "changelog")
    assert "_" in changelog.stem  # format 2
    cut(lost)(changelog)
    if message is None:
        assert run(spark, checkpoint.inputs, checkpoint.path, f"after: {name}", settings) == checkpoint.right
        return
    with pytest.raises(Exception, match=message) as raised:
        run(spark, checkpoint.inputs, checkpoint.path, f"after: {name}", settings)
    assert not settings or changelog.name in str(raised.value)


@pytest.mark.long("it shows what Spark does")
def test_a_checkpoint_keeps_the_format_with_which_it_was_begun(spark, tmp_path):
    checkpoint = make(spark, tmp_path / "run", "begun with format 1", {FORMAT: "1"}, epochs=3)
    old = newest_state_file(checkpoint.path, "changelog")
    assert old.stem.isdigit()
    assert run(spark, checkpoint.inputs, checkpoint.path, "gone on", {}) == checkpoint.right
    new = newest_state_file(checkpoint.path, "changelog")
    assert new.stem.isdigit()
    assert int(new.stem) > int(old.stem)
