"""Errors for methods of another kind of stream, or of Flink only: where the method exists, or its replacement."""

from __future__ import annotations

from pillarbox._errors import MissingClassError, MissingMethodError

_WRITE = "end the stream with to_dataframe(...), and write that with Spark"
_BUFFERS = "buffers are sent when they are full, and when a micro-batch ends: leave the call out"
_SCHEDULED = "Spark schedules the tasks: leave the call out"
_TYPES = "types are those that output_type=... declares, where one is needed"
_EPOCHS = (
    "each micro-batch is a checkpoint, exactly-once: leave the call out; the query's trigger says how often, and its"
    " checkpointLocation where"
)
_READ = "read it with Spark, and begin with from_dataframe(spark.readStream...)"
_SHIPPED = "the session ships files: spark.addArtifact(..., pyfile=True), or spark-submit --py-files and --archives"
_SPARKS = "Spark's own settings hold: leave the call out"

# Methods of PyFlink classes, and Java methods from Flink's documentation, that have no equivalent of the same name.
_OF_STREAMS = {
    "add_sink": _WRITE,
    "cache": "end the stream with to_dataframe(...), and persist that",
    "force_non_parallel": "say set_parallelism(1)",
    "full_window_partition": (
        "say window(GlobalWindows.create_with_end_of_stream_trigger()) after key_by(...), or window_all(...) with it;"
        " a subtask's part of a stream has no window of its own"
    ),
    "get_execution_config": "there is none: say env.set_parallelism(...) and the like",
    "get_type": _TYPES,
    "iterate": "a program has no loops: write what has to come back with Spark, and read it as another source",
    "project": "say map(...)",
    "set_buffer_timeout": _BUFFERS,
    "set_description": "say name(...)",
    "set_max_parallelism": "it is one number for the program: say env.set_max_parallelism(...)",
    "set_uid_hash": "state is stored under the uid: say uid(...)",
    "sink_to": _WRITE,
    "slot_sharing_group": _SCHEDULED,
}
_OF_ENVIRONMENTS = {
    "add_classpaths": "jars belong to the session: spark.jars or spark.jars.packages",
    "add_jars": "jars belong to the session: spark.jars or spark.jars.packages",
    "add_python_archive": _SHIPPED,
    "add_python_file": _SHIPPED,
    "add_source": _READ,
    "close": "nothing is held: leave the call out",
    "configure": _SPARKS,
    "create_input": _READ,
    "enable_changelog_state_backend": "state is always written as a log of changes: leave the call out",
    "enable_checkpointing": _EPOCHS,
    "execute_async": "pillarbox.start(stream.to_dataframe(...).writeStream...) starts a query, and returns it",
    "from_data": "say from_collection([...])",
    "from_elements": "say from_collection([...])",
    "from_parallel_collection": "say from_collection(...)",
    "from_sequence": "say from_collection(range(first, last + 1)), or from_dataframe(spark.range(first, last + 1))",
    "from_source": _READ,
    "generate_sequence": "say from_collection(range(first, last + 1)), or from_dataframe(spark.range(first, last + 1))",
    "get_buffer_timeout": _BUFFERS,
    "get_checkpoint_config": _EPOCHS,
    "get_checkpoint_interval": _EPOCHS,
    "get_checkpointing_consistency_mode": _EPOCHS,
    "get_checkpointing_mode": _EPOCHS,
    "get_config": "there is none: say set_parallelism(...) and the like; watermarks are sent without an interval",
    "get_default_local_parallelism": "say get_parallelism()",
    "get_default_savepoint_directory": "a savepoint is given its directory: pillarbox.savepoint(...)",
    "get_execution_plan": "say get_execution_graph()",
    "is_changelog_state_backend_enabled": "state is always written as a log of changes",
    "is_chaining_of_operators_with_different_max_parallelism_enabled": "all operators have one max parallelism",
    "is_force_unaligned_checkpoints": _EPOCHS,
    "is_unaligned_checkpoints_enabled": _EPOCHS,
    "read_file": _READ,
    "read_text_file": _READ,
    "register_cached_file": "ship it with the session: spark.addArtifact(..., file=True)",
    "register_slot_sharing_group": _SCHEDULED,
    "set_buffer_timeout": _BUFFERS,
    "set_default_local_parallelism": "say set_parallelism(...)",
    "set_default_savepoint_directory": "a savepoint is given its directory: pillarbox.savepoint(...)",
    "set_python_executable": "workers have the Python of PYSPARK_PYTHON, or spark.pyspark.python",
    "set_python_requirements": _SHIPPED,
    "set_restart_strategy": "Spark runs failed tasks again (spark.task.maxFailures): leave the call out",
    "set_state_backend": "state lies in the workers, and in the checkpoint: leave the call out",
    "set_stream_time_characteristic": "a stream has event time once it has watermarks: leave the call out",
    "socket_text_stream": _READ,
}
# PyFlink's classes, with their replacements.
_STATE_BACKENDS = "state lies in the workers, and in the query's checkpoint: leave it out"
_RESTARTS = "Spark runs failed tasks again (spark.task.maxFailures): leave it out"
_OF_ENVIRONMENT = "settings belong to the Spark session, or to the environment: env.set_parallelism(...) and the like"
_FORMATS = "Spark reads and writes formats: from_json(...), to_json(...) and the like on the columns of a DataFrame"
_QUERIES = "pillarbox.start(...) returns Spark's StreamingQuery"
_CLASSES = {
    _EPOCHS: "CheckpointConfig CheckpointingMode ExternalizedCheckpointCleanup ExternalizedCheckpointRetention",
    "the query's checkpointLocation says where checkpoints are: leave it out": (
        "CheckpointStorage CustomCheckpointStorage FileSystemCheckpointStorage JobManagerCheckpointStorage"
    ),
    _STATE_BACKENDS: (
        "CustomStateBackend EmbeddedRocksDBStateBackend FsStateBackend HashMapStateBackend MemoryStateBackend"
        " PredefinedOptions RocksDBStateBackend StateBackend"
    ),
    _RESTARTS: "RestartStrategies RestartStrategyConfiguration",
    "Spark schedules the tasks, and has its own settings of memory: leave it out": "MemorySize SlotSharingGroup",
    _OF_ENVIRONMENT: "Configuration ExecutionConfig ExecutionMode",
    "a stream has event time after assign_timestamps_and_watermarks(...): leave it out": "TimeCharacteristic",
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
    "execute_and_collect() returns results that can be iterated, in a with statement, too": "CloseableIterator",
    "there are no changelog streams, so a row has no kind": "RowKind",
    "it is a datetime here": "Instant",
    _QUERIES: "CompletableFuture JobClient JobExecutionResult JobID JobStatus",
    "functions return or yield their results, and results for a side output as a tuple of tag and result": "Collector",
}
_ADVICE = {name: advice for advice, names in _CLASSES.items() for name in names.split()}

