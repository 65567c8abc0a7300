# SPDX-License-Identifier: Apache-2.0
"""Ranks in processes of their own, a GPU each: peers that are killed, stopped, or ask for something
else; nodes that are faked; launchers; how ranks meet. NVLink multicast is off in all of it.

usage: processes_test.py COMM_PEER [unittest's options]
Without two GPUs and NCCL they are skipped: exit 77. NCCL is the system's, or what
WEIR_NCCL_LIBRARY names, or that of this Python's packages.
"""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import processes

PEER = os.environ.get("WEIR_COMM_PEER", "")
SKIPPED = 77
START = 90  # seconds until ranks work: contexts, kernels, connections
TIMEOUT = 5  # of an operation, seconds
MARGIN = 5  # what noticing and ending may take on top
HOST_TIMEOUT = 20  # with other ranks, seconds
SHORT_HOST_TIMEOUT = 10  # where it is what is tested
END = 60  # from an error to the end of a process that goes on
LAUNCH = 120  # a whole run by a launcher
CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\] .*?via (\w+)/(\w+)")


def nccl_library():
    """None: the system's own is found by itself."""
    named = os.environ.get("WEIR_NCCL_LIBRARY")
    if named:
        return named
    try:
        package = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    for folder in package.submodule_search_locations if package else ():
        library = pathlib.Path(folder, "lib", "libnccl.so.2")
        if library.is_file():
            return str(library)
    return None


