"""``python -m client bench``: put load on a server, print what users would notice, write it all as JSON."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from client.bench.distribution import METHOD
from client.bench.machine import describe
from client.bench.metrics import metrics_address
from client.bench.report import report
from client.bench.schedule import ARRIVALS
from client.bench.session import Plan, Session
from client.commands.bench_requests import KINDS, add_requests, make_workload, source
from client.commands.options import add_server, check_writable, count, count_or_none, counts, rates, seconds, timeouts
from client.errors import InvalidArgument
from client.local_server import running_server

CONCURRENCIES = (1, 4, 16)
DURATION_S = 30.0
INTERRUPTED = 130


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "bench",
        help="measure a server under load",
        description="Measures a server at several loads: closed loop (so many requests at a time, each followed by "
        "the next) or open loop (requests at a rate, whatever the server does). The tables go to stdout, progress to "
        "stderr.",
        epilog="Without --url a server of this checkout is started for it and stopped afterwards. Request i of a "
        "level says text i, or sends clip i, from the top again at the end of the list, with seed SEED+i. The client "
        "is one process: good for about 64 streams; its share of a core is printed, with a warning above 80 %. "
        "Exit code: 0 measured, 1 the server or a file failed, or no request came to its end, 2 wrong usage, "
        "130 interrupted (what there is is printed).",
    )
    add = parser.add_argument
    add(
        "what",
        nargs="?",
        default="tts",
        choices=list(KINDS),
        help="what to measure: tts, text to speech (tts); asr, back",
    )
    add_server(
        parser,
        None,
        which="tts or asr",
        waits="tts: 60 for the first, 10 for each later one; asr: 60",
        url=None,
        without="absent: start one on free ports",
    )
    add(
        "--serve-arg",
        action="append",
        default=[],
        metavar="ARG",
        help="without --url: passed on to serve.py, as --serve-arg=--set --serve-arg=STAGE.KEY=VALUE",
    )
    add(
        "--metrics-url",
        metavar="ADDR",
        help="host:port or URL of the server's metrics (port 8002 of the host in --url)",
    )
    load = parser.add_argument_group("load")
    add = load.add_argument
    which = load.add_mutually_exclusive_group()
    which.add_argument("--concurrency", type=counts, metavar="N,N…", help="closed loop: requests at a time (1,4,16)")
    which.add_argument("--rate", type=rates, metavar="R,R…", help="open loop: requests a second")
    add("--requests", type=count, metavar="N", help="requests of each level")
    add("--duration", type=seconds, metavar="S", help="seconds in which a level sends requests (30 unless --requests)")
    add("--warmup", type=count_or_none, metavar="N", help="requests before a level, not counted (those at a time; 4)")
    add("--arrivals", choices=ARRIVALS, default="poisson", help="open loop: gaps between requests (poisson)")
    add("--arrival-seed", type=int, default=0, metavar="N", help="open loop: seed of the poisson gaps (0)")
    add("--max-outstanding", type=count, metavar="N", help="open loop: skip, and count, arrivals above N inside")
    add_requests(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write everything as JSON")
    output.add_argument("--records", action="store_true", help="with --json: every request too")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    plan = _plan(args)
    if args.records and args.json is None:
        raise InvalidArgument("needs a file for the records; give --json FILE", field="--records")
    if args.json is not None:
        check_writable(args.json, "--json")
    if args.serve_arg and args.url is not None:
        raise InvalidArgument("is for a server that this command starts; leave --url out", field="--serve-arg")
    workload = make_workload(args)
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    with contextlib.ExitStack() as stack:
        url, metrics = args.url, args.metrics_url
        if url is None:
            # No canary: the counters then count our requests alone. What serve.py prints is not our result.
            ports = stack.enter_context(
                running_server([*workload.serve_args, "--canary-interval", "0", *args.serve_arg], stdout=2)
            )
            url, metrics = f"127.0.0.1:{ports['grpc']}", metrics or f"127.0.0.1:{ports['metrics']}"
        session = Session(
            plan=plan,
            url=url,
            model=args.model,
            timeouts=timeouts(args),
            workload=workload,
            metrics_address=metrics_address(metrics, url),
        )
        try:
            session.run()
        finally:
            # Before the server stops: whatever goes wrong from here on, what was measured is on paper.
            if session.levels:
                _write(args, session, date)
    if session.interrupted:
        print("Interrupted; the tables hold what there was.", file=sys.stderr, flush=True)
        return INTERRUPTED
    return 0 if any(level.finished for level in session.levels) else 1


def _write(args: argparse.Namespace, session: Session, date: str) -> None:
    """The tables to stdout, the JSON to its file."""
    found = _found(args, session, date)
    tables = report(session.levels, KINDS[args.what], session.has_timeline, session.metrics_problem)
    print(f"{_heading(found)}\n\n{tables}", flush=True)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        print(f"Wrote {args.json}.", file=sys.stderr, flush=True)


def _plan(args: argparse.Namespace) -> Plan:
    closed = args.rate is None
    if closed and args.requests is not None and args.duration is not None:
        raise InvalidArgument(
            "is one way to end a closed loop, --requests is the other; give one of them", field="--duration"
        )
    if closed and args.max_outstanding is not None:
        raise InvalidArgument("is for an open loop; give --rate", field="--max-outstanding")
    duration = args.duration
    if duration is None and args.requests is None:
        duration = DURATION_S
    return Plan(
        concurrencies=(args.concurrency or CONCURRENCIES) if closed else (),
        rates=() if closed else args.rate,
        requests=args.requests,
        seconds=duration,
        warmup=args.warmup,
        arrivals=args.arrivals,
        arrival_seed=args.arrival_seed,
        max_outstanding=args.max_outstanding,
    )


def _found(args: argparse.Namespace, session: Session, date: str) -> dict[str, Any]:
    levels = []
    for level, records in zip(session.levels, session.records, strict=True):
        levels.append(level.as_dict())
        if args.records:
            levels[-1]["records"] = [record.as_dict() for record in records]
    return {
        "schema": 2,
        "what": args.what,
        "date": date,
        "command": shlex.join(["python", "-m", "client", *sys.argv[1:]]),
        "machine": describe(),
        "server": {**session.server, "local": args.url is None, "metrics": session.metrics_address},
        "method": {"percentiles": METHOD, "times": "seconds, latencies from when a request was due"},
        "plan": vars(session.plan),
        "request": session.workload.as_dict() | {"source": source(args)},
        "interrupted": session.interrupted,
        "metrics_problem": session.metrics_problem,
        "levels": levels,
    }


def _heading(found: dict[str, Any]) -> str:
    machine, server = found["machine"], found["server"].get("server", {})
    gpus = "; ".join(machine["gpus"]) or "none"
    where = "started for this" if found["server"]["local"] else f"at {found['server'].get('url', '?')}"
    return (
        f"{found['date']}  {found['command']}\n"
        f"client   {machine['cpu']}, {machine['cores_usable']} of {machine['cores']} cores, GPU: {gpus}\n"
        f"server   {server.get('name', '?')} {server.get('version', '?')} {where}"
    )