_CLOSES_WINDOWS = "reduce(...), aggregate(...), apply(...) or process(...)"


def missing_class(name: str) -> MissingClassError | None:
    """Return the error for a class of PyFlink's that pillarbox does not have, or None for an unknown class."""
    if name not in _ADVICE:
        return None
    return MissingClassError(f"{name} is a class of Flink's, and not of pillarbox's: {_ADVICE[name]}")


def unknown(thing: object, name: str, advice: str | None = None) -> AttributeError:
    """Return the error for an attribute that an object does not have.

    Args:
        advice: the whole message, where something is known of a method of this name.
    """
    if advice is not None:
        return MissingMethodError(advice)
    return AttributeError(f"{type(thing).__name__!r} object has no attribute {name!r}", name=name, obj=thing)


def missing_in_environment(env: object, name: str) -> AttributeError:
    """Return the error for a method that an environment does not have."""
    instead = _OF_ENVIRONMENTS.get(name)
    return unknown(env, name, instead and f"{name}() is a method of Flink's environment only: {instead}")


def missing_in_sink(sink: object, name: str) -> AttributeError:
    """Return the error for a method that a sink does not have."""
    instead = _OF_STREAMS.get(name)
    return unknown(sink, name, instead and f"{name}() is a method of Flink's sinks only: {instead}")


def missing(stream: object, name: str) -> AttributeError:
    """Return the error for a method that a stream does not have."""
    from pillarbox._datastream.streams.data_stream import DataStream
    from pillarbox._datastream.streams.keyed_stream import KeyedStream
    from pillarbox._datastream.windows.windowed_stream import WindowedStream

    advice: str | None = None
    if name.startswith("_"):
        pass
    elif not isinstance(stream, DataStream):
        if hasattr(KeyedStream, name):
            advice = f"{name}() cannot be asked of windows, which have no results yet: put {_CLOSES_WINDOWS} before it"
    elif name in _OF_STREAMS:
        advice = f"{name}() is a method of Flink's streams, and not of pillarbox's: {_OF_STREAMS[name]}"
    elif name in ("window", "count_window"):
        advice = (
            f"{name}() divides a stream by key: put key_by(...) before it, or use {name}_all(...) for all of the stream"
        )
    elif hasattr(KeyedStream, name):
        advice = f"{name}() works by key: put key_by(...) before it"
        if hasattr(WindowedStream, name):
            advice += ", or window_all(...) for windows over all of the stream"
    elif hasattr(WindowedStream, name):
        before = "window(...)" if isinstance(stream, KeyedStream) else "key_by(...).window(...), or window_all(...),"
        advice = f"{name}() is a method of windows: put {before} before it"
    return unknown(stream, name, advice)
