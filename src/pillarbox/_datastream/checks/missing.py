"""Creates errors for missing methods that Flink or another kind of stream has. They name a replacement."""

from __future__ import annotations

from pillarbox._errors import MissingClassError, MissingMethodError

_WRITE = "end the stream with to_dataframe(...), and write that with Spark"
_BUFFERS = "buffers are sent when they are full, and when a micro-batch ends: drop the call"
_SCHEDULED = "Spark schedules the tasks: drop the call"
_TYPES = "declare types with output_type=..., where needed"
_EPOCHS = (
    "each micro-batch is an exactly-once checkpoint: drop the call. The query's trigger sets the interval, and its"
    " checkpointLocation the directory"
)
_READ = "read it with Spark, and pass it to from_dataframe(spark.readStream...)"
_SHIPPED = "the session ships files: spark.addArtifact(..., pyfile=True), or spark-submit --py-files and --archives"
_SPARKS = "Spark's own settings apply: drop the call"

# Flink methods without an equivalent of the same name.
_OF_STREAMS = {
    "add_sink": _WRITE,
    "cache": "end the stream with to_dataframe(...), and persist that",
    "force_non_parallel": "use set_parallelism(1)",
    "full_window_partition": (
        "use window(GlobalWindows.create_with_end_of_stream_trigger()) after key_by(...), or window_all(...) with it;"
        " a subtask's part of a stream has no window of its own"
    ),
    "get_execution_config": "use the environment's own methods, such as env.set_parallelism(...)",
    "get_type": _TYPES,
    "iterate": "a program has no loops: write the records to repeat with Spark, and read them as another source",
    "project": "use map(...)",
    "set_buffer_timeout": _BUFFERS,
    "set_description": "use name(...)",
    "set_max_parallelism": "it applies to the whole program: use env.set_max_parallelism(...)",
    "set_uid_hash": "state is stored under the uid; use uid(...)",
    "sink_to": _WRITE,
    "slot_sharing_group": _SCHEDULED,
}
_OF_ENVIRONMENTS = {
    "add_classpaths": "jars belong to the session: spark.jars or spark.jars.packages",
    "add_jars": "jars belong to the session: spark.jars or spark.jars.packages",
    "add_python_archive": _SHIPPED,
    "add_python_file": _SHIPPED,
    "add_source": _READ,
    "close": "there is nothing to close: drop the call",
    "configure": _SPARKS,
    "create_input": _READ,
    "enable_changelog_state_backend": "state is always written as a log of changes: drop the call",
    "enable_checkpointing": _EPOCHS,
    "execute_async": "pillarbox.start(stream.to_dataframe(...).writeStream...) starts a query, and returns it",
    "from_data": "use from_collection([...])",
    "from_elements": "use from_collection([...])",
    "from_parallel_collection": "use from_collection(...)",
    "from_sequence": "use from_collection(range(first, last + 1)), or from_dataframe(spark.range(first, last + 1))",
    "from_source": _READ,
    "generate_sequence": "use from_collection(range(first, last + 1)), or from_dataframe(spark.range(first, last + 1))",
    "get_buffer_timeout": _BUFFERS,
    "get_checkpoint_config": _EPOCHS,
    "get_checkpoint_interval": _EPOCHS,
    "get_checkpointing_consistency_mode": _EPOCHS,
    "get_checkpointing_mode": _EPOCHS,
    "get_config": "use the environment's own methods, such as set_parallelism(...); watermarks have no interval",
    "get_default_local_parallelism": "use get_parallelism()",
    "get_default_savepoint_directory": "pass the directory to pillarbox.savepoint(...)",
    "get_execution_plan": "use get_execution_graph()",
    "is_changelog_state_backend_enabled": "state is always written as a log of changes",
    "is_chaining_of_operators_with_different_max_parallelism_enabled": "all operators have one max parallelism",
    "is_force_unaligned_checkpoints": _EPOCHS,
    "is_unaligned_checkpoints_enabled": _EPOCHS,
    "read_file": _READ,
    "read_text_file": _READ,
    "register_cached_file": "ship it with the session: spark.addArtifact(..., file=True)",
    "register_slot_sharing_group": _SCHEDULED,
    "set_buffer_timeout": _BUFFERS,
    "set_default_local_parallelism": "use set_parallelism(...)",
    "set_default_savepoint_directory": "pass the directory to pillarbox.savepoint(...)",
    "set_python_executable": "set PYSPARK_PYTHON or spark.pyspark.python",
    "set_python_requirements": _SHIPPED,
    "set_restart_strategy": "Spark retries failed tasks (spark.task.maxFailures): drop the call",
    "set_state_backend": "state is in the workers and in the checkpoint: drop the call",
    "set_stream_time_characteristic": "a stream has event time once it has watermarks: drop the call",
    "socket_text_stream": _READ,
}
_STATE_BACKENDS = "state is in the workers and in the query's checkpoint: drop it"
_RESTARTS = "Spark retries failed tasks (spark.task.maxFailures): drop it"
_OF_ENVIRONMENT = "settings belong to the Spark session, or to the environment, such as env.set_parallelism(...)"
_FORMATS = (
    "Spark reads and writes formats: use functions such as from_json(...) or to_json(...) on a DataFrame's columns"
)
_QUERIES = "pillarbox.start(...) returns Spark's StreamingQuery"
_CLASSES = {
    _EPOCHS: "CheckpointConfig CheckpointingMode ExternalizedCheckpointCleanup ExternalizedCheckpointRetention",
    "the query's checkpointLocation is the directory of checkpoints: drop it": (
        "CheckpointStorage CustomCheckpointStorage FileSystemCheckpointStorage JobManagerCheckpointStorage"
    ),
    _STATE_BACKENDS: (
        "CustomStateBackend EmbeddedRocksDBStateBackend FsStateBackend HashMapStateBackend MemoryStateBackend"
        " PredefinedOptions RocksDBStateBackend StateBackend"
    ),
    _RESTARTS: "RestartStrategies RestartStrategyConfiguration",
    "Spark schedules the tasks, and has its own memory settings: drop it": "MemorySize SlotSharingGroup",
    _OF_ENVIRONMENT: "Configuration ExecutionConfig ExecutionMode",
    "a stream has event time after assign_timestamps_and_watermarks(...): drop it": "TimeCharacteristic",
    _READ: (
        "FileSource FlinkKafkaConsumer HybridSource KafkaOffsetsInitializer KafkaSource NumberSequenceSource"
        " PulsarSource Source SourceFunction StreamFormat"
    ),
    _WRITE: (
        "DeliveryGuarantee Elasticsearch7SinkBuilder Encoder FileSink FlinkKafkaProducer KafkaSink"
        " KafkaRecordSerializationSchema OutputFileConfig PulsarSink RollingPolicy Sink SinkFunction"
    ),
    _FORMATS: (
        "AvroRowDeserializationSchema AvroRowSerializationSchema CsvRowDeserializationSchema"
        " CsvRowSerializationSchema DeserializationSchema JsonRowDeserializationSchema JsonRowSerializationSchema"
        " SerializationSchema SimpleStringSchema"
    ),
    "end the stream with to_dataframe(...), and use Spark's SQL on that": (
        "EnvironmentSettings StreamTableEnvironment Table TableEnvironment"
    ),
    "end the stream with to_dataframe(...), and persist that": "CachedDataStream",
    "execute_and_collect() returns an iterable, which is also a context manager": "CloseableIterator",
    "there are no changelog streams, so a row has no kind": "RowKind",
    "use datetime": "Instant",
    _QUERIES: "CompletableFuture JobClient JobExecutionResult JobID JobStatus",
    "functions return or yield results, and (tag, result) for a side output": "Collector",
}
_ADVICE = {name: advice for advice, names in _CLASSES.items() for name in names.split()}