def probed(library):
    variables = processes.environment(library)
    return subprocess.run([PEER, '{"probe": true}'], env=variables, capture_output=True, text=True,
                          timeout=60, check=False)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Processes(unittest.TestCase):
    ranks = 0
    library = None

    @classmethod
    def setUpClass(cls):
        cls.nccl = nccl_library()
        probe = probed(cls.nccl)
        if probe.returncode == SKIPPED:
            raise unittest.SkipTest(probe.stderr.strip())
        if probe.returncode != 0:
            raise AssertionError(f"probe: {probe.returncode}\n{probe.stdout}{probe.stderr}")
        cls.ranks = min(4, int(re.search(r'"gpus":(\d+)', probe.stdout).group(1)))

    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="weir")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.address = f"127.0.0.1:{free_port()}"
        self.began = time.monotonic()

    def note(self, text):
        print(f"  {time.monotonic() - self.began:5.1f} s {self.id().split('.')[-1]}: {text}",
              flush=True)

    def variables(self, rank, meet, **more):
        return processes.environment(
            self.nccl, WEIR_RANK=str(rank), WEIR_WORLD_SIZE=str(self.ranks),
            WEIR_LOCAL_RANK=str(rank), WEIR_MEET=meet, **more)

    def start_rank(self, run, rank, options, meet=None, host_timeout=HOST_TIMEOUT, **more):
        given = {"timeout": TIMEOUT, "host_timeout": host_timeout, **options}
        return run.start(f"rank {rank}", [PEER, json.dumps(given)],
                         self.variables(rank, meet or self.address, **more))

    def start_all(self, run, options, **more):
        return [self.start_rank(run, rank, options, **more) for rank in range(self.ranks)]

    def expect_exact(self, run, peers):
        for peer in peers:
            report = run.report_of(peer)
            self.assertEqual((report["error"], report["wrong"], report["close"]), ("", 0, ""))
            self.assertTrue(report["good"], report)
            self.assertEqual(peer.process.returncode, 0)

    def expect_recovered(self, run, peer, most=TIMEOUT + MARGIN):
        """It saw an error in time, its memory is whole, and it went on."""
        report = run.report_of(peer)
        self.note(f"{peer.name}: after {report['error_after']:.1f} s: {report['error']}")
        self.assertNotEqual(report["error"], "", "no error was seen")
        if "after it" in report["error"]:
            most += TIMEOUT  # over 512 were queued, so that an event stands for two
        self.assertLessEqual(report["error_after"], most)
        self.assertEqual(report["validate"], [])
        self.assertEqual(report["live_blocks"], 0)
        self.assertEqual(report["goes_on_error"], "")
        self.assertEqual(report["goes_on_with"], 1)
        self.assertEqual(report["close"], "")
        self.assertTrue(report["good"], report)
        self.assertEqual(peer.process.returncode, 0)
        return report

    def lose(self, number, victim, work):
        """A rank gets a signal while all work; the others' reports."""
        with processes.Run(self, self.folder) as run:
            peers = self.start_all(run, {"work": work, "steps": 0, "expect_error": True})
            run.wait_for_event("working", peers, START)
            time.sleep(0.3)
            peers[victim].send(number)
            others = [peer for peer in peers if peer is not peers[victim]]
            run.wait_for_end(others, TIMEOUT + MARGIN + END)
            return [self.expect_recovered(run, each) for each in others]

    def test_a_peer_killed_in_eager_work_is_an_error_in_time_and_the_others_go_on(self):
        self.lose(signal.SIGKILL, self.ranks - 1, "eager")

    def test_rank_0_killed_in_a_replay_is_an_error_in_time_and_the_others_go_on(self):
        self.lose(signal.SIGKILL, 0, "replay")

    def test_a_peer_stopped_in_eager_work_is_an_error_in_time_and_the_others_go_on(self):
        for report in self.lose(signal.SIGSTOP, self.ranks - 1, "eager"):
            self.assertGreaterEqual(report["error_after"], TIMEOUT - 0.5, "too soon")

    def test_a_peer_that_hangs_in_replays_is_an_error_in_time_and_the_others_go_on(self):
        with processes.Run(self, self.folder) as run:
            peers = self.start_all(run, {"work": "hang", "captured": True, "expect_error": True})
            run.wait_for_event("hangs", [peers[1]], START)
            others = [peer for peer in peers if peer is not peers[1]]
            run.wait_for_end(others, TIMEOUT + MARGIN + END)
            for each in others:
                report = self.expect_recovered(run, each)
                self.assertIn("has not ended in", report["error"])
            self.assertTrue(peers[1].is_running(), "it was to hang")

    def test_a_peer_that_does_not_prepare_is_an_error_within_the_host_timeout(self):
        with processes.Run(self, self.folder) as run:
            peers = self.start_all(run, {"work": "absent", "expect_error": True},
                                   host_timeout=SHORT_HOST_TIMEOUT)
            others = [peer for peer in peers if peer is not peers[1]]
            run.wait_for_event("hangs", [peers[1]], START)
            run.wait_for_event("prepares", others, START)
            run.wait_for_end(others, SHORT_HOST_TIMEOUT + MARGIN + HOST_TIMEOUT)
            for each in others:
                self.expect_recovered(run, each, most=SHORT_HOST_TIMEOUT + MARGIN)

    def test_sizes_that_differ_eagerly_are_no_silent_success(self):
        with processes.Run(self, self.folder) as run:
            peers = self.start_all(run, {"work": "mismatch", "expect_error": True})
            run.wait_for_end(peers, START + TIMEOUT + MARGIN + END)
            for peer in peers:
                report = run.report_of(peer)
                self.note(f"{peer.name}: {report['wrong']} wrong bytes, error after "
                          f"{report['error_after']:.1f} s: {report['error']}")
                self.assertEqual((report["validate"], report["live_blocks"]), ([], 0))
                if peer is not peers[1]:
                    self.assertTrue(report["error"] or report["wrong"], "silent")
                    self.assertLessEqual(report["error_after"], TIMEOUT + MARGIN)
                    self.assertEqual(peer.process.returncode, 0)

    def test_sizes_that_differ_in_a_capture_are_told_at_its_end(self):
        with processes.Run(self, self.folder) as run:
            peers = self.start_all(run, {"work": "mismatch", "captured": True,
                                         "expect_error": True})
            run.wait_for_end(peers, START + END)
            for peer in peers:
                report = self.expect_recovered(run, peer)
                self.assertIn("rank 1 captured other operations", report["error"])

    def logged(self, options, variables_of):
        """Ranks that work without an error; what NCCL logged, by rank."""
        logs = [self.folder / f"nccl{rank}.log" for rank in range(self.ranks)]
        with processes.Run(self, self.folder) as run:
            peers = [self.start_rank(run, rank, options, NCCL_DEBUG="INFO",
                                     NCCL_DEBUG_SUBSYS="INIT,ENV,NET,P2P,SHM,NVLS",
                                     NCCL_DEBUG_FILE=str(logs[rank]), **variables_of(rank))
                     for rank in range(self.ranks)]
            run.wait_for_end(peers, START + END)
            self.expect_exact(run, peers)
        return [log.read_text(errors="replace") for log in logs]

    def test_two_faked_nodes_replay_over_the_network_exactly(self):
        def node(rank):
            return rank * 2 // self.ranks

        def variables_of(rank):
            return {"NCCL_HOSTID": f"node{node(rank)}", "NCCL_NET": "Socket",
                    "NCCL_SOCKET_IFNAME": "=lo", "NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0"}

        for rank, log in enumerate(self.logged({"work": "replay", "steps": 24},
                                               variables_of)):
            crossing = {f"{kind}/{name}" for one, other, kind, name in CHANNEL.findall(log)
                        if node(int(one)) != node(int(other))}
            self.note(f"rank {rank}: between nodes via {sorted(crossing)}")
            if self.ranks == 2:
                self.assertEqual(crossing, {"NET/Socket"}, log[-3000:])
            self.assertLessEqual(crossing, {"NET/Socket"}, log[-3000:])

    def test_rank_0_may_come_late(self):
        with processes.Run(self, self.folder) as run:
            peers = [self.start_rank(run, rank, {}) for rank in range(1, self.ranks)]
            time.sleep(2)
            peers.append(self.start_rank(run, 0, {}))
            run.wait_for_end(peers, START + END)
            self.expect_exact(run, peers)

    def test_a_port_that_another_program_has_is_an_error_within_the_host_timeout(self):
        with socket.socket() as other, processes.Run(self, self.folder) as run:
            other.bind(("127.0.0.1", 0))
            other.listen(64)  # and never says a word
            place = f"127.0.0.1:{other.getsockname()[1]}"
            peers = self.start_all(run, {"expect_error": True}, meet=place,
                                   host_timeout=SHORT_HOST_TIMEOUT)
            run.wait_for_end(peers, SHORT_HOST_TIMEOUT + MARGIN + START / 3)
            for peer in peers:
                report = run.report_of(peer)
                self.note(f"{peer.name}: after {report['error_after']:.1f} s: {report['error']}")
                self.assertIn("communicator 'world'", report["error"])
                self.assertLessEqual(report["error_after"], SHORT_HOST_TIMEOUT + MARGIN)
                self.assertEqual(peer.process.returncode, 0)

    def launched(self, command, launcher, **variables):
        with processes.Run(self, self.folder) as run:
            whole = run.start(command[0], [*command, PEER],
                              processes.environment(self.nccl, **variables))
            run.wait_for_end([whole], LAUNCH)
            reports = whole.reports()
            self.assertEqual(sorted(each["rank"] for each in reports), list(range(self.ranks)))
            for report in reports:
                self.assertIn(f", by {launcher} (", report["launch"])
                self.assertTrue(report["good"], report)
            self.assertEqual(whole.process.returncode, 0)
            self.note(reports[0]["launch"])

    def test_open_mpi_starts_them(self):
        mpirun = shutil.which("mpirun")
        said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60,
                              check=False).stdout if mpirun else ""
        if "Open MPI" not in said:
            self.skipTest("no Open MPI's mpirun")
        # Several ranks a core, and no ssh, are fine here.
        self.launched([mpirun, "--allow-run-as-root", "--oversubscribe", "-np", str(self.ranks)],
                      "Open MPI", OMPI_MCA_plm_rsh_agent="", WEIR_MEET=self.address)

    def test_torchrun_starts_them(self):
        if importlib.util.find_spec("torch") is not None:
            command = [sys.executable, "-m", "torch.distributed.run"]
        elif shutil.which("torchrun"):
            command = [shutil.which("torchrun")]
        else:
            self.skipTest("no torchrun")
        self.launched([*command, "--standalone", "--nproc-per-node", str(self.ranks),
                       "--no-python"], "torchrun")

    def test_hydra_starts_them(self):
        mpiexec = shutil.which("mpiexec.hydra")
        if not mpiexec:
            self.skipTest("no mpiexec.hydra")
        self.launched([mpiexec, "-n", str(self.ranks)], "Hydra", WEIR_MEET=self.address)

    def test_srun_starts_them(self):
        srun, sinfo = shutil.which("srun"), shutil.which("sinfo")
        if not srun or not sinfo or subprocess.run([sinfo], capture_output=True, timeout=60,
                                                   check=False).returncode != 0:
            self.skipTest("no srun, or no Slurm that answers")
        self.launched([srun, "--ntasks", str(self.ranks)], "srun", WEIR_MEET=self.address)


def main():
    global PEER
    arguments = sys.argv[1:]
    if arguments and not arguments[0].startswith("-") and arguments[0] not in globals():
        PEER = arguments.pop(0)
    if not PEER:
        sys.exit(__doc__)
    PEER = str(pathlib.Path(PEER).resolve())
    result = unittest.main(argv=[sys.argv[0], *arguments], exit=False, verbosity=2).result
    if not result.wasSuccessful():
        sys.exit(1)
    skipped = bool(result.skipped) and len(result.skipped) >= max(result.testsRun, 1)
    sys.exit(SKIPPED if skipped else 0)


if __name__ == "__main__":
    main()
