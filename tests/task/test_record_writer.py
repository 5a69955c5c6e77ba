from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import Row
from pillarbox._elements.buffers import channel_code, decode
from pillarbox._elements.elements import Barrier, EndOfData, Watermark, WatermarkStatus
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._errors import KeyTypeError, OperatorError, ProgramError
from pillarbox._operators.frame.keying import Keying
from pillarbox._state.keys.key_groups import subtask_of_key
from pillarbox._task.network import record_writer
from pillarbox._task.network.partitioner import KeyGroupPartitioner, OutputPartitioner, RebalancePartitioner
from pillarbox._task.network.record_writer import RecordWriter
from pillarbox._task.vertex import VertexEdge, edge_id
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP

TARGETS = [10, 11, 12]
OUTPUT = -2


def edge_by(key, targets=TARGETS, max_parallelism=128):
    return edge_with(KeyGroupPartitioner(Keying(key, "key_by")), targets, max_parallelism)


def edge_with(partitioner, targets=TARGETS, max_parallelism=128):
    return VertexEdge(1, 0, edge_id(0), list(targets), partitioner, max_parallelism, "sender")


def writer_of(*edges, subtask=7):
    writer = RecordWriter(list(edges))
    writer.begin_epoch(subtask, 0)
    return writer


def elements_of(buffers, subtask=7):
    got: dict[int, list[Any]] = {}
    for buffer in buffers:
        assert buffer.channel == channel_code(edge_id(0), subtask)
        assert buffer.seq == len(got.setdefault(buffer.target, []))
        got[buffer.target].append(decode(buffer.payload))
    return got


def flat(elements):
    return [x for element in elements for x in (element.values if isinstance(element, Records) else [element])]


def by_subtask(keys, parallelism=3, max_parallelism=128):
    return {
        target: [key for key in keys if subtask_of_key(key, max_parallelism, parallelism) == n]
        for n, target in enumerate(TARGETS)
    }


@given(st.lists(st.lists(st.integers(), max_size=10), max_size=8), st.integers(0, 5), st.booleans())
def test_rebalance_deals_out_equal_shares_in_order(runs, subtask, columnar):
    def divided():
        writer = writer_of(edge_with(RebalancePartitioner()), subtask=subtask)
        for run in runs:
            records = Records(list(run), list(run))
            if columnar:
                column = pa.array([value % 2**60 for value in run], pa.int64())
                records = ArrowRecords(pa.RecordBatch.from_arrays([column], names=["n"]))
            writer.edges[0].process_records(records)
        writer.flush()
        return {target: flat(elements) for target, elements in elements_of(writer.take(), subtask).items()}

    got = divided()
    assert got == divided()  # an epoch that is run again sends the same to the same
    sizes = [len(got.get(target, ())) for target in TARGETS]
    assert max(sizes) - min(sizes) <= 1
    everything = [value % 2**60 if columnar else value for run in runs for value in run]
    flattened = [value[0] if columnar else value for values in got.values() for value in values]
    assert sorted(flattened) == sorted(everything)


def test_rebalance_keeps_the_order_from_one_subtask_to_another():
    writer = writer_of(edge_with(RebalancePartitioner()))
    for start in range(0, 100, 10):
        writer.edges[0].process_records(Records(list(range(start, start + 10))))
    writer.flush()
    assert all(flat(elements) == sorted(flat(elements)) for elements in elements_of(writer.take()).values())


def test_two_edges_to_the_same_subtasks_have_channels_of_their_own():
    first, second = edge_by(lambda value: value), edge_by(lambda value: -value)
    second.id = edge_id(0, 1)
    writer = writer_of(first, second)
    for edge in writer.edges:
        edge.process_records(Records([1, 2, 3]))
    writer.broadcast(Barrier(1))
    seen: dict[tuple[int, int], list[Any]] = {}
    for buffer in writer.take():
        assert buffer.seq == len(seen.setdefault((buffer.channel, buffer.target), []))
        seen[buffer.channel, buffer.target].append(decode(buffer.payload))
    assert {channel for channel, _ in seen} == {channel_code(edge_id(0, ordinal), 7) for ordinal in (0, 1)}
    assert all(elements[-1] == Barrier(1) for elements in seen.values()) and len(seen) == 6


