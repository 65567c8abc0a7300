# SPDX-License-Identifier: Apache-2.0
"""Checks of a script's command line. The numbers and files are those that tools/number_range.h and
tools/replay/named_files.h allow the programs."""
import argparse
import os
import re


def whole_number(least, most):
    """For add_argument(type=...): decimal digits, a number from `least` to `most`."""
    def parse(text):
        if not re.fullmatch(r"[0-9]+", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)
    return parse


def real_number(least, most):
    """Likewise: a decimal number such as 2, 0.5 or 1e-3."""
    def parse(text):
        is_decimal = re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text)
        if not is_decimal or not least <= float(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least:g} to {most:g}")
        return float(text)
    return parse


def names_of(known):
    """For add_argument(type=...): names with commas between them, each of `known`."""
    def parse(text):
        unknown = set(text.split(",")) - set(known)
        if unknown:
            raise argparse.ArgumentTypeError(f"no {', '.join(sorted(map(repr, unknown)))}; there are "
                                             + ", ".join(known))
        return text
    return parse


def keep_inputs(parser, option, output, inputs):
    """Ends the script with an error if `output`, the value of `option`, is one of the inputs."""
    for path in inputs if output else ():
        if os.path.exists(output) and os.path.exists(path) and os.path.samefile(output, path):
            parser.error(f"{option} '{output}' and the trace '{path}' are the same file: "
                         f"give {option} another file name")