_CLOSES_WINDOWS = "reduce(...), aggregate(...), apply(...) or process(...)"


def missing_class(name: str) -> MissingClassError | None:
    if name not in _ADVICE:
        return None
    return MissingClassError(f"pillarbox has no class {name}: {_ADVICE[name]}")


def unknown(thing: object, name: str, advice: str | None = None) -> AttributeError:
    if advice is not None:
        return MissingMethodError(advice)
    return AttributeError(f"{type(thing).__name__!r} object has no attribute {name!r}", name=name, obj=thing)


def missing_in_environment(env: object, name: str) -> AttributeError:
    instead = _OF_ENVIRONMENTS.get(name)
    return unknown(env, name, instead and f"pillarbox's environment has no {name}(): {instead}")


def missing_in_sink(sink: object, name: str) -> AttributeError:
    instead = _OF_STREAMS.get(name)
    return unknown(sink, name, instead and f"pillarbox's sinks have no {name}(): {instead}")


def missing(stream: object, name: str) -> AttributeError:
    from pillarbox._datastream.streams.data_stream import DataStream
    from pillarbox._datastream.streams.keyed_stream import KeyedStream
    from pillarbox._datastream.windows.windowed_stream import WindowedStream

    advice: str | None = None
    if name.startswith("_"):
        pass
    elif not isinstance(stream, DataStream):
        if hasattr(KeyedStream, name):
            advice = f"windows have no {name}(), because they have no results yet: put {_CLOSES_WINDOWS} before it"
    elif name in _OF_STREAMS:
        advice = f"pillarbox's streams have no {name}(): {_OF_STREAMS[name]}"
    elif name in ("window", "count_window"):
        advice = (
            f"{name}() divides a stream by key: put key_by(...) before it, or use {name}_all(...) for the whole stream"
        )
    elif hasattr(KeyedStream, name):
        advice = f"{name}() needs a keyed stream: put key_by(...) before it"
        if hasattr(WindowedStream, name):
            advice += ", or window_all(...) for windows over the whole stream"
    elif hasattr(WindowedStream, name):
        before = "window(...)" if isinstance(stream, KeyedStream) else "key_by(...).window(...), or window_all(...),"
        advice = f"{name}() is a method of windows: put {before} before it"
    return unknown(stream, name, advice)
