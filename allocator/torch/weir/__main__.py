# SPDX-License-Identifier: Apache-2.0
"""python -m weir: runs a program with Weir as PyTorch's allocator, or says what is installed. report, timeline and the other commands of `weir` work here too."""

from __future__ import annotations

import argparse
import builtins
import difflib
import importlib.machinery
import importlib.util
import io
import json
import os
import runpy
import sys
import types
import zipfile

import weir
from weir import _command, _records

# Options of `run` that are settings, by the name of their WEIR_* variable.
_SETTINGS = {
    "limit": "most memory to hold: 60GiB, 80%%",
    "reuse": "wait, balanced or no_wait",
    "memory": "pages, or plain: memory of cudaMalloc, which other libraries may open",
    "c10d": "0: torch.distributed's operations keep their tensors as without Weir",
    "log": "debug, info, warn, error or off",
    "log_file": "where the log goes",
    "record": "record what memory does into this file",
    "record_stacks": "who asked for memory, in the recording: none, cpp or python",
}

_OWN_COMMANDS = ("run", "info")

# Of the `weir` command, which need not be on the PATH.
_COMMANDS = ("look", "replay", "report", "fit", "diff", "timeline", "convert", "bench",
             "comm")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m weir", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run", help="run a program, unchanged", allow_abbrev=False,
        usage="python -m weir run [options] [-m MODULE | FILE] [arguments...]")
    run.add_argument("--allocator", choices=("auto", "full", "pluggable"), default="auto",
                     help="which of Weir's (weir.enable's `kind`)")
    for name, text in _SETTINGS.items():
        run.add_argument("--" + name.replace("_", "-"), dest=name, help=text)
    run.add_argument("-m", dest="module", metavar="MODULE", help="a module, as python -m takes it")
    commands.add_parser("info", help="print what is installed, and what is missing, as JSON")
    return parser


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, and for `run` the program's: all that follows FILE, `-m MODULE` or `--`, also
    what looks like ours."""
    if arguments[:1] != ["run"]:
        return arguments, []
    at = 1
    while at < len(arguments):
        argument = arguments[at]
        if argument == "--":
            return arguments[:at], arguments[at + 1:]
        if not argument.startswith("-") or argument == "-":
            break
        if argument.startswith("-m"):
            at += 2 if argument == "-m" else 1
            break
        at += 2 if argument.startswith("--") and "=" not in argument and argument != "--help" else 1
    return arguments[:at], arguments[at:]


def _refused(parser: argparse.ArgumentParser, word: str, kind: str, allowed: list[str],
             more: str = "") -> None:
    """Ends with 2: the word is none of those that are allowed, the nearest of which is named."""
    nearest = difflib.get_close_matches(word, allowed, 1)
    hint = f"; did you mean '{nearest[0]}'?" if nearest else ""
    parser.error(f"unknown {kind} '{word}'{hint}{more}")


def _module(name: str) -> importlib.machinery.ModuleSpec:
    """Of the code that `-m name` runs. Its parents are imported for that, as Python does."""
    if name.endswith(".py"):
        sys.exit(f"python -m weir run: -m takes a module: leave out .py ({name[:-3]}), or -m")
    if name.startswith("."):
        sys.exit(f"python -m weir run: -m takes a module's whole name, and {name} is relative")
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(name + ".__main__")
            if spec is None:
                sys.exit(f"python -m weir run: {name} is a package without a __main__")
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise  # a parent's own trouble
        sys.exit(f"python -m weir run: {error}")
    if spec is None:
        sys.exit(f"python -m weir run: no module named {name}")
    return spec


def _as_main(code: types.CodeType, **names: object) -> None:
    """Runs it as the process's __main__, which it stays (with runpy it would not): exit handlers, and
    threads that outlive it, pickle what is defined there."""
    main = types.ModuleType("__main__")
    main.__dict__.update(names, __builtins__=builtins)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _run_spec(spec: importlib.machinery.ModuleSpec) -> None:
    _as_main(spec.loader.get_code(spec.name), __file__=spec.origin, __cached__=spec.cached,
             __spec__=spec, __loader__=spec.loader, __package__=spec.parent)


def _run_file(path: str) -> None:
    if path.endswith(".pyc"):
        runpy.run_path(path, run_name="__main__")
        return
    path = os.path.abspath(path)  # as Python does from 3.9 on
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    _as_main(code, __file__=path, __cached__=None,
             __loader__=importlib.machinery.SourceFileLoader("__main__", path))


def _run(options: argparse.Namespace, program: list[str]) -> None:
    if options.module is None and not program:
        sys.exit("python -m weir run: which program? python -m weir run train.py")
    folder = None  # or an archive, whose __main__.py is the program
    if options.module is None:
        if not os.path.exists(program[0]):
            sys.exit(f"python -m weir run: there is no file '{program[0]}'")
        if os.path.isdir(program[0]) or zipfile.is_zipfile(program[0]):
            folder = os.path.abspath(program[0])
    settings = {name: getattr(options, name) for name in _SETTINGS}
    settings["record"] = _records.of_rank(options.record)
    try:
        weir.enable(options.allocator, **settings)
    except weir.Problem as problem:
        sys.exit(f"weir: {problem}")
    sys.argv = program if options.module is None else [options.module, *program]
    if folder is not None or not getattr(sys.flags, "safe_path", False):  # python -P
        sys.path[0] = (os.getcwd() if options.module is not None else
                       folder or os.path.dirname(os.path.abspath(program[0])))
    if options.module is not None:
        spec = _module(options.module)
        sys.argv[0] = spec.origin or options.module
        _run_spec(spec)
    elif folder is not None:
        spec = importlib.machinery.PathFinder.find_spec("__main__", [folder])
        if spec is None:
            sys.exit(f"python -m weir run: {program[0]} has no __main__.py")
        _run_spec(spec)
    else:
        _run_file(program[0])


def main(arguments: list[str]) -> None:
    if arguments and arguments[0] in _COMMANDS:
        _command.main()
    parser = _parser()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in _OWN_COMMANDS:
        commands = [*_OWN_COMMANDS, *_COMMANDS]
        _refused(parser, arguments[0], "command", commands, f"\ncommands: {', '.join(commands)}")
    ours, program = _split(arguments)
    options, unknown = parser.parse_known_args(ours)
    if unknown and options.command == "run":
        _refused(parser, unknown[0].split("=")[0], "option",
                 ["--allocator", *("--" + name.replace("_", "-") for name in _SETTINGS)])
    elif unknown:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command == "info":
        print(json.dumps(weir.info(), indent=2))
    else:
        _run(options, program)


if __name__ == "__main__":
    main(sys.argv[1:])
