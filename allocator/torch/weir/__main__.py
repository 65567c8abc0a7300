"""python -m weir: runs a program with Weir as PyTorch's allocator, shows scenarios, or says what is
installed."""

from __future__ import annotations

import argparse
import importlib.util
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
        "run", help="run a program, unchanged", allow_abbrev=False,
        usage="python -m weir run [options] [-m MODULE | FILE] [arguments...]")
    run.add_argument("--allocator", choices=("auto", "full", "pluggable"), default="auto",
                     help="which of Weir's (weir.enable's `kind`)")
    for name, text in _SETTINGS.items():
        run.add_argument("--" + name.replace("_", "-"), dest=name, help=text)
    run.add_argument("-m", dest="module", metavar="MODULE", help="a module, as python -m takes it")
    scenario = commands.add_parser(
        "scenario", help="what goes wrong in PyTorch, and the same with Weir, side by side",
        description="A: a first all-reduce inside a capture. B: a captured step after a warm-up in "
                    "its pool. C: buffers of all-reduces, dropped at once. Needs a GPU.")
    scenario.add_argument("name", type=str.upper, choices=("A", "B", "C"), metavar="A|B|C")
    scenario.add_argument("--json", metavar="FILE", help="write the figures there")
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


def _missing_file(path: str) -> str | None:
    if not os.path.exists(path):
        return f"there is no file {path}"
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "__main__.py")):
        return f"the folder {path} has no __main__.py"
    return None


def _missing_module(name: str) -> str | None:
    """Why `-m name` can't be run; its parents are imported for that, as Python does."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is None:
            return f"no module named {name}"
        if spec.submodule_search_locations is not None and \
                importlib.util.find_spec(name + ".__main__") is None:
            return f"{name} is a package without a __main__, and can't be run"
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise  # a parent's own trouble
        return str(error)
    return None


def _run(options: argparse.Namespace, program: list[str]) -> None:
    if options.module is None and not program:
        sys.exit("python -m weir run: which program? python -m weir run train.py")
    if options.module is None and (why := _missing_file(program[0])):
        sys.exit(f"python -m weir run: {why}")
    settings = {name: getattr(options, name) for name in _SETTINGS}
    try:
        weir.enable(options.allocator, **settings)
    except weir.Problem as problem:
        sys.exit(f"weir: {problem}")
    on_path = not getattr(sys.flags, "safe_path", False)  # python -P: no folder of the program's
    if options.module is not None:
        sys.argv = [options.module, *program]
        if on_path:
            sys.path[0] = os.getcwd()
        if why := _missing_module(options.module):
            sys.exit(f"python -m weir run: {why}")
        runpy.run_module(options.module, run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        if on_path:
            sys.path[0] = os.path.dirname(os.path.abspath(program[0]))
        runpy.run_path(program[0], run_name="__main__")


def _scenario(options: argparse.Namespace) -> None:
    from weir import scenarios

    try:
        sys.exit(scenarios.run(options.name, options.json))
    except weir.Problem as problem:
        sys.exit(f"weir: {problem}")


def main(arguments: list[str]) -> None:
    ours, program = _split(arguments)
    options = _parser().parse_args(ours)
    if options.command == "info":
        print(json.dumps(weir.info(), indent=2))
    elif options.command == "scenario":
        _scenario(options)
    else:
        _run(options, program)


if __name__ == "__main__":
    main(sys.argv[1:])
