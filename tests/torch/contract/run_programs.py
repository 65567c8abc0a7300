# SPDX-License-Identifier: Apache-2.0
"""Runs the programs of programs.py with several allocators, each in a process of its own.

usage: run_programs.py [--ways native,expandable,weir,weir-pluggable] [--only 1a,1c] [--jobs 4]
                       [--timeout 60] [--trials N] [--env [PROGRAM:]NAME=VALUE] [--sanitizer]
                       [--json FILE] [--logs FOLDER]

Prints a table of programs and allocators. right: every trial was; WRONG: a value was not; crash: a
signal, or an error of CUDA after which the process is lost; error: another exception; hang: it ran
into the timeout; no: the allocator says that it can't do this; skip: the program can't run here.
--env gives Weir a setting, for one program or for all. Exit: 1 if a program is right with PyTorch's own
allocator and not with Weir.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

import programs
import ways

PROGRAM = str(pathlib.Path(__file__).with_name("programs.py"))
# Words of errors after which CUDA's context can't be used.
LOST = ("illegal memory access", "illegal instruction", "misaligned address", "unspecified launch",
        "CUDA error", "illegal address")


def outcome_of(status, said, timed_out):
    """(outcome, message) of a process: its exit status and its output."""
    result = None
    for line in said.splitlines():
        if line.startswith("RESULT "):
            try:
                result = json.loads(line[len("RESULT "):])
            except ValueError:
                pass
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if timed_out:
        return "hang", lines[-1][:200] if lines else ""
    if status is not None and status < 0:
        late = " after the result" if result is not None else ""
        return "crash", f"{ways.name_of_signal(status)}{late}: {lines[-1][:200] if lines else ''}"
    if status == 99:
        found = [line for line in lines if line.startswith("=========") and ("Invalid" in line or
                                                                            "ERROR" in line)]
        return "crash", f"compute-sanitizer: {(found or [''])[0][:200]}"
    if result is None:
        return "error", f"exit {status}: {lines[-1][:200] if lines else ''}"
    outcome, message = result["outcome"], result["message"]
    if outcome == "error" and any(word in message for word in LOST):
        return "crash", message
    if outcome == "right" and status != 0:
        return "crash", f"exit {status} after the result"
    return {"wrong": "WRONG", "unsupported": "no"}.get(outcome, outcome), message


def run(name, way, options, extra):
    if 0 < ways.gpu_count() < programs.PROGRAMS[name].gpus:
        return {"outcome": "skip", "message": f"needs {programs.PROGRAMS[name].gpus} GPUs",
                "seconds": 0, "tail": ""}
    arguments = [PROGRAM, name] + (["--trials", str(options.trials)] if options.trials else [])
    seconds = options.timeout * (5 if options.sanitizer else 1)
    settings = {**extra.get(None, {}), **extra.get(name, {})}
    environment = {**ways.environment(way, settings), **programs.PROGRAMS[name].environment}
    start, timed_out = time.monotonic(), False
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(ways.command(way, arguments, options.sanitizer), env=environment,
                                   stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, start_new_session=True)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            ways.kill(process)  # children too
        output.seek(0)
        said = output.read()
    if options.logs:
        pathlib.Path(options.logs, f"{name}.{way}.log").write_text(said)
    outcome, message = outcome_of(process.returncode, said, timed_out)
    return {"outcome": outcome, "message": message, "seconds": round(time.monotonic() - start, 1),
            "tail": said[-1500:] if outcome not in ("right", "skip") else ""}


def table(found, names, chosen):
    lines = ["program".ljust(20) + "".join(way.ljust(16) for way in chosen)]
    for name in names:
        row = found.get(name, {})
        lines.append(name.ljust(20) + "".join(
            row.get(way, {"outcome": "-"})["outcome"].ljust(16) for way in chosen))
    for name in names:
        for way in chosen:
            one = found.get(name, {}).get(way)
            if one and one["outcome"] != "right":
                lines.append(f"{name}, {way}: {one['outcome']}: {one['message']}")
    return "\n".join(lines)


def settings(given):
    """{program or None: {name: value}} of --env."""
    found = {}
    for text in given:
        where, _, value = text.partition("=")
        program, _, name = where.rpartition(":")
        if not name or (program and program not in programs.PROGRAMS):
            sys.exit(f"--env takes [PROGRAM:]NAME=VALUE, not '{text}'")
        found.setdefault(program or None, {})[name] = value
    return found


def chosen_of(text, all_names, what):
    names = text.split(",") if text else list(all_names)
    for name in names:
        if name not in all_names:
            sys.exit(f"there is no {what} '{name}': {', '.join(all_names)}")
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ways", default=",".join(ways.WAYS))
    parser.add_argument("--only", help="programs, by name")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--timeout", type=float, default=60, help="seconds for one program")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--env", action="append", default=[], metavar="[PROGRAM:]NAME=VALUE")
    parser.add_argument("--sanitizer", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--logs", type=pathlib.Path)
    options = parser.parse_args()
    chosen = chosen_of(options.ways, ways.WAYS, "way")
    names = chosen_of(options.only, list(programs.PROGRAMS), "program")
    extra = settings(options.env)
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)

    found, guard, began = {}, threading.Lock(), time.monotonic()

    def job(name, way):
        try:
            one = run(name, way, options, extra)
        except Exception as error:  # of the runner itself: the other programs go on
            one = {"outcome": "error", "message": f"not run: {error}", "seconds": 0, "tail": ""}
        with guard:
            found.setdefault(name, {})[way] = one
            print(f"[{time.monotonic() - began:5.0f} s] {name}, {way}: {one['outcome']} "
                  f"({one['seconds']} s) {one['message']}", flush=True)
            if options.json:
                options.json.write_text(json.dumps(
                    {"ways": chosen, "settings": options.env, "programs": found}, indent=1))

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for done in [pool.submit(job, name, way) for name in names for way in chosen]:
            done.result()
    print("\n" + table(found, names, chosen), flush=True)
    worse = [f"{name}, {way}" for name in names for way in chosen if ways.is_weir(way)
             and found[name][way]["outcome"] not in ("right", "skip", "no")
             and found[name].get("native", {"outcome": "right"})["outcome"] == "right"]
    if worse:
        print(f"\nright with PyTorch's own allocator, and not with Weir: {'; '.join(worse)}")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
