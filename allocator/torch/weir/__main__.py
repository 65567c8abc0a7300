"""python -m weir: runs a program with Weir as PyTorch's allocator, shows scenarios, or says what is
installed."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys

import weir

# Options of `run` that are settings, by the name of their WEIR_* variable.
_SETTINGS = {
    "limit": "most memory to hold: 60GiB, 80%%",
    "reuse": "wait, balanced or grow",
    "log": "debug, info, warn, error or off",
    "log_file": "where the log goes",
    "record": "record what memory does into this file",
    "record_stacks": "who asked for memory, in the recording: none, cpp or python",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m weir", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run", help="run a program, unchanged",
        usage="python -m weir run [options] [-m MODULE | FILE] [arguments...]")
    run.add_argument("--allocator", choices=("auto", "full", "pluggable"), default="auto",
                     help="which of Weir's (weir.enable's `kind`)")
    for name, text in _SETTINGS.items():
        run.add_argument("--" + name.replace("_", "-"), dest=name, help=text)
    run.add_argument("-m", dest="module", metavar="MODULE", help="a module, as python -m takes it")
    run.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    scenario = commands.add_parser(
        "scenario", help="what goes wrong in PyTorch, and the same with Weir, side by side",
        description="A: a first all-reduce inside a capture. B: a captured step after a warm-up in "
                    "its pool. C: buffers of all-reduces, dropped at once. Needs a GPU.")
    scenario.add_argument("name", type=str.upper, choices=("A", "B", "C"), metavar="A|B|C")
    scenario.add_argument("--json", metavar="FILE", help="write the figures there")
    commands.add_parser("info", help="print what is installed, and what is missing, as JSON")
    return parser


def _split(arguments: list[str]) -> list[str]:
    """What follows `-m MODULE` is the module's, options that look like ours too."""
    if "-m" in arguments:
        at = arguments.index("-m")
        if at + 2 < len(arguments):
            return arguments[: at + 2] + ["--"] + arguments[at + 2:]
    return arguments


def _run(options: argparse.Namespace) -> None:
    program = [part for part in options.program[:1] if part != "--"] + options.program[1:]
    if options.module is None and not program:
        sys.exit("python -m weir run: which program? python -m weir run train.py")
    settings = {name: getattr(options, name) for name in _SETTINGS
                if getattr(options, name) is not None}
    try:
        weir.enable(options.allocator, **settings)
    except weir.Problem as problem:
        sys.exit(f"weir: {problem}")
    if options.module is not None:
        sys.argv = [options.module, *program]
        sys.path[0] = os.getcwd()
        runpy.run_module(options.module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
        runpy.run_path(program[0], run_name="__main__")


def _scenario(options: argparse.Namespace) -> None:
    from weir import scenarios

    try:
        sys.exit(scenarios.run(options.name, options.json))
    except weir.Problem as problem:
        sys.exit(f"weir: {problem}")


def main(arguments: list[str]) -> None:
    options = _parser().parse_args(_split(arguments))
    if options.command == "info":
        print(json.dumps(weir.info(), indent=2))
    elif options.command == "scenario":
        _scenario(options)
    else:
        _run(options)


if __name__ == "__main__":
    main(sys.argv[1:])
