#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `weir timeline` and `weir convert` write, read by others: Python's pickle and
json; PyTorch's own script (torch/cuda/_memory_viz.py), where it is found: in an installed PyTorch, or
where PYTORCH_MEMORY_VIZ says.

usage: look_test.py WEIR TRACES_FOLDER
"""

import collections
import csv
import gzip
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
import unittest

WEIR, TRACES = sys.argv[1], sys.argv[2]
TRACE_NAMES = ["serve_multistream", "gnn", "graph_two_stream"]


def run(*arguments, expect=0):
    result = subprocess.run([WEIR, *arguments], capture_output=True, text=True)
    if result.returncode != expect:
        raise AssertionError(f"weir {arguments}: {result.returncode}: {result.stderr}")
    return result.stderr


def memory_viz_script():
    path = os.environ.get("PYTORCH_MEMORY_VIZ")
    if not path:
        found = importlib.util.find_spec("torch")  # finds it, and does not load it
        path = found and os.path.join(os.path.dirname(found.origin), "cuda", "_memory_viz.py")
    if not path or not os.path.exists(path):
        return None
    spec = importlib.util.spec_from_file_location("memory_viz", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Ranges:
    """Addresses that are shown, as the viewer keeps them: sorted, and merged."""

    def __init__(self, segments):
        self.bytes = sum(s["total_size"] for s in segments)
        self.by_begin = {s["address"]: s["total_size"] for s in segments}

    def cut(self, begin, size):
        for at, length in self.by_begin.items():
            if at <= begin and begin + size <= at + length:
                break
        else:
            raise AssertionError(f"{begin}+{size} is in no segment")
        del self.by_begin[at]
        if begin > at:
            self.by_begin[at] = begin - at
        if at + length > begin + size:
            self.by_begin[begin + size] = at + length - begin - size
        self.bytes -= size

    def add(self, begin, size):
        self.bytes += size
        after = self.by_begin.pop(begin + size, 0)
        for at, length in self.by_begin.items():
            if at + length == begin:
                self.by_begin[at] += size + after
                return
            if at < begin + size and begin < at + length:
                raise AssertionError(f"{begin}+{size} is in a segment already")
        self.by_begin[begin] = size + after


class Look(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.snapshots = {}
        for name in TRACE_NAMES:
            path = cls.path(name + ".pickle")
            run("timeline", cls.trace(name), "--to", "memory_viz", "-o", path)
            with open(path, "rb") as file:
                cls.snapshots[name] = pickle.load(file)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    @staticmethod
    def trace(name):
        return os.path.join(TRACES, name + ".trace.gz")

    @classmethod
    def lines(cls, name):
        with gzip.open(cls.trace(name), "rt") as file:
            return [line for line in file if line[0] in "arf"]

    def test_blocks_tile_their_segments(self):
        for name, snapshot in self.snapshots.items():
            self.assertTrue(snapshot["segments"], name)
            end = 0
            for segment in snapshot["segments"]:
                self.assertGreaterEqual(segment["address"], end)
                at = segment["address"]
                for block in segment["blocks"]:
                    self.assertEqual(block["address"], at)
                    self.assertIn(block["state"], ("active_allocated", "inactive"))
                    at += block["size"]
                end = segment["address"] + segment["total_size"]
                self.assertEqual(at, end)
                live = [b for b in segment["blocks"] if b["state"] == "active_allocated"]
                self.assertEqual(segment["allocated_size"], sum(b["size"] for b in live))
                self.assertEqual(segment["requested_size"], sum(b["requested_size"] for b in live))

    def test_history_leads_back_from_the_segments_to_nothing(self):
        """As the viewer does: from the end to the beginning, every block within what is shown."""
        for name, snapshot in self.snapshots.items():
            ranges = Ranges(snapshot["segments"])
            live = {
                b["address"]: b["size"]
                for s in snapshot["segments"]
                for b in s["blocks"]
                if b["state"] == "active_allocated"
            }
            for event in reversed(snapshot["device_traces"][0]):
                action, at, size = event["action"], event["addr"], event["size"]
                if action == "segment_map":
                    ranges.cut(at, size)
                elif action == "segment_unmap":
                    ranges.add(at, size)
                elif action == "free_completed":
                    self.assertNotIn(at, live)
                    live[at] = size
                    # Within one segment:
                    ranges.cut(at, size)
                    ranges.add(at, size)
                elif action == "alloc":
                    del live[at]
            self.assertEqual(live, {}, name)
            self.assertEqual(ranges.by_begin, {}, name)

    def test_history_has_every_block_of_the_trace(self):
        for name, snapshot in self.snapshots.items():
            sizes = [int(line.split()[2]) for line in self.lines(name) if line.startswith("a ")]
            history = snapshot["device_traces"][0]
            self.assertEqual([e["size"] for e in history if e["action"] == "alloc"], sizes)
            times = [e["time_us"] for e in history]
            self.assertEqual(times, sorted(times))
            for event in history[:1000]:
                for frame in event["frames"]:
                    self.assertIsInstance(frame["name"], str)
                    self.assertIsInstance(frame["filename"], str)
                    self.assertIsInstance(frame["line"], int)

    def test_json_and_pickle_say_the_same(self):
        path = self.path("gnn.json.gz")
        run("timeline", self.trace("gnn"), "--to", "memory_viz", "-o", path)
        with gzip.open(path, "rt") as file:
            self.assertEqual(json.load(file), self.snapshots["gnn"])

    def test_snapshot_at_its_peak_holds_the_peak(self):
        live = most = 0
        for kind, _, size, *_ in (line.split() for line in self.lines("gnn")):
            size = (int(size) + 511) // 512 * 512
            live += size if kind == "a" else -size if kind == "r" else 0
            most = max(most, live)
        held = sum(int(r["bytes"]) for r in self.blocks("gnn", "timeline", "--at", "peak-live"))
        self.assertEqual(held, most)
        run("timeline", self.trace("gnn"), "--at", "peak-live", "--to", "memory_viz", "-o",
            self.path("peak.json"))
        with open(self.path("peak.json")) as file:
            segments = json.load(file)["segments"]
        self.assertEqual(sum(s["allocated_size"] for s in segments), held)

    def blocks(self, name, command, *options):
        path = self.path("blocks.csv")
        run(command, self.trace(name), "--to", "csv", "-o", path, *options)
        with open(path, newline="") as file:
            return list(csv.DictReader(file))

    def test_pytorchs_own_script_reads_it(self):
        script = memory_viz_script()
        if script is None:
            self.skipTest("no PyTorch is installed; PYTORCH_MEMORY_VIZ may name its _memory_viz.py")
        for name, snapshot in self.snapshots.items():
            reserved = sum(s["total_size"] for s in snapshot["segments"])
            self.assertIn(f"total_reserved: {script.Bytes(reserved)}", script.segsum(snapshot))
            text = script.trace(snapshot)
            self.assertIn(f"{len(snapshot['device_traces'][0])} entries", text)
            self.assertIn("Active Memory Timeline", script.trace_plot(snapshot))
            self.assertIn("Allocator State History", script.segment_plot(snapshot))
            self.assertIn("weir:0:stream", script.memory(snapshot, format_flamegraph=str))

    def test_what_perfetto_opens_is_json_of_its_events(self):
        path = self.path("serve.perfetto")
        run("timeline", self.trace("serve_multistream"), "--to", "perfetto", "-o", path)
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        counters, threads, ended, begun = {}, {}, set(), set()
        for event in events:
            self.assertGreaterEqual(event["ts"], 0)
            if event["ph"] == "C":
                counters.setdefault(event["name"], []).append(event["args"]["bytes"])
            elif event["name"] == "thread_name":
                threads[event["tid"]] = event["args"]["name"]
            elif event["ph"] in "be":
                key = (event["cat"], event["id2"]["local"], event["name"])
                (begun if event["ph"] == "b" else ended).add(key)
            elif event["ph"] in "iX":
                self.assertIn(event["tid"], threads)
                self.assertTrue(event["name"])
                self.assertGreaterEqual(event.get("dur", 0), 0)
        self.assertEqual(begun, ended)
        segments = self.snapshots["serve_multistream"]["segments"]
        self.assertEqual(counters["reserved"][-1], sum(s["total_size"] for s in segments))
        self.assertEqual(counters["live"][-1], sum(s["allocated_size"] for s in segments))
        self.assertIn("stream 0", threads.values())

    def test_perfettos_tracks_count_what_the_report_counts(self):
        for name in ("serve_multistream", "graph_two_stream"):
            path = self.path(name + ".perfetto")
            run("timeline", self.trace(name), "--to", "perfetto", "-o", path)
            with open(path, encoding="utf-8") as file:
                events = json.load(file)["traceEvents"]
            points, at_end = collections.Counter(), collections.Counter()
            for row in self.blocks(name, "timeline"):
                stays = row["live_at_end"] == "1"
                pool = ["live of pool " + row["pool"]] if row["pool"] != "0" else []
                for track in ["live of stream " + row["stream"] + ", captured" * int(row["captured"]), *pool]:
                    points[track] += 1 if stays else 2
                    at_end[track] += int(row["bytes"]) * stays
            levels = collections.defaultdict(list)
            for event in events:
                if event["ph"] == "C" and event["name"].startswith("live of "):
                    levels[event["name"]].append(event["args"]["bytes"])
            self.assertEqual({track: len(found) for track, found in levels.items()}, points)
            self.assertEqual({track: found[-1] for track, found in levels.items()}, at_end)
            report = json.loads(subprocess.run([WEIR, "report", "--json", "--top", "1000000", self.trace(name)],
                                               check=True, capture_output=True).stdout)
            fences = sum(event["args"]["fences"] for event in events if "fences" in event.get("args", {}))
            self.assertEqual(fences, sum(each["waits"] for each in report["waited_for"]))


def entry(action, address, size, time, stream=0, frames=()):
    return {"action": action, "addr": address, "size": size, "stream": stream, "time_us": time,
            "frames": list(frames)}


class Convert(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def convert(self, value, protocol, *options):
        with open(self.path("in.pickle"), "wb") as file:
            pickle.dump(value, file, protocol)
        run("convert", self.path("in.pickle"), "-o", self.path("out.trace"), *options)
        with open(self.path("out.trace")) as file:
            return [line for line in file.read().splitlines() if not line.startswith("#")]

    snapshot = {
        "segments": [
            {"device": 0, "address": 1 << 40, "total_size": 4096, "stream": 7, "blocks": [
                {"address": 1 << 40, "size": 1024, "requested_size": 1000,
                 "state": "active_allocated", "frames": []},
                {"address": (1 << 40) + 1024, "size": 1024, "requested_size": 1020,
                 "state": "active_pending_free", "frames": []},
                {"address": (1 << 40) + 2048, "size": 2048, "requested_size": 0,
                 "state": "inactive", "frames": []}]}],
        "device_traces": [[
            entry("alloc", 5000, 300, 1000, 3),
            entry("free_completed", 9000, 80, 1001, 4),
            entry("free_requested", 5000, 300, 1005, 3),
            entry("alloc", 6000, 500, 1006, 1 << 60),
            {**entry("annotate", 6000, 500, 1007, 1 << 60), "user_metadata": "weights"},
            entry("free_completed", 5000, 300, 1010, 3),
            {"action": "oom", "device_free": 5, "size": 77, "stream": 0, "time_us": 1011},
            entry("snapshot", 0, 0, 1012)], [entry("alloc", 1, 2, 3)]],
        "external_annotations": [
            {"name": "step\n1", "stage": "START", "device": 0, "time_us": 1004},
            {"name": "step\n1", "stage": "END", "device": 0, "time_us": 1007}],
        "allocator_settings": {"garbage_collection_threshold": 0.5, "expandable_segments": True},
    }
    lines = [
        "a 0 80 4 0", "r 0 80 4 0",  # freed, and never allocated: there before
        f"a 1 1000 7 0", f"a 2 1020 7 0", "r 2 1020 7 0",  # live at the end, likewise
        "a 3 300 3 0", "f 0 80 4 1", "m step 1", "r 3 300 3 5",
        f"a 4 500 {1 << 60} 6", "m annotation of 500 bytes: weights", "f 3 300 3 10", "m out of memory: 77 bytes on stream 0"]

    def test_every_protocol_that_python_writes(self):
        for protocol in (2, 3, 4, 5):
            self.assertEqual(self.convert(self.snapshot, protocol), self.lines)

    def test_another_device(self):
        self.assertEqual(self.convert(self.snapshot, 4, "--device", "1"), ["a 0 2 0 0"])

    def report(self, events):
        segment = {"address": 1 << 40, "stream": 0, "device": 0, "total_size": 2 << 20, "blocks": [
            {"size": 2 << 20, "state": "active_allocated"}]}
        with open(self.path("in.pickle"), "wb") as file:
            pickle.dump({"segments": [segment], "device_traces": [events]}, file, 4)
        return subprocess.run([WEIR, "report", self.path("in.pickle")], check=True, capture_output=True,
                              text=True).stdout

    def test_stacks_are_told_by_the_users_own_lines_and_name_nobodys_folders(self):
        """As PyTorch records them by default, C++ innermost; on Windows."""
        user = "C:\\Users\\somebody\\"
        frames = [{"name": name, "filename": file, "line": line} for name, file, line in (
            ("torch::unwind::unwind()", "??", 0),
            ("torch::CapturedTraceback::gather(bool, bool, bool)", "??", 0),
            ("at::_ops::exp::call(at::Tensor const&)", "??", 0),
            ("softmax", user + "project\\src\\nn.py", 6),
            ("_call_impl", user + "env\\Lib\\site-packages\\torch\\nn\\modules\\module.py", 1750),
            ("forward", user + "project\\src\\model.py", 39))]
        report = self.report([entry("alloc", 1 << 40, 2 << 20, 1, frames=frames)])
        self.assertIn("  softmax (nn.py:6) · exp < forward (model.py:39) ", report)
        run("timeline", self.path("in.pickle"), "--to", "csv", "-o", self.path("out.csv"))
        with open(self.path("out.csv"), encoding="utf-8") as file:
            told = file.read() + report
        self.assertIn("project/src/nn.py", told)
        self.assertNotIn("somebody", told)

    def test_a_history_without_times_is_told_by_the_numbers_of_its_events(self):
        events = [entry("alloc", 1 << 40, 2 << 20, 1), entry("free_completed", 1 << 40, 2 << 20, 2)]
        for event in events:
            del event["time_us"]
        report = self.report(events)
        self.assertRegex(report, r"^At its peak, after event \d, 2.00 MiB was live ")
        self.assertIn("the file has no times", report)
        self.assertNotRegex(report, r"\d [mnu]?s\b")

    def test_what_is_no_plain_data_is_refused(self):
        for value in ({"a": {1, 2}}, b"bytes", complex(1, 2), Convert.test_another_device):
            with open(self.path("in.pickle"), "wb") as file:
                pickle.dump(value, file, 4)
            error = run("convert", self.path("in.pickle"), "-o", self.path("out"), expect=3)
            self.assertIn("in.pickle: byte", error)
            self.assertFalse(os.path.exists(self.path("out")))

    def test_its_own_memory_viz_comes_back_as_the_same_program(self):
        trace = os.path.join(TRACES, "gnn.trace.gz")
        run("timeline", trace, "--to", "memory_viz", "-o", self.path("gnn.pickle"))
        run("convert", self.path("gnn.pickle"), "-o", self.path("gnn.trace"))
        run("convert", trace, "-o", self.path("direct.trace"))
        operations = []
        for name in ("gnn.trace", "direct.trace"):
            with open(self.path(name)) as file:
                operations.append([line.split()[:-1] for line in file if line[0] in "arf"])
        self.assertEqual(*operations)

    def test_a_killed_run_leaves_what_was_there(self):
        with open(self.path("out.csv"), "w") as file:
            file.write("before")
        process = subprocess.Popen([WEIR, "timeline", os.path.join(TRACES, "generate.trace.gz"),
                                    "--to", "csv", "-o", self.path("out.csv")])
        time.sleep(0.2)  # it reads, or writes: whatever it does
        process.kill()
        process.wait()
        with open(self.path("out.csv")) as file:
            self.assertEqual(file.read(), "before")
        self.assertEqual(os.listdir(self.folder.name), ["out.csv"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
