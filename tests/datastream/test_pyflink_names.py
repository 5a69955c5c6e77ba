from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import pillarbox

METHODS = Path(__file__).parents[1] / "data" / "pyflink_methods.txt"

# Parameters with another name, and the reason.
OTHER_PARAMETERS = {
    "AllWindowedStream.allowed_lateness": "any duration, and not milliseconds alone",
    "DataStream.broadcast": "any number of descriptors, each like the others",
    "DataStream.key_by": "more columns by name; a type in the second place is the key's",
    "KeyedStream.broadcast": "any number of descriptors, each like the others",
    "StreamExecutionEnvironment.get_execution_environment": "Spark's session in place of a configuration",
    "WindowedStream.allowed_lateness": "any duration, and not milliseconds alone",
}

# Methods of PyFlink's that are not here.
NOT_HERE = {
    "DataStream": (
        "set_uid_hash set_max_parallelism get_type get_execution_config force_non_parallel set_buffer_timeout"
        " slot_sharing_group set_description project add_sink sink_to cache"
    ),
    "DataStreamSink": "set_uid_hash set_description slot_sharing_group",
    "StreamExecutionEnvironment": (
        "get_config register_slot_sharing_group set_buffer_timeout get_buffer_timeout"
        " is_chaining_of_operators_with_different_max_parallelism_enabled get_checkpoint_config enable_checkpointing"
        " get_checkpoint_interval get_checkpointing_mode get_checkpointing_consistency_mode"
        " enable_changelog_state_backend is_changelog_state_backend_enabled set_default_savepoint_directory"
        " get_default_savepoint_directory configure add_python_file set_python_requirements add_python_archive"
        " set_python_executable add_jars add_classpaths get_default_local_parallelism set_default_local_parallelism"
        " execute_async get_execution_plan register_cached_file create_input add_source from_source"
        " is_unaligned_checkpoints_enabled is_force_unaligned_checkpoints close"
    ),
}
# All classes of pyflink.datastream and pyflink.common, and classes of connectors and of the Table API that programs of
# the DataStream API also import.
CLASSES = """
    AggregateFunction AsyncDataStream AsyncFunction BroadcastConnectedStream BroadcastProcessFunction BroadcastStream
    CheckpointConfig CheckpointStorage CheckpointingMode CoFlatMapFunction CoMapFunction CoProcessFunction
    ConnectedStreams CountWindow CustomCheckpointStorage CustomStateBackend DataStream DataStreamSink
    EmbeddedRocksDBStateBackend ExternalizedCheckpointRetention FileSystemCheckpointStorage FilterFunction
    FlatMapFunction GlobalWindow HashMapStateBackend JobManagerCheckpointStorage KeySelector
    KeyedBroadcastProcessFunction KeyedCoProcessFunction KeyedProcessFunction KeyedStream MapFunction MemorySize
    MergingWindowAssigner OutputTag Partitioner PredefinedOptions ProcessFunction ProcessWindowFunction ReduceFunction
    RuntimeContext RuntimeExecutionMode SinkFunction SlotSharingGroup SourceFunction StateBackend
    StreamExecutionEnvironment TimeDomain TimeWindow TimerService Trigger TriggerResult Window WindowAssigner
    WindowFunction WindowedStream AllWindowedStream CachedDataStream CloseableIterator
    CompletableFuture Configuration DeserializationSchema Duration Encoder ExecutionConfig ExecutionMode Instant
    JobClient JobExecutionResult JobID JobStatus RestartStrategies Row RowKind SerializationSchema SimpleStringSchema
    Time TypeInformation Types WatermarkStrategy
    FileSink FileSource HybridSource KafkaRecordSerializationSchema KafkaSink KafkaSource NumberSequenceSource
    OutputFileConfig RollingPolicy StreamFormat EnvironmentSettings StreamTableEnvironment TableEnvironment
"""
PAGE = (Path(__file__).parents[2] / "docs" / "pyflink.md").read_text()


def listed() -> Iterator[tuple[str, str, str]]:
    for line in METHODS.read_text().splitlines()[1:]:
        owner, _, methods = line.partition(": ")
        for method, parameters in re.findall(r"(\w+)\((.*?)\)", methods):
            yield owner, method, parameters


def parameters_of(owner: Any, method: str) -> Iterator[inspect.Parameter]:
    parameters = list(inspect.signature(getattr(owner, method)).parameters.values())
    if not isinstance(inspect.getattr_static(owner, method), staticmethod):
        del parameters[0]
    return iter(parameters)


def differs(owner: Any, method: str, names: list[str]) -> bool:
    parameters = parameters_of(owner, method)
    for name in names:
        match = next(parameters, None)
        if match is None:
            return True
        if match.kind is not inspect.Parameter.POSITIONAL_ONLY and match.name != name.lstrip("*"):
            return True
    return any(
        more.default is more.empty and more.kind in (more.POSITIONAL_ONLY, more.POSITIONAL_OR_KEYWORD)
        for more in parameters
    )


def test_methods_have_the_parameters_of_pyflinks():
    results = [
        f"{owner}.{method}"
        for owner, method, parameters in listed()
        if differs(reduce(getattr, owner.split("."), pillarbox), method, parameters.split(", ") if parameters else [])
    ]
    assert len(list(listed())) > 400
    assert set(results) == OTHER_PARAMETERS.keys()


@pytest.mark.parametrize("owner", NOT_HERE)
def test_methods_that_are_not_here_say_so(owner):
    env = pillarbox.StreamExecutionEnvironment()
    stream = env.from_collection([1])
    instance = {"DataStream": stream, "DataStreamSink": stream.print(), "StreamExecutionEnvironment": env}[owner]
    for method in NOT_HERE[owner].split():
        assert not hasattr(instance, method)
        with pytest.raises(pillarbox.ProgramError, match=rf"^pillarbox's \w+ ha(s|ve) no {method}\(\): .+"):
            getattr(instance, method)
        if owner != "DataStreamSink":
            assert f"`{method}" in PAGE or f".{method}" in PAGE, method


def test_classes_that_are_not_here_say_so_where_they_are_imported():
    missing = [name for name in CLASSES.split() if name not in pillarbox.__all__]
    for name in missing:
        with pytest.raises(ImportError, match=rf"^pillarbox has no class {name}: .+") as caught:
            exec(f"from pillarbox import {name}")
        assert isinstance(caught.value, pillarbox.ProgramError)
        assert f"`{name}`" in PAGE or f".{name}" in PAGE, name
    assert "SlotSharingGroup" in missing


def test_an_unknown_name_is_no_attribute():
    assert not hasattr(pillarbox, "KeyedStraem")
    with pytest.raises(ImportError, match="cannot import name 'KeyedStraem'"):
        exec("from pillarbox import KeyedStraem")


def test_methods_of_contexts_and_windows_take_their_arguments_by_name():
    by_position = [
        f"{owner}.{method}"
        for owner, method, _ in listed()
        if owner.endswith("Context") or owner in ("TimerService", "TimeWindow")
        for parameter in parameters_of(reduce(getattr, owner.split("."), pillarbox), method)
        if parameter.kind is parameter.POSITIONAL_ONLY
    ]
    assert not by_position
