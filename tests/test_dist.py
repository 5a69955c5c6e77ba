"""Published files: the description's links, and the same bytes for the same commit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile

import pytest

import pillarbox
from scripts.dist import absolute_links, build
from tests.support.docs import HOME

REPOSITORY = "https://example.org/pillarbox"


def test_links_of_the_description_lead_to_the_repository():
    text = "[a](docs/a.md#b) ![c](docs/c.svg) [d](https://example.com) [e](#here)"
    there = f"{REPOSITORY}/blob/main/docs"
    assert absolute_links(text, REPOSITORY) == (
        f"[a]({there}/a.md#b) ![c]({there}/c.svg) [d](https://example.com) [e](#here)"
    )
    readme = absolute_links((HOME / "README.md").read_text(), REPOSITORY)
    assert not [link for link in re.findall(r"\]\(([^)\s]+)\)", readme) if not re.match(r"https?:|#", link)]


@pytest.mark.long("it builds the package twice, as the release workflow does")
def test_a_commit_is_the_same_bytes_each_time(tmp_path):
    command = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=True).stdout.strip()
    first, second = (build(commit, tmp_path / name) for name in ("first", "second"))
    assert [path.name for path in first] == [path.name for path in second] and len(first) == 2
    for file, rebuilt in zip(first, second):
        assert file.read_bytes() == rebuilt.read_bytes()
    wheel, source = sorted(first, key=lambda path: path.suffix != ".whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"pillarbox/py.typed", "pillarbox/_examples/fraud/README.md"} <= names
    assert not [name for name in names if name.startswith("tests") or "__pycache__" in name]
    with tarfile.open(source) as files:
        members = {name.partition("/")[2] for name in files.getnames()}
    assert {"CHANGELOG.md", "docs/index.md", "tests/test_house.py", "LICENSE"} <= members


_PROGRAM = """
import sys
import pillarbox
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor

class Count(KeyedProcessFunction):
    def open(self, ctx):
        self.seen = ctx.get_state(ValueStateDescriptor("seen"))

    def process_element(self, row, ctx):
        self.seen.update((self.seen.value() or 0) + 1)
        yield row.card, self.seen.value()

spark = pillarbox.local_session(2)
env = StreamExecutionEnvironment.get_execution_environment(spark)
rows = spark.readStream.schema("card STRING").json(sys.argv[1] + "/in")
counts = env.from_dataframe(rows).key_by("card").process(Count()).uid("count").to_dataframe("card STRING, n LONG")
found = []
writer = counts.writeStream.foreachBatch(lambda batch, number: found.extend(map(tuple, batch.collect())))
query = pillarbox.start(writer.option("checkpointLocation", sys.argv[1] + "/cp").trigger(availableNow=True))
query.awaitTermination()
print(sorted(found), query.exception())
try:
    pillarbox.dashboard(query)
except pillarbox.ConfigurationError as error:
    print(error)
print([name for name in sys.modules if name.startswith("pillarbox_tools")])
"""


@pytest.mark.spark
@pytest.mark.slow("it builds a wheel and starts a query twice")
def test_a_wheel_without_the_tools_runs_a_query_with_state(tmp_path):
    [wheel, _] = sorted(build("HEAD", tmp_path / "dist"), key=lambda path: path.suffix != ".whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site", [name for name in names if not name.startswith("pillarbox_tools")])
    assert [name for name in names if name.startswith("pillarbox_tools/dashboard/static/")] != []
    (tmp_path / "program.py").write_text(_PROGRAM)
    (tmp_path / "in").mkdir()
    # -S omits the environment, in which both packages are installed: its packages are listed one by one.
    path = [str(tmp_path / "site"), *(entry for entry in sys.path if entry.endswith("site-packages"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    outputs = []
    for run, cards in enumerate(("a", "aba")):
        (tmp_path / "in" / f"{run}.json").write_text("".join(f'{{"card": "{card}"}}\n' for card in cards))
        command = [sys.executable, "-S", "program.py", str(tmp_path)]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        outputs.append(done.stdout.splitlines())
        assert "pillarbox_tools" in outputs[run][1] and outputs[run][2] == "[]"
    assert [lines[0] for lines in outputs] == ["[('a', 1)] None", "[('a', 2), ('a', 3), ('b', 1)] None"]


def test_the_package_and_its_metadata_have_the_same_version():
    (version,) = re.findall(r'^version = "(.*)"$', (HOME / "pyproject.toml").read_text(), re.MULTILINE)
    assert version == pillarbox.__version__