RUNS = st.lists(st.tuples(st.lists(st.integers(-50, 50)), st.booleans()))


@given(RUNS, st.integers(1, 30))
def test_each_record_reaches_its_subtask_in_order(runs, buffer_records):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_writer, "_BUFFER_RECORDS", buffer_records)
        writer = writer_of(edge_by(lambda value: value))
        for values, stamped in runs:
            writer.edges[0].process_records(Records(values, values if stamped else None))
        writer.flush()
    got = elements_of(writer.take())
    everything = [value for values, _ in runs for value in values]
    assert {target: flat(got.get(target, [])) for target in TARGETS} == by_subtask(everything)
    assert writer.records_out == len(everything)
    for elements in got.values():
        for element in elements:
            assert isinstance(element, Records)
            assert element.timestamps in (None, element.values)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.integers(1, 40))
def test_columns_and_rows_go_the_same_way(keys, parallelism):
    for kind in (pa.int64(), pa.float64(), pa.string()):
        convert = {pa.int64(): int, pa.float64(): float, pa.string(): str}[kind]
        batch = pa.RecordBatch.from_arrays([pa.array([convert(key) for key in keys], kind)], names=["k"])
        targets = range(100, 100 + parallelism)
        routes = []
        for records in (ArrowRecords(batch), Records(ArrowRecords(batch).values)):
            writer = writer_of(edge_by("k", targets))
            writer.edges[0].process_records(records)
            writer.flush()
            routes.append({target: flat(elements) for target, elements in elements_of(writer.take()).items()})
        assert routes[0] == routes[1]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.uint8(), pa.uint64(), pa.int64(), pa.float32(), pa.bool_()])
def test_the_columns_type_does_not_matter(kind):
    values = [0, 1] if kind == pa.bool_() else [0, 1, 100]
    column = pa.array(values).cast(kind)
    writer = writer_of(edge_by("k"))
    writer.edges[0].process_records(ArrowRecords(pa.RecordBatch.from_arrays([column], names=["k"])))
    writer.flush()
    got = {target: [row[0] for row in flat(elements)] for target, elements in elements_of(writer.take()).items()}
    assert {target: got.get(target, []) for target in TARGETS} == by_subtask(values)


def test_nulls_and_several_key_columns():
    batch = pa.RecordBatch.from_arrays([pa.array([1, None, 1]), pa.array(["a", "b", "a"])], names=["n", "s"])
    for key in ("n", ["n", "s"]):
        routes = []
        for records in (ArrowRecords(batch), Records(ArrowRecords(batch).values)):
            writer = writer_of(edge_by(key))
            writer.edges[0].process_records(records)
            writer.flush()
            routes.append({target: flat(elements) for target, elements in elements_of(writer.take()).items()})
        assert routes[0] == routes[1]
        assert sum(map(len, routes[0].values())) == 3


def test_columnar_and_plain_runs_keep_their_order():
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2])], names=["k"])
    other = pa.RecordBatch.from_arrays([pa.array([5]), pa.array(["x"])], names=["k", "s"])
    writer = writer_of(edge_by("k", [10]))
    put = writer.edges[0].process_records
    put(ArrowRecords(batch))
    put(ArrowRecords(batch))
    put(ArrowRecords(batch, np.array([1, 2])))
    put(Records([Row.of(k=3)]))
    put(Records([Row.of(k=4)], [9]))
    put(ArrowRecords(other))
    writer.flush()
    elements = elements_of(writer.take())[10]
    assert [row[0] for row in flat(elements)] == [1, 2, 1, 2, 1, 2, 3, 4, 5]
    assert len(elements) == 5  # runs of one kind share a buffer


