"""Reports of page and doctor about faulty and healthy queries on a real local Spark.

``python -m tests.sick [NAME ...]`` starts a faulty query for each rule that a query on this machine can break, and ten
healthy queries. It exits with 1 unless page and doctor report each fault with its remedy, and nothing else. ``--out
DIR`` writes the reports into numbered files, for a reader who does not know the faults; ``answers.json`` contains the
names.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import time
from pathlib import Path

from pillarbox._runtime.spark.session.local_session import local_session
from tests.sick.faults import FAULTS, Fault
from tests.sick.healthy import HEALTHY, Healthy
from tests.sick.room import Reports, Room

Case = Fault | Healthy


def name_of(case: Case) -> str:
    return case.rule if isinstance(case, Fault) else case.name


def wrong_in(case: Case, reports: Reports) -> list[str]:
    expected = {case.rule} if isinstance(case, Fault) else set()
    allowed = expected | set(case.also if isinstance(case, Fault) else ())
    problems = []
    for reporter, result in (("page", reports.page), ("doctor", reports.doctor)):
        problems += [f"{reporter}: no finding of {rule}" for rule in expected - result.keys()]
        problems += [f"{reporter}: {rule}: {result[rule]}" for rule in sorted(result.keys() - allowed)]
        if isinstance(case, Fault) and not re.search(case.remedy, result.get(case.rule, ""), re.DOTALL):
            problems.append(f"{reporter}: not the remedy: {result.get(case.rule)}")
    if not isinstance(case, Fault) and reports.conditions:
        problems.append(f"page: {reports.conditions}")
    return problems


def looked_at(case: Case, room: Room) -> Reports:
    if isinstance(case, Fault) and case.is_live:
        reports = room.look_until(case.rule)
    elif case.is_live:
        reports = room.look()
    else:
        room.stop()
        reports = room.look()
    (room.marks / "go").touch()
    return reports


def text_of(reports: Reports, doctor: str) -> str:
    page = [f"Status: {reports.status}", *reports.conditions, *reports.page.values()]
    return "The page says:\n" + "\n".join(page) + "\n\npillarbox doctor CHECKPOINT prints:\n" + doctor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="rules, or names of healthy queries; all by default")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    cases: list[Case] = [
        case for case in (*FAULTS, *HEALTHY) if not arguments.names or name_of(case) in arguments.names
    ]
    texts: dict[str, str] = {}
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        # Tasks are tried again.
        spark = local_session(4, spark__master="local[4, 4]")
        rooms = {name_of(case): Room(spark, Path(folder) / name_of(case)) for case in cases}

        def finish(case: Case) -> None:
            room, name = rooms[name_of(case)], name_of(case)
            reports = looked_at(case, room)
            room.stop()
            problems = wrong_in(case, reports)
            texts[name] = text_of(reports, room.doctors_words())
            print(f"{'FAILED' if problems else 'ok':7}{name}", flush=True)
            for problem in problems:
                print(f"       {problem}", flush=True)
            failed.extend([name] * bool(problems))

        waiting: list[Case] = []
        for case in cases:
            began = time.monotonic()
            try:
                case.run(rooms[name_of(case)])
                if name_of(case) in ("driver_gone", "silent_source", "trigger_of_an_hour"):
                    waiting.append(case)
                else:
                    finish(case)
            except Exception as error:
                print(f"FAILED {name_of(case)}: {type(error).__name__}: {str(error)[:2000]}", flush=True)
                failed.append(name_of(case))
                rooms[name_of(case)].stop()
            print(f"       {time.monotonic() - began:.0f} s", flush=True)
        for case in waiting:
            finish(case)
        spark.stop()
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        names = random.sample(sorted(texts), len(texts))
        for number, name in enumerate(names, 1):
            (arguments.out / f"query-{number:02}.txt").write_text(texts[name])
        (arguments.out / "answers.json").write_text(json.dumps(dict(enumerate(names, 1)), indent=1))
    print(f"{len(cases)} queries, {len(failed)} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
