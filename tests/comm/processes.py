# SPDX-License-Identifier: Apache-2.0
"""Starts comm_peer as the ranks of a run, and ends them whatever happens."""

import json
import os
import signal
import subprocess
import time

# What tells a process its rank, or NCCL how to work. What the tests' own launcher set is not theirs.
FOREIGN = ("WEIR_", "NCCL_", "OMPI_", "PMIX_", "PMI_", "MPI_", "SLURM_", "TORCHELASTIC_")
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
                  "MASTER_ADDR", "MASTER_PORT")
# No multicast over NVLink, in whatever is started: a fault in it concerns all GPUs of the host.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
                "NVSHMEM_DISABLE_NVLS": "1"}


def environment(nccl_library=None, **variables):
    """This process's, without what names a rank, and with `variables`."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(FOREIGN) and name not in RANK_VARIABLES}
    kept.update(NO_MULTICAST)
    if nccl_library:
        kept["WEIR_NCCL_LIBRARY"] = nccl_library
    kept.update(variables)
    return kept


class Process:
    """A rank, or the launcher of several. What it prints goes to a file."""

    def __init__(self, name, command, variables, log):
        self.name, self.log = name, log
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                command, env=variables, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True)

    def text(self):
        return self.log.read_text(errors="replace")

    def objects(self):
        """The whole lines that are JSON objects."""
        found = []
        for line in self.text().split("\n")[:-1]:
            try:
                one = json.loads(line)
            except ValueError:
                continue
            if isinstance(one, dict):
                found.append(one)
        return found

    def reports(self):
        return [one for one in self.objects() if "rank" in one]

    def has_said(self, event):
        return any(one.get("event") == event for one in self.objects())

    def is_running(self):
        return self.process.poll() is None

    def send(self, number):
        if self.is_running():
            os.kill(self.process.pid, number)

    def end(self):
        """Ends it and its session: a launcher gets the time to end its ranks."""
        if self.is_running():
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                pass
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # its own session's, made above
        self.process.wait(30)


class Run:
    """The processes of one run: `with Run(test) as run: run.start(...)`. Waits fail the test when
    their time is up, and show what the processes printed; so does every other failure."""

    def __init__(self, test, folder):
        self.test, self.folder = test, folder
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        for process in self.processes:
            process.end()
        if kind is not None:
            for process in self.processes:
                text = process.text()
                print(f"---- {process.name}, exit {process.process.returncode}:\n{text[-6000:]}",
                      flush=True)

    def start(self, name, command, variables):
        log = self.folder / f"{len(self.processes)}.log"
        self.processes.append(Process(name, command, variables, log))
        return self.processes[-1]

    def wait_until(self, what, seconds, holds):
        end = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > end:
                self.test.fail(f"{what}: not within {seconds} s")
            time.sleep(0.05)

    def wait_for_event(self, event, processes, seconds):
        def all_said():
            for process in processes:
                if not process.is_running() and not process.has_said(event):
                    self.test.fail(f"{process.name} ended before it said '{event}'")
            return all(process.has_said(event) for process in processes)
        self.wait_until(f"'{event}'", seconds, all_said)

    def wait_for_end(self, processes, seconds):
        self.wait_until("the end of " + ", ".join(each.name for each in processes), seconds,
                        lambda: not any(each.is_running() for each in processes))

    def report_of(self, process):
        """The one report of a rank that has ended by itself."""
        reports = process.reports()
        self.test.assertEqual(len(reports), 1, f"{process.name} must report once")
        return reports[0]