@given(
    st.lists(st.integers(0, 20).map(lambda n: n) | st.just("wm") | st.just("barrier"), max_size=60), st.integers(1, 5)
)
def test_a_watermark_never_overtakes_a_record(steps, buffer_records):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_writer, "_BUFFER_RECORDS", buffer_records)
        writer = writer_of(edge_by(lambda value: value[1]))
        event_time = 0
        for position, step in enumerate(steps):
            if step == "wm":
                event_time = position + 1
                writer.edges[0].process_watermark(event_time)
            elif step == "barrier":
                writer.broadcast(Barrier(1))
            else:
                writer.edges[0].process_records(Records([(event_time, step)]))
        writer.broadcast(Barrier(2))
    for elements in elements_of(writer.take()).values():
        before = MIN_TIMESTAMP
        for element in elements:
            if isinstance(element, Watermark):
                assert element.timestamp >= before
                before = element.timestamp
            elif isinstance(element, Records):
                # A record that was written before a sent watermark would have been overtaken.
                assert all(value[0] >= before for value in element.values)
        assert isinstance(elements[-1], Barrier)
        assert before == event_time or (before == MIN_TIMESTAMP and event_time == 0)


def test_records_without_any_watermark_hold_back_event_time():
    writer = writer_of(edge_by(lambda value: value))
    writer.edges[0].process_records(Records([1]))
    writer.broadcast(Barrier(1))
    assert all(Watermark(MIN_TIMESTAMP) in elements for elements in elements_of(writer.take()).values())
    writer.begin_epoch(7, 0)
    writer.broadcast(Barrier(2))
    assert elements_of(writer.take()) == {target: [Barrier(2)] for target in TARGETS}
    writer.begin_epoch(7, 0)
    writer.edges[0].process_records(Records([1]))
    writer.edges[0].process_watermark(5)
    writer.broadcast(EndOfData())
    assert all(flat(elements)[-2:] == [Watermark(5), EndOfData()] for elements in elements_of(writer.take()).values())


def test_an_output_gets_records_only():
    writer = writer_of(edge_with(OutputPartitioner(), [OUTPUT]), edge_by(lambda value: value))
    for edge in writer.edges:
        edge.process_records(Records([1]))
        edge.process_watermark(5)
        edge.process_status(True)
    writer.broadcast(Barrier(1))
    got = elements_of(writer.take())
    assert flat(got[OUTPUT]) == [1]
    assert [flat(got[target])[-3:] for target in TARGETS] == [[Watermark(5), WatermarkStatus(True), Barrier(1)]] * 3


def test_the_queue_is_bounded(monkeypatch):
    monkeypatch.setattr(record_writer, "_QUEUE_BYTES", 1000)
    writer = writer_of(edge_by(lambda value: 0, [10]))
    assert writer.is_available
    writer.edges[0].process_records(Records([bytes(2000)]))
    writer.flush()
    assert not writer.is_available
    assert writer.bytes_out > 2000
    assert len(writer.take()) == 1
    assert writer.is_available and writer.take() == []


def test_buffers_are_of_a_good_size(monkeypatch):
    monkeypatch.setattr(record_writer, "_BUFFER_BYTES", 10_000)
    writer = writer_of(edge_by(lambda value: 0, [10]))
    for n in range(3000):
        writer.edges[0].process_records(Records([f"{n:060}"]))
    writer.flush()
    sizes = [len(buffer.payload) for buffer in writer.take()][:-1]
    assert len(sizes) > 5
    assert all(3_000 < size < 30_000 for size in sizes)


@pytest.mark.parametrize(
    ("sizes", "run"),
    [
        pytest.param([3_000] * 200, 1, id="large from the first"),
        pytest.param([10] * 2_000 + [3_000] * 200, 1, id="small, then large"),
        pytest.param([10] * 2_000 + [3_000] * 200, 7, id="small, then large, some at once"),
        pytest.param([3_000] * 200, 200, id="large, all at once"),
        pytest.param([10, 3_000] * 200, 400, id="mixed, all at once"),
    ],
)
def test_buffers_of_large_records_are_of_a_good_size(monkeypatch, sizes, run):
    monkeypatch.setattr(record_writer, "_BUFFER_BYTES", 10_000)
    writer = writer_of(edge_by(lambda value: 0, [10]))
    values = [bytes([n % 256]) * size for n, size in enumerate(sizes)]
    for start in range(0, len(values), run):
        records = Records(values[start : start + run], list(range(start, start + len(values[start : start + run]))))
        writer.edges[0].process_records(records)
    writer.flush()
    sent: list[Any] = [decode(buffer.payload) for buffer in writer.take()]
    assert [value for records in sent for value in records.values] == values
    assert [stamp for records in sent for stamp in records.timestamps] == list(range(len(values)))
    # It is looked at one of 61: so a buffer has at most so many that nothing was known of.
    assert max(sum(map(len, records.values)) for records in sent) <= 20_000 + 64 * 3_000
    assert max(len(records) for records in sent if len(records.values[-1]) == 3_000 == len(records.values[0])) <= 64


