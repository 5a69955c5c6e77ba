"""Finds stolen cards in a stream of payments, and asks a model about them: steps 1 to 5 of the tutorial."""

import json
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from model import serve

from pillarbox import (
    DeadLetter,
    KeyedProcessFunction,
    MapStateDescriptor,
    OutputTag,
    Row,
    RuntimeContext,
    StreamExecutionEnvironment,
    WatermarkStrategy,
    local_session,
)

MINUTE = 60_000  # milliseconds
RAW = "id LONG, card STRING, at TIMESTAMP, amount STRING, country STRING"
BAD = OutputTag[DeadLetter]("bad")


def parse(payment: Row) -> Any:
    return payment.id, payment.card, payment.at, float(payment.amount)


class CardTest(KeyedProcessFunction[str, Row, Any]):
    """A thief tries a stolen card with a very small payment, and makes a large one within a minute."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.tries = runtime_context.get_map_state(MapStateDescriptor("tries", int, float))  # amounts, by time

    def process_element(self, payment: Row, ctx: Any) -> Iterator[tuple[Any, ...]]:
        now = ctx.timestamp()
        if payment.amount < 1:
            self.tries[now] = payment.amount
            ctx.timer_service().register_event_time_timer(now + MINUTE)
        elif payment.amount > 500:
            recent = [at for at in self.tries if now - at <= MINUTE]
            if recent:
                yield "stolen", payment.card, payment.at, payment.amount
            for at in recent:
                del self.tries[at]

    def on_timer(self, now: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        amount = self.tries.get(now - MINUTE)
        if amount is not None:  # no large payment has followed
            yield "tried", ctx.get_current_key(), datetime.fromtimestamp(now / 1000 - 60, timezone.utc), amount
            del self.tries[now - MINUTE]


spark = local_session()
payments = spark.read.csv(str(Path(__file__).parent / "payments"), header=True, schema=RAW)
times = WatermarkStrategy.for_bounded_out_of_orderness("30 seconds").with_timestamp_assigner("at")
env = StreamExecutionEnvironment.get_execution_environment(spark)
parsed = env.from_dataframe(payments).map(parse, "id LONG, card STRING, at TIMESTAMP, amount DOUBLE", on_error=BAD)
in_order = parsed.assign_timestamps_and_watermarks(times).key_by("card").in_event_time_order().uid("in-order")
alerts = in_order.key_by("card").process(CardTest(), "kind STRING, card STRING, at TIMESTAMP, amount DOUBLE")
letters = parsed.get_side_output(BAD).map(DeadLetter.as_text, DeadLetter.COLUMNS)

with serve(0) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/score?"

    def score(alert: Row) -> tuple[Any, ...]:
        with urlopen(address + urlencode({"card": alert.card, "amount": alert.amount}), timeout=5) as answer:
            return alert.card, alert.at, alert.amount, json.load(answer)["score"]

    columns = "card STRING, at TIMESTAMP, amount DOUBLE, score DOUBLE"
    stolen = alerts.uid("card-test").filter(lambda alert: alert.kind == "stolen")
    scored = stolen.map_async(score, columns, job_rate_limit=15, retry=8, timeout="1 minute").uid("score")
    scored.to_dataframe().orderBy("amount", ascending=False).show(5)
letters.to_dataframe().select("error").orderBy("error").show(truncate=False)
