# SPDX-License-Identifier: Apache-2.0
"""What a benchmark ran on, for its results."""
import ctypes
import os
import pathlib
import platform
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def first_line(command):
    """What the command prints first; None if it can't be run, or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else None


def gpu():
    """Its name, the driver's version and its memory, in one line; None: there is none."""
    return first_line(["nvidia-smi", "--format=csv,noheader",
                       "--query-gpu=name,driver_version,memory.total"])


def count_gpus():
    """As CUDA counts them, CUDA_VISIBLE_DEVICES and all."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def commit():
    return first_line(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"])


def cpu_model(text):
    """Out of /proc/cpuinfo. With the numbers: the name in a virtual machine may say little."""
    fields = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    numbers = [f"{name} {fields[key]}" for name, key in
               (("family", "cpu family"), ("model", "model"), ("stepping", "stepping"))
               if fields.get(key)]
    return " ".join([fields.get("model name") or platform.processor() or platform.machine(),
                     *([f"({', '.join(numbers)})"] if numbers else [])])


def processor():
    try:
        return cpu_model(pathlib.Path("/proc/cpuinfo").read_text())
    except OSError:
        return cpu_model("")


def machine(no_gpu):
    found = None if no_gpu else gpu()
    name, driver, memory = found.split(", ") if found and found.count(", ") == 2 else [None] * 3
    return {"cpu": processor(), "cores": os.cpu_count(), "kernel": platform.release(), "gpu": name,
            "driver": driver, "gpu_memory": memory, "commit": commit()}
