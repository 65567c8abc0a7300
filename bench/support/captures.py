# SPDX-License-Identifier: Apache-2.0
"""Recorded captures in another order."""
import gzip
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def smallest_first(folder):
    """graph_serve's captures, each of which frees its own blocks alone, in reverse order."""
    captures = []
    with gzip.open(ROOT / "bench" / "traces" / "graph_serve.trace.gz", "rt") as trace:
        for line in trace:
            if line.startswith("m "):
                captures.append([])
            if captures:
                captures[-1].append(line.split())
    path = pathlib.Path(folder) / "graph_serve_smallest_first.trace"
    with open(path, "w", encoding="ascii") as trace:
        time = 0
        for capture in reversed(captures):
            for words in capture:
                if words[0] != "m":
                    time += 1
                    words[-1] = str(time)
                trace.write(" ".join(words) + "\n")
    return path