@pytest.mark.parametrize("texts", [False, True])
def test_buffers_of_columns_are_of_a_good_size(monkeypatch, texts):
    monkeypatch.setattr(record_writer, "_BUFFER_BYTES", 10_000)
    writer = writer_of(edge_by("key"))
    keys = np.arange(600)
    columns = {"key": pa.array(keys), "amount": pa.array(keys)}
    large = by_subtask(range(600))[TARGETS[0]][0]
    if texts:
        columns["text"] = pa.array(["x" * (2_000 if key == large else 2) for key in keys.tolist()])
    for _ in range(30):
        writer.edges[0].process_records(ArrowRecords(pa.RecordBatch.from_pydict(columns), keys))
    writer.flush()
    sent = elements_of(writer.take())
    for target, records in sent.items():
        sizes = [record.batch.nbytes for record in records[:-1]]
        share = records[-1].batch.nbytes / len(records[-1]) * 250 + 2_000
        assert len(sizes) >= 5 and all(10_000 <= size < 10_000 + share for size in sizes), target


def test_sequence_numbers_start_anew_in_an_epoch():
    writer = writer_of(edge_by(lambda value: 0, [10]))
    writer.broadcast(Barrier(1))
    writer.take()
    writer.begin_epoch(8, 0)
    writer.broadcast(Barrier(2))
    assert [(buffer.channel, buffer.seq) for buffer in writer.take()] == [(8, 0)]


@pytest.mark.parametrize("key", [[], object(), {}, float("nan")])
def test_keys_that_cannot_be_routed_are_named(key):
    writer = writer_of(edge_by(lambda value: value[1]))
    reason = "which is or contains NaN" if isinstance(key, float) else "which cannot be hashed"
    with pytest.raises(KeyTypeError, match=rf"'key_by': the record \('guilty'.* {reason}"):
        writer.edges[0].process_records(Records([("innocent", 1), ("guilty", key)]))


def test_key_functions_and_columns_that_fail_are_named():
    def half(value):
        return 1 / value

    with pytest.raises(OperatorError, match=r"'key_by': the key function failed at the record 0: ZeroDivisionError"):
        writer_of(edge_by(half)).edges[0].process_records(Records([1, 0]))
    batch = pa.RecordBatch.from_arrays([pa.array([1])], names=["k"])
    with pytest.raises(ProgramError, match="no column 'zzz' to key by; the columns are k"):
        writer_of(edge_by("zzz")).edges[0].process_records(ArrowRecords(batch))
    for record in (Row.of(k=1), {"k": 1}, object()):
        with pytest.raises(OperatorError, match=r"failed at the record .*count"):
            writer_of(edge_by("count")).edges[0].process_records(Records([record]))


def test_many_keys_are_not_remembered_for_ever(monkeypatch):
    from pillarbox._operators.frame import keying as keys

    monkeypatch.setattr(keys, "_REMEMBERED", 10)
    writer = writer_of(edge_by(lambda value: value))
    writer.edges[0].process_records(Records(list(range(100))))
    assert len(writer.edges[0]._selector._router._routes) <= 10
    writer.flush()
    assert {t: flat(e) for t, e in elements_of(writer.take()).items()} == by_subtask(range(100))


def test_keys_are_checked_at_parallelism_one_as_well():
    with pytest.raises(KeyTypeError):
        writer_of(edge_by(lambda value: value, [10])).edges[0].process_records(Records([float("nan")]))


def test_a_watermark_need_not_wait_for_the_end_of_the_epoch(monkeypatch):
    monkeypatch.setattr(record_writer, "_BUFFER_RECORDS", 3)
    writer = writer_of(edge_by(lambda value: value, [10, 11]))
    writer.edges[0].process_watermark(5)
    assert writer.take() == []
    writer.edges[0].process_records(Records([1] * 3))
    got = elements_of(writer.take())
    assert sorted(got) == [10, 11]
    assert all(Watermark(5) in elements for elements in got.values())
