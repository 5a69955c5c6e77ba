"""``LocalFiles.java`` behaves like the Hadoop class that it replaces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.local_files import are_used

pytestmark = pytest.mark.skipif(
    not are_used(), reason="Java uses Hadoop's own class and settings: make test makes others"
)


def test_it_does_what_hadoops_own_class_does(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark._jvm
    hadoop = jvm.org.apache.hadoop.fs
    (tmp_path / "file").write_text("a file")
    (tmp_path / "link").symlink_to("file")
    path = hadoop.Path((tmp_path / "file").as_uri())
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    context = hadoop.FileContext.getFileContext(spark._jsc.hadoopConfiguration())
    assert files.getClass().getName() == "pillarbox.tests.LocalFiles"
    assert context.getDefaultFileSystem().getClass().getName() == "pillarbox.tests.LocalFiles$Context"

    raw, own = files.getRaw(), hadoop.RawLocalFileSystem()
    own.initialize(files.getUri(), files.getConf())
    for mode in (0o640, 0o755, 0o1777):
        for filesystem in (own, raw):
            (tmp_path / "file").chmod(0o600)
            filesystem.setPermission(path, hadoop.permission.FsPermission(str(oct(mode)).removeprefix("0o")))
            assert os.stat(tmp_path / "file").st_mode & 0o7777 == mode, filesystem
    for name in ("file", "link", "."):
        for folder in (tmp_path / name).as_uri(), str(tmp_path / name):
            result, right = (filesystem.getFileLinkStatus(hadoop.Path(folder)) for filesystem in (raw, own))
            assert result.toString() == right.toString()
    assert result.isDirectory() and raw.getFileLinkStatus(hadoop.Path(str(tmp_path / "link"))).isSymlink()
    for filesystem in (own, raw):
        with pytest.raises(Exception, match="FileNotFoundException"):
            filesystem.getFileLinkStatus(hadoop.Path((tmp_path / "none").as_uri()))


def test_there_are_no_default_settings(spark: SparkSession) -> None:
    settings = spark._jvm.org.apache.hadoop.conf.Configuration()  # type: ignore[union-attr]
    assert settings.size() < 20
