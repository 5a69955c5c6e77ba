from __future__ import annotations

from urllib.parse import unquote

import pytest

from pillarbox._runtime.spark.savepoint import seen_files
from pillarbox._runtime.spark.savepoint.seen_files import glob_of

pytestmark = pytest.mark.spark

NAMES = ["a", "b.json", "b,json", "{a,b}", "{a", "b}", "[ab]", "*", "?", "x\\y", "a b", "ab", "(a|b)+$^", "ä#%20"]
FOLDERS = ["in", "in/day=1", "in/day=2", "in/{d,e}", "in/[d]*?", "in/x\\,y"]


@pytest.mark.parametrize("together", [3, 10_000])
def test_exactly_the_files_that_were_read_are_found(spark, tmp_path, monkeypatch, together):
    monkeypatch.setattr(seen_files, "_TOGETHER", together)
    there = [tmp_path / "[root], {a}" / folder / name for folder in FOLDERS for name in NAMES]
    for path in there:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    for seen in (there[::2], there[1::3], there[:1], [there[0], there[-1]]):
        read = spark.read.schema("value STRING").option("recursiveFileLookup", "true")
        gone = tmp_path / "[root], {a}" / "in" / "gone"
        result = read.text(glob_of([f"file://{path}" for path in [*seen, gone / "a", gone / "b"]])).inputFiles()
        assert sorted(unquote(path.removeprefix("file://")) for path in result) == sorted(map(str, seen))
