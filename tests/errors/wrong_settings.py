# mypy: ignore-errors
"""Wrong uses of parallelism, chaining, the execution mode and results."""

from __future__ import annotations

from pillarbox import RuntimeExecutionMode
from tests.errors.wrong_uses import Build, rows

__all__ = ["SETTINGS_BUILDS"]


def _doubled(value):
    return value


SETTINGS_BUILDS = [
    *(
        Build(f"class alias {former!r}", lambda env, former=former, cls=cls: env.add_class_alias(former, cls), says)
        for former, cls, says in (
            ("model.Old", int, ("takes the old module and name, as in 'shop.model:Order', not 'model.Old'",)),
            (":Old", int, ("takes the old module and name",)),
            (5, int, ("takes the old module and name", "not 5")),
            ("model:Old", "model:New", ("add_class_alias('model:Old', ...) takes the class itself, not 'model:New'",)),
            (
                "builtins:int",
                int,
                ("add_class_alias('builtins:int', ...): the class already has this name: pass its old name",),
            ),
        )
    ),
    Build(
        "class alias twice",
        lambda env: env.add_class_alias("model:Old", int).add_class_alias("model:Old", str),
        ("add_class_alias('model:Old', ...) was called before with another class",),
    ),
    *(
        Build(
            f"parallelism of an operator {value!r}",
            lambda env, value=value: rows(env).map(_doubled).set_parallelism(value),
            ("parallelism must be a positive integer", repr(value)),
        )
        for value in (0, True, "2", None)
    ),
    *(
        Build(
            f"execution mode {value!r}",
            lambda env, value=value: env.set_runtime_mode(value),
            ("set_runtime_mode() takes RuntimeExecutionMode.STREAMING, BATCH or AUTOMATIC", repr(value)),
        )
        for value in ("BATCH", 1, None)
    ),
    *(
        Build(
            f"limit {value!r}",
            lambda env, value=value: rows(env).execute_and_collect(limit=value),
            ("execute_and_collect(): limit= must be a positive integer", repr(value)),
        )
        for value in (0, -1, True, "2", 1.5)
    ),
    *(
        Build(
            f"from_savepoint{value!r}",
            lambda env, value=value: env.from_savepoint(*value[:1], **dict(value[1:])),
            says,
        )
        for value, says in (
            ((None,), ("from_savepoint() takes the directory of a savepoint", "None")),
            (("",), ("from_savepoint() takes the directory of a savepoint", "''")),
            (("s", ("renamed", ["a"])), ("renamed= must be a dict from uids in the savepoint to new uids", "['a']")),
            (("s", ("renamed", {"a": 1})), ("renamed= must be a dict", "{'a': 1}")),
            (("s", ("renamed", {"a": "c", "b": "c"})), ("renamed= maps several operators to one uid",)),
            (("s", ("positions", "latest")), ('positions= must be "savepoint", "none", a dict', "'latest'")),
            (("s", ("positions", ["latest"])), ('positions= must be "savepoint", "none", a dict', "['latest']")),
            (("s", ("positions", {"payments": "latest"})), ("a dict from source names to positions", "latest")),
        )
    ),
    Build(
        "from_savepoint in batch mode",
        lambda env: (
            env.set_runtime_mode(RuntimeExecutionMode.BATCH)
            .from_savepoint("s")
            .from_collection([1])
            .key_by(_doubled)
            .reduce(max)
            .execute_and_collect()
        ),
        ("a program in batch mode starts without state", "RuntimeExecutionMode.STREAMING"),
    ),
    Build(
        "from_savepoint with another uid",
        lambda env: (
            env.from_savepoint("s", renamed={"old": "new"})
            .from_collection([1])
            .key_by(_doubled)
            .reduce(max)
            .uid("most")
            .execute_and_collect()
        ),
        ("renamed= has the new uid 'new'", "the program has no such operator", "'most'"),
    ),
    Build(
        "batch mode in several epochs",
        lambda env: (
            env.set_runtime_mode(RuntimeExecutionMode.BATCH).local_job(out=rows(env).map(_doubled)).run_epoch({})
        ),
        ("batch mode processes all of its input in a single epoch", "end_input()"),
    ),
    Build(
        "parallelism of a source",
        lambda env: rows(env).set_parallelism(2),
        ("set_parallelism(2)", "source 'collection'", "rebalance()"),
    ),
    Build(
        "parallelism of a key_by",
        lambda env: rows(env).key_by("key").set_parallelism(2),
        ("set_parallelism(2) is for operators", "'key_by' is not one"),
    ),
    Build(
        "parallelism above the max parallelism",
        lambda env: rows(env.set_max_parallelism(8)).map(_doubled).set_parallelism(9).execute_and_collect(),
        ("operator 'map: _doubled' has parallelism 9, above the max parallelism 8", "env.set_max_parallelism(9)"),
    ),
    Build(
        "parallelism of a sink above the max parallelism",
        lambda env: (rows(env.set_max_parallelism(1)).print().set_parallelism(2), env.execute()),
        ("operator 'print' has parallelism 2",),
    ),
    Build(
        "forward to another parallelism",
        lambda env: (
            rows(env.set_parallelism(2)).rebalance().map(_doubled).forward().map(_doubled).set_parallelism(1).print(),
            env.execute(),
        ),
        ("forward() keeps each record", "'map: _doubled' has parallelism 2", "rebalance()"),
    ),
    *(
        Build(
            f"{method} of a source",
            lambda env, method=method: getattr(rows(env), method)(),
            (f"{method}() is for operators", "'collection' is not one"),
        )
        for method in ("disable_chaining", "start_new_chain")
    ),
    *(
        Build(
            f"{method}, which is Flink's",
            lambda env, method=method: getattr(rows(env).map(_doubled), method)(5),
            (f"pillarbox's streams have no {method}()", instead),
        )
        for method, instead in (
            ("set_buffer_timeout", "a micro-batch ends"),
            ("set_description", "name(...)"),
            ("set_uid_hash", "uid(...)"),
            ("slot_sharing_group", "Spark schedules"),
        )
    ),
]
