"""A truncated state file is harmless or causes an error at the next start. It never causes a wrong result."""

from __future__ import annotations

import pytest

from tests.faults.programs.state_files import cut, make, newest_state_file, run

pytestmark = pytest.mark.fault


@pytest.mark.long("it shows what Spark does")
@pytest.mark.usefixtures("one_attempt")
@pytest.mark.parametrize("lost", [1, 22], ids=["the mark of the end", "a record"])
def test_a_changelog_that_ends_early(spark, tmp_path, lost):
    name = f"cut by {lost}"
    checkpoint = make(spark, tmp_path / "run", name, {}, epochs=3)
    cut(lost)(newest_state_file(checkpoint.path, "changelog"))
    if lost == 1:  # no record is lost
        assert run(spark, checkpoint.inputs, checkpoint.path, f"after: {name}", {}) == checkpoint.right
        return
    with pytest.raises(Exception, match=r"(?s)."):
        run(spark, checkpoint.inputs, checkpoint.path, f"after: {name}", {})
