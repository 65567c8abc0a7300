# SPDX-License-Identifier: Apache-2.0
"""The Python package where there is no GPU, and often no PyTorch: it imports, and says what is missing.

usage: package_test.py LIBRARY    (of the build: libweir_pluggable.so)
"""

import ctypes
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import installed


class Package(installed.Installed):
    def test_imports_and_reports_with_neither_gpu_nor_torch(self):
        printed = self.run_code("import weir; i = weir.info(); print(i['pluggable'], i['backend'])")
        self.assertEqual(printed, "True None")

    @unittest.skipIf(importlib.util.find_spec("torch"), "this Python has PyTorch")
    def test_info_says_that_torch_is_missing(self):
        info = self.info()
        self.assertIsNone(info["torch"])
        self.assertIn("PyTorch is not installed: of Weir, the tools work (python -m weir look, ...).",
                      info["problems"])

    def test_info_says_that_the_build_has_no_cuda(self):
        says = "built without CUDA"
        self.assertFalse(any(says in each for each in self.info()["problems"]))
        marker = pathlib.Path(self.folder.name, "weir", "no_cuda.txt")
        marker.write_text("")
        try:
            self.assertTrue(any(says in each for each in self.info()["problems"]))
        finally:
            marker.unlink()

    def test_info_says_why_torch_cant_be_imported(self):
        for error, says in (("raise OSError('libcudart.so.13: cannot open shared object file')",
                             "OSError: libcudart.so.13: cannot open"),
                            ("import typing_extensions_that_are_missing", "ModuleNotFoundError: No"),
                            ("import os; os.abort()", "Python ended with signal 6")):
            with self.subTest(says):
                info = self.info(PYTHONPATH=self.torch_package("2.11.0+cu130", error))
                self.assertEqual(info["torch"], "2.11.0+cu130")
                [problem] = [each for each in info["problems"] if "can't be imported" in each]
                self.assertIn("PyTorch 2.11.0+cu130 is installed", problem)
                self.assertIn(says, problem)

    def test_the_backend_of_the_minor_version_and_cuda_is_taken_if_its_functions_are_pytorchs(self):
        self.backend("2.11.0+cu130", table=416)
        self.backend("2.14.1+cu130", table=472)
        self.assertEqual(self.info()["built_for"], ["2.11.0+cu130", "2.14.1+cu130"])
        for version, cuda, table, backend, says in (
                ("2.11.0+cu130", "13.0", 416, "2.11-cu13", ""),
                ("2.14.1", "13.0", 472, "2.14-cu13", ""),
                ("2.14.0+cu132", "13.2", 472, "2.14-cu13", "compiled for PyTorch 2.14.1; 2.14.0 has the same"),
                ("2.14.7", "13.0", 480, None, "2.14.7 with CUDA 13.0 has other functions than 2.14.1+cu130"),
                ("2.14.1", "13.0", None, None, "has other functions"),
                ("2.14.2a0+git1", "13.0", 472, None, "2.14.2a0+git1 is no release"),
                ("2.14.1+cu126", "12.6", 472, None,
                 "backends for PyTorch 2.11-cu13, 2.14-cu13, and this is 2.14.1+cu126 with CUDA 12.6"),
                ("2.10.0", "13.0", 400, None, "backends for PyTorch 2.11-cu13, 2.14-cu13, and this is 2.10.0")):
            with self.subTest(version):
                info = self.info(PYTHONPATH=self.torch_package(version, "", cuda, table))
                self.assertEqual((info["torch"], info["backend"]), (version, backend))
                lacking = [each for each in info["problems"] if "Weir uses the pluggable library" in each]
                said = info["notes"] if backend else lacking
                self.assertEqual((len(lacking), len(said)), (not backend, bool(says)), info)
                self.assertIn(says, "".join(said))

    def test_info_names_a_damaged_backend(self):
        path = self.torch_package("2.11.0+cu130", "")
        folder = self.backend("2.11.0+cu130")
        for content, says in ((b"", "file too short"),
                              (installed.LIBRARY.read_bytes(), "undefined symbol: weir_torch_built_for")):
            with self.subTest(says):
                (folder / "libweir_torch.so").write_bytes(content)
                self.assertTrue(any("backend can't be loaded" in each and says in each
                                    for each in self.info(PYTHONPATH=path)["problems"]))
        for odd in (b"", b"\xff\xfe"):
            (folder / "built_for.json").write_bytes(odd)
            self.assertIsNone(self.info(PYTHONPATH=path)["backend"])

    def test_info_tells_a_damaged_library_from_a_missing_one(self):
        library = pathlib.Path(self.folder.name, "weir", installed.LIBRARY.name)
        whole = library.read_bytes()
        self.addCleanup(library.write_bytes, whole)
        library.write_bytes(b"junk")
        [problem] = [each for each in self.info()["problems"]
                     if each.startswith("The pluggable library can't be loaded: ")]
        self.assertIn("--no-build-isolation", problem)

    def test_the_folder_of_the_sources_is_told_from_an_installation(self):
        code = f"import sys; sys.path.insert(0, {str(installed.SOURCE.parent)!r}); import weir; "
        self.assertIn("this is Weir's source folder", self.run_code(code + "print(weir.info())"))

    def test_a_torch_that_the_backend_cannot_be_built_for_leaves_the_pluggable_library(self):
        sources, build = installed.SOURCE.parents[2], tempfile.mkdtemp(dir=self.folder.name)
        parts = [f"-DWEIR_{part}=OFF" for part in ("TESTS", "BENCHMARKS", "TOOLS", "INSTALL")]
        result = subprocess.run(
            ["cmake", "-S", sources, "-B", build, "-DWEIR_PYTHON=ON",
             f"-DPython3_EXECUTABLE={sys.executable}", *parts,
             *(["-G", "Ninja"] if shutil.which("ninja") else [])],
            capture_output=True, text=True, timeout=120,
            env={**os.environ, "PYTHONPATH": self.torch_package("2.11.0", "")})
        self.assertEqual(result.returncode, 0, result.stderr)
        if "weir: CUDA ON" in result.stdout:  # without a toolkit no backend is wanted
            self.assertIn("without the backend", " ".join(result.stderr.split()))

    def test_info_of_sources_that_were_not_installed_names_one_trouble_and_no_other(self):
        library = pathlib.Path(self.folder.name, "weir", installed.LIBRARY.name)
        library.rename(library.with_suffix(".away"))
        self.addCleanup(library.with_suffix(".away").rename, library)
        problems = self.info(PYTHONPATH=self.torch_package("2.11.0", ""))["problems"]
        self.assertIn("Weir was not installed by pip", problems[0])
        self.assertFalse(any("backend" in each or "only the pluggable" in each
                             for each in problems), problems)

    def test_a_recording_may_have_stacks_of_a_kind_of_its_own(self):
        printed = self.run_on_sim(
            "import os\n"
            "turn_on()\n"
            "for stacks in ('python', 'cpp', 'none', None):\n"
            "    with weir.record(f'{stacks}.weir', stacks=stacks):\n"
            "        pass\n"
            "    assert os.path.exists(f'{stacks}.weir')\n"
            "try:\n"
            "    with weir.record('x.weir', stacks='perl'):\n"
            "        pass\n"
            "except weir.Problem as problem:\n"
            "    print(problem, os.path.exists('x.weir'))\n")
        self.assertIn('not "perl" False', printed[0])

    def test_memory_sleeps_and_wakes_by_tag_on_the_simulated_device(self):
        lines = self.run_on_sim(
            "import threading\n"
            "turn_on()\n"
            "def in_thread():\n"
            "    thread = threading.Thread(target=allocate)\n"
            "    thread.start(); thread.join()\n"
            "allocate()\n"
            "with weir.tag('weights', device=0):\n"
            "    allocate(); in_thread()\n"
            "with weir.tag('own', 'discard', threads='own', device=0):\n"
            "    allocate(); in_thread()\n"
            "assert len(blocks) == 5\n"
            "slept = weir.sleep(['weights', 'own'], device=0)\n"
            "print(slept['bytes'] >> 20, slept['copied_bytes'] >> 20)\n"
            "tags = weir.tags(device=0)\n"
            "print(*(tags[name]['state'] for name in ('default', 'weights', 'own')), tags['own']['contents'])\n"
            "with weir.tag('weights', device=0):\n"
            "    print(allocate(), 'weights' in library.weir_last_error().decode())\n"
            "print(weir.wake('weights', keep_host=1 << 30, device=0)['copied_bytes'] >> 20)\n"
            "print(weir.tags(device=0)['own']['state'], weir.residue(0)['host_bytes'] >> 20)\n"
            "weir.changed('weights', device=0)\n"
            "print(weir.sleep(device=0)['kept_bytes'], weir.residue(0)['weir_bytes'])\n"
            "weir.wake(device=0)\n"
            "for bad in (lambda: weir.sleep('no', device=0), lambda: weir.sleep(contents='gone', device=0)):\n"
            "    try:\n"
            "        bad()\n"
            "    except (weir.Problem, ValueError) as problem:\n"
            "        print(problem)\n")
        self.assertEqual(lines[:6], ["24 16", "awake asleep asleep discard", "9 True", "16",
                                     "asleep 64", "0 0"])
        self.assertIn("there is no tag 'no'; there are 'default', 'own', 'weights'", lines[6])
        self.assertIn("contents='gone'", lines[7])

    def with_groups(self, groups, code):
        """What `code` prints, with 8 MiB of Weir's and these groups of torch.distributed."""
        here = str(pathlib.Path(__file__).parent)
        return self.run_on_sim(
            f"import sys, torch; sys.path.append({here!r})\n"
            "import fake_process_groups as fake\n"
            "from fake_process_groups import Backend, Gloo, OldBackend, OldNccl\n"
            "assert allocate() == 0\n"
            "turn_on()\n"
            "def state(): return weir.tags(0)['default']['state']\n"
            "def refused(call):\n"
            "    try:\n"
            "        call()\n"
            "        print('not refused')\n"
            "    except weir.Problem as problem:\n"
            "        print(problem, state(), fake.calls)\n"
            "def sleep(): return weir.sleep(communicators=True)\n"
            f"groups = dict({groups})\n"
            "world = fake.install(torch, **groups)\n"
            + code + "weir.wake()\n")

    # A group that was made with use_local_synchronization is not of the same place on all ranks.
    def test_nccls_groups_sleep_in_the_order_of_their_names_if_that_is_asked_for(self):
        printed = self.with_groups(
            "pair=Backend('pair', 64 << 20), cpu=None, gloo=Gloo(), unused=Backend('unused', None), "
            "all=Backend('all', 512 << 20, 7)",
            "print(weir.sleep()['communicator_bytes'], weir.wake()['communicator_bytes'], fake.calls)\n"
            "with weir.tag('other'): pass\n"
            "print(weir.sleep('default', communicators=True)['communicator_bytes'] >> 20, state(), fake.calls)\n"
            "print(sleep()['communicator_bytes'])  # they sleep already\n"
            "print(weir.wake('other')['communicator_bytes'] >> 20, state(), fake.calls)\n"
            "print(weir.wake()['communicator_bytes'], state(), len(fake.calls))\n")
        slept, woken = ["suspend all", "suspend pair"], ["resume all", "resume pair"]
        self.assertEqual(printed, ["0 0 []", f"576 asleep {slept}", "0", f"576 asleep {slept + woken}", "0 awake 4"])

    def test_a_group_that_others_suspended_or_that_is_gone_is_left_to_them(self):
        printed = self.with_groups(
            "mine=Backend('mine', 1), theirs=Backend('theirs', 2), gone=Backend('gone', 4)",
            "groups['theirs'].suspend()\n"
            "print(sleep()['communicator_bytes'])\n"
            "world.pg_names.pop(next(group for group, name in world.pg_names.items() if name == 'gone'))\n"
            "print(weir.wake()['communicator_bytes'], fake.calls[-1], groups['theirs'].memory_stats()['suspended'])\n")
        self.assertEqual(printed, ["5", "1 resume mine 1"])

    def test_communicators_that_cant_be_suspended_are_refused_before_anything_sleeps(self):
        for groups, before, says in (
                ("a=Backend('a', 1), b=OldBackend()", "", "PyTorch 9.9 can't suspend NCCL's groups; 2.12"),
                ("a=Backend('a', 1), b=OldNccl('b', 1)", "", "can't suspend group 'b': NCCL MemStats failed (requires"),
                ("a=Backend('a', 1)", "world.pg_coalesce_state['a'] = []\n", "operations of torch.distributed are in "
                 "flight")):
            printed = self.with_groups(groups, before + "refused(sleep)\n")
            self.assertIn(says, printed[0])
            self.assertTrue(printed[0].endswith(" awake []"), printed)

    def test_a_suspension_that_fails_on_the_way_is_woken_by_wake(self):
        printed = self.with_groups(
            "a=Backend('a', 1), b=Backend('b', 2), c=Backend('c', 4)",
            "groups['b'].fails = 'not supported with split_share communicators'\n"
            "refused(sleep)\n"
            "print(weir.wake()['communicator_bytes'], state(), fake.calls[2:])\n"
            "print(sleep()['communicator_bytes'])\n"
            "groups['b'].fails = 'ncclSystemError'\n"
            "refused(weir.wake)\n"
            "print(weir.wake()['communicator_bytes'], state())\n"
            "torch.distributed.is_initialized = lambda: False\n"
            "print(sleep()['communicator_bytes'])\n")
        self.assertIn("NCCL can't suspend group 'b': not supported with split_share", printed[0])
        self.assertTrue(printed[0].endswith("asleep ['suspend a', 'suspend b']"), printed[0])
        self.assertEqual(printed[1:3], ["1 awake ['resume a']", "7"])
        self.assertIn("NCCL can't resume group 'b': ncclSystemError", printed[3])
        self.assertEqual(printed[4:], ["6 awake", "0"])

    def saver(self, code, **variables):
        """What `code` prints, with torch_memory_saver's interface on the simulated device."""
        return self.run_on_sim(
            "import weir.torch_memory_saver\n"
            "turn_on()\n"
            "def states():\n"
            "    return ' '.join(f'{n}={i[\"state\"]}:{i[\"host_bytes\"] >> 20}' for n, i in weir.tags(0).items())\n"
            "try:\n"
            "    weir.torch_memory_saver.install()\n"
            "except weir.Problem as problem:\n"
            "    print(problem)\n"
            "    raise SystemExit\n"
            "import torch_memory_saver\n"
            "from torch_memory_saver import torch_memory_saver as saver\n" + code, **variables)

    def test_torch_memory_savers_interface_pauses_and_resumes(self):
        printed = self.saver(
            "import os\n"
            "saver.hook_mode = 'preload'\n"
            "allocate()\n"
            "with saver.region('weights', enable_cpu_backup=True):\n"
            "    allocate()\n"
            "    with saver.disable():\n"
            "        allocate()\n"
            "with saver.region('weights'), saver.region('cache'):\n"
            "    allocate()\n"
            "saver.pause('cache'); print(states())\n"
            "saver.pause(); print(states())\n"
            "with saver.region('cache'):\n"
            "    print(allocate())\n"
            "print(allocate())\n"
            "saver.resume('weights'); saver.resume(); print(states())\n"
            "with torch_memory_saver.configure_subprocess():\n"
            "    print(os.environ['WEIR_ENABLE'])\n"
            "print('WEIR_ENABLE' in os.environ)\n")
        def line(cache, backup, discard):
            return (f"default=awake:0 memory_saver, disabled=awake:0 memory_saver:cache:discard={cache} "
                    f"memory_saver:weights:backup={backup} memory_saver:weights:discard={discard}")
        self.assertEqual(printed, [
            line("asleep:0", "awake:0", "awake:0"), line("asleep:0", "asleep:8", "asleep:0"), "9", "0",
            line("awake:0", "awake:0", "awake:0"), "1", "False"])

    def test_torch_memory_savers_variables_are_heeded(self):
        cycle = ("allocate()\n"
                 "with saver.region('weights', enable_cpu_backup=True):\n"
                 "    allocate()\n"
                 "with saver.disable():\n"
                 "    allocate()\n"
                 "saver.pause(); print(states())\n"
                 "saver.resume(); print(states(), weir.residue(0)['host_bytes'] >> 20)\n"
                 "saver.pause('weights'); print(states()); saver.resume('weights')\n")
        def states(default, weights):
            return f"default={default} memory_saver, disabled=awake:0 memory_saver:weights:backup={weights}"
        awake, weights = "awake:0", "asleep:8"
        self.assertEqual(self.saver(cycle), [states(awake, weights), states(awake, awake) + " 0",
                                             states(awake, weights)])
        self.assertEqual(self.saver(cycle, TMS_INIT_ENABLE="1", TMS_RETAIN_CPU_BACKUP="true",
                                    TMS_HOOK_MODE="preload", TMS_DISK_BACKUP_CHUNK_MB="64",
                                    TMS_INIT_CPU_BACKUP_BACKEND="mmap"),
                         [states("asleep:0", weights), states(awake, awake) + " 64",
                          states(awake, weights)])
        self.assertEqual(self.saver(cycle, TMS_INIT_ENABLE="1", TMS_INIT_ENABLE_CPU_BACKUP="1")[0],
                         states("asleep:8", weights))

    def test_a_backup_on_disk_is_refused(self):
        printed = self.saver(
            "try:\n"
            "    saver.set_disk_backup_dir('/there')\n"
            "    with saver.region(enable_disk_backup=True): pass\n"
            "except ValueError as error:\n"
            "    print(error)\n"
            "saver.retain_cpu_backup = True\n"
            "print(saver.retain_cpu_backup)\n", TMS_DISK_BACKUP_DIR="/scratch")
        self.assertIn("enable_cpu_backup=True instead", printed[0])
        self.assertEqual(printed[1], "True")
        self.assertIn("TMS_INIT_ENABLE_CPU_BACKUP=1 instead",
                      self.saver("", TMS_INIT_ENABLE_DISK_BACKUP="1")[0])

    def test_torch_memory_savers_kinds_of_backup_are_taken_where_there_is_one(self):
        printed = self.saver(
            "with saver.region('weights', enable_cpu_backup=True, cpu_backup_backend='mmap'):\n"
            "    allocate()\n"
            "saver.pause(); print(states()); saver.resume()\n"
            "for wrong in (dict(cpu_backup_backend='pinned'),\n"
            "              dict(enable_cpu_backup=True, cpu_backup_backend='disk')):\n"
            "    for enter in (saver.region, lambda **named: saver.cuda_graph(None, **named)):\n"
            "        try:\n"
            "            with enter(**wrong): pass\n"
            "        except ValueError as error:\n"
            "            print(error)\n")
        missing = "cpu_backup_backend requires enable_cpu_backup=True"
        unknown = """cpu_backup_backend='disk': it is "pinned" or "mmap\""""
        self.assertEqual(printed, ["default=awake:0 memory_saver:weights:backup=asleep:8",
                                   missing, missing, unknown, unknown])

    def test_what_is_freed_while_torch_memory_saver_is_disabled_goes_back_to_the_driver(self):
        printed = self.saver(
            "with saver.region('weights'): allocate()\n"
            "saver.pause()\n"
            "with saver.disable():\n"
            "    allocate()\n"
            "    assert library.weir_deallocate(handle, blocks.pop()) == 0\n"
            "    print(weir.residue(0)['weir_bytes'] > 0)\n"
            "print(weir.residue(0)['weir_bytes'])\n"
            "saver.resume()\n")
        self.assertEqual(printed, ["True", "0"])

    # As SGLang does, whose plugins come after its own modules.
    def test_modules_that_have_imported_torch_memory_saver_get_weirs(self):
        printed = self.run_code(
            "import sys, types, weir, weir.torch_memory_saver\n"
            "weirs = weir.torch_memory_saver\n"
            "from weir import _enable\n"
            "theirs = types.ModuleType('torch_memory_saver')\n"
            "theirs.torch_memory_saver = types.SimpleNamespace(_impl=None)\n"
            "engine = types.ModuleType('engine')\n"
            "engine.module, engine.saver, engine.other = theirs, theirs.torch_memory_saver, None\n"
            "sys.modules.update(torch_memory_saver=theirs, engine=engine)\n"
            "weirs.register()\n"
            "print(engine.module is theirs)  # Weir is off\n"
            "_enable._state.update(kind='pluggable')\n"
            "theirs.torch_memory_saver._impl = 'in use'\n"
            "try:\n"
            "    weirs.register()\n"
            "except weir.Problem as problem:\n"
            "    print(problem, engine.module is theirs)\n"
            "theirs.torch_memory_saver._impl = None\n"
            "weirs.register(); weirs.register()\n"
            "import torch_memory_saver\n"
            "print(torch_memory_saver is engine.module is weirs, engine.saver is weirs.torch_memory_saver, engine.other)\n")
        self.assertEqual(printed.splitlines(), [
            "True", "torch_memory_saver is in use in this process: call weir.torch_memory_saver.install() before its "
            "first region True", "True True None"])

    def test_torch_memory_savers_other_variables_are_refused_by_name(self):
        for name, value, says in (("TMS_NONSENSE", "1", "TMS_NONSENSE: weir.torch_memory_saver knows no such"),
                                  ("TMS_INIT_ENABLE", "maybe", "TMS_INIT_ENABLE=maybe: it is 1 or 0")):
            self.assertIn(says, self.saver("", **{name: value})[0])

    def test_vllms_interface_of_a_sleep_mode_backend(self):
        here = str(pathlib.Path(__file__).parent)
        printed = self.run_on_sim(
            f"import sys, types; sys.path.append({here!r})\n"
            "import fake_vllm, weir.vllm\n"
            "allocators, lora = fake_vllm.install()\n"
            "weir.vllm.register()\n"
            "factory = fake_vllm.SleepModeBackendFactory\n"
            "config = types.SimpleNamespace(sleep_mode_backend='weir')\n"
            "try:\n"
            "    factory.create_backend(config)\n"
            "except ValueError as error:\n"
            "    print(error, allocators.get_mem_allocator_instance())\n"
            "turn_on()\n"
            "weir.vllm.register()\n"
            "allocator = allocators.get_mem_allocator_instance()\n"
            "print(allocator.get_current_usage(), lora.get_mem_allocator_instance() is allocator)\n"
            "allocate(2)\n"
            "with allocator.use_memory_pool(tag='weights'):\n"
            "    allocate(8)\n"
            "with allocator.use_memory_pool(tag='runtime'):\n"
            "    allocate(4)\n"
            "    with allocator.use_memory_pool(tag='kv_cache'):\n"
            "        allocate(16)\n"
            "with allocator.cudagraph_pool() as pool:\n"
            "    allocate(6)\n"
            "with allocator.cudagraph_pool() as again:\n"
            "    print(pool == again)\n"
            "def say():\n"
            "    print(backend.state(), *(f'{n.split(\":\")[-1]}:{i[\"state\"]}:{i[\"host_bytes\"] >> 20}'\n"
            "                             for n, i in weir.tags(0).items()))\n"
            "backend = factory.create_backend(config); say()\n"
            "backend.suspend(); say()\n"
            "print(allocator.get_current_usage() >> 20)\n"
            "backend.resume(['weights']); say()\n"
            "backend.resume(['kv_cache']); say()\n"
            "backend.suspend(level=2); say()\n"
            "backend.resume(); say()\n"
            "backend.discard(('kv_cache',)); say()\n"
            "backend.suspend(); say()\n"
            "backend.discard(('weights',)); say()\n"
            "backend.resume(['kv_cache']); say()\n"
            "backend.resume(); say()\n")

        def line(state, default="awake:0", graphs="awake:0", cache="awake:0", runtime="awake:0",
                 weights="awake:0"):
            return (f"{state} default:{default} cudagraph:{graphs} kv_cache:{cache} "
                    f"runtime:{runtime} weights:{weights}")

        # What has bytes to keep, and as many MiB of them on the host.
        kept = dict(default="asleep:2", graphs="asleep:6", runtime="asleep:4")
        self.assertEqual(printed, [
            "weir is not supported None", "0 True", "True",
            line("RUNNING"),
            line("SUSPENDED", **kept, cache="asleep:0", weights="asleep:8"), "34",
            line("RUNNING", cache="asleep:0"),
            line("RUNNING"),
            line("SUSPENDED", **kept, cache="asleep:0", weights="asleep:0"),
            line("RUNNING"),
            line("SUSPENDED", cache="asleep:0"),
            line("SUSPENDED", **kept, cache="asleep:0", weights="asleep:8"),
            line("SUSPENDED", **kept, cache="asleep:0", weights="asleep:8"),  # not lost by a discard
            line("RUNNING", weights="asleep:8"),
            line("RUNNING")])

    def test_nothing_but_the_c_interface_is_seen_from_outside(self):
        if shutil.which("nm") is None:
            self.skipTest("nm is not installed")
        symbols = subprocess.run(["nm", "-D", "--defined-only", installed.LIBRARY], check=True,
                                 capture_output=True, text=True).stdout.split("\n")
        others = [line for line in symbols if line and not line.split()[-1].startswith("weir_")]
        self.assertEqual(others, [])

    def test_too_late_is_said_with_the_remedy(self):
        path = self.fake_torch(cuda="types.SimpleNamespace(is_initialized=lambda: True)")
        result = self.python("-m", "weir", "run", "program.py", PYTHONPATH=path)
        self.assertIn("PyTorch has used CUDA already", result.stderr)
        self.assertIn("python -m weir run", result.stderr)

    def test_a_missing_backend_stops_or_falls_back_as_chosen(self):
        path = self.fake_torch()
        result = self.python("-m", "weir", "run", "--allocator", "full", "program.py",
                             PYTHONPATH=path)
        self.assertEqual(result.returncode, 1)
        self.assertIn("no backend for PyTorch", result.stderr)
        code = ("import weir, warnings\n"
                "with warnings.catch_warnings(record=True) as caught:\n"
                "    warnings.simplefilter('always')\n"
                "    try:\n"
                "        weir.enable()\n"
                "    except AttributeError:\n"
                "        pass  # this torch has no CUDAPluggableAllocator\n"
                "print(caught[0].message)\n")
        self.assertIn("Falling back to the pluggable library",
                      self.run_code(code, PYTHONPATH=path, WEIR_DEVICE="sim"))

    def test_a_backend_that_is_damaged_or_for_another_torch_is_named_and_not_used(self):
        code = ("import types\nversion = types.SimpleNamespace(cuda='13.0')\n__version__ = '2.11.0'\n"
                "cuda = types.SimpleNamespace(is_initialized=lambda: False)\n")
        path = self.torch_package("2.11.0", code)
        for content, built_for, says in (
                (b"", "2.11.0", "file too short"),
                (installed.LIBRARY.read_bytes(), "2.11.0", "can't be used"),
                (b"", "2.12.0", "Weir has backends for PyTorch 2.12-cu13, and this is 2.11.0")):
            with self.subTest(says):
                folder = self.backend(built_for, content=content)
                result = self.python("-m", "weir", "run", "--allocator", "full", "program.py",
                                     PYTHONPATH=path)
                shutil.rmtree(folder)
                self.assertEqual(result.returncode, 1)
                self.assertIn(says, result.stderr)
                self.assertIn("--force-reinstall", result.stderr)
                self.assertNotIn("Traceback", result.stderr)

    # PyTorch leaked such graphs up to 2.13.
    def test_the_debug_mode_of_graphs_is_told_to_the_library(self):
        for version, told in (("2.13.1+cu130", ["PyTorch", "Weir"]), ("2.14.0", ["PyTorch"])):
            printed = self.run_code(
                "import torch, weir\n"
                "weir.enable('pluggable')\n"
                "tell = weir._enable.active().weir_torch_assume_graphs_leak\n"
                "weir._enable.active().weir_torch_assume_graphs_leak = lambda: (tell(), print('Weir'))\n"
                "torch.cuda.CUDAGraph().enable_debug_mode()\n",
                PYTHONPATH=self.fake_torch(__version__=repr(version), **self.PLUGGABLE), WEIR_DEVICE="sim")
            self.assertEqual(printed.splitlines(), told)

    def test_a_capture_begins_with_idle_memory(self):
        printed = self.run_code(
            "import torch, weir\n"
            "weir.enable('pluggable')\n"
            "library = weir._enable.active()\n"
            "begin, end = library.weir_torch_idle_memory_begin, library.weir_torch_idle_memory_end\n"
            "library.weir_torch_idle_memory_begin = lambda *of: (print('begins'), begin(*of))[1]\n"
            "library.weir_torch_idle_memory_end = lambda *of: (end(*of), print('ends'))\n"
            "print(torch.cuda.CUDAGraph().capture_begin(pool=(1, 2)))\n"
            "try:\n"
            "    torch.cuda.CUDAGraph().capture_begin(())\n"
            "except ZeroDivisionError:\n"
            "    print('fails')\n",
            PYTHONPATH=self.fake_torch(**self.PLUGGABLE), WEIR_DEVICE="sim")
        self.assertEqual(printed.splitlines(), ["begins", "PyTorch (1, 2)", "ends", "0.5",
                                                "begins", "PyTorch ()", "ends", "fails"])

    def test_a_capture_that_fails_is_closed(self):
        printed = self.run_code(
            "import types\n"
            "from weir import _enable\n"
            "class CUDAGraph:\n"
            "    def capture_begin(self, works): print('begins', 1 / works)\n"
            "    def capture_end(self, works=1): print('ends', 1 / works)\n"
            "torch = types.SimpleNamespace(__version__='2.13.0', cuda=types.SimpleNamespace(CUDAGraph=CUDAGraph))\n"
            "library = types.SimpleNamespace(weir_torch_close_failed_captures=lambda: print('closed'))\n"
            "_enable._close_failed_captures(torch, library)\n"
            "graph = CUDAGraph()\n"
            "for call in (lambda: graph.capture_begin(works=1), lambda: graph.capture_end(),\n"
            "             lambda: graph.capture_begin(works=0), lambda: graph.capture_end(0)):\n"
            "    try:\n"
            "        call()\n"
            "    except ZeroDivisionError:\n"
            "        print('fails')\n")
        self.assertEqual(printed.splitlines(), ["begins 1.0", "ends 1.0", "closed", "fails", "closed", "fails"])

    # A graph of the pool (3, 7), and a library that says what it is told; `status`: of the next begin.
    LAUNCHES = (
        "import os, sys, types\n"
        "os.environ['WEIR_GRAPH_SCRATCH'] = 'lend'\n"
        "from weir import _graphs, _in_use\n"
        "device, stream, status, captures = 0, 0, 0, False\n"
        "gate, watched = lambda own: None, lambda: ()\n"
        "class CUDAGraph:\n"
        "    def capture_begin(self): print('captures')\n"
        "    def pool(self): return 3, 7\n"
        "    def replay(self):\n"
        "        print('replays', *watched())\n"
        "        if error := getattr(self, 'error', None): raise error\n"
        "    def raw_cuda_graph(self): return 11\n"
        "    def raw_cuda_graph_exec(self): return 12\n"
        "def begin(*of):\n"
        "    print('begin', *of[:-1])\n"
        "    of[-1]._obj.value = None if status else 5\n"
        "    return status\n"
        "library = types.SimpleNamespace(\n"
        "    weir_torch_tell_of_launches=lambda told: print('told', told),\n"
        "    weir_torch_graph_launch_begin=begin,\n"
        "    weir_torch_graph_launch_end=lambda launch, launched: launch and print('end', launch.value, launched),\n"
        "    weir_torch_keep_scratch=lambda *of: print('keep', *of) or 0,\n"
        "    weir_torch_launch_gate=lambda device, own: gate(own),\n"
        "    weir_last_error=lambda: b'none left')\n"
        "torch = sys.modules['torch'] = types.SimpleNamespace(\n"
        "    cuda=types.SimpleNamespace(CUDAGraph=CUDAGraph, current_device=lambda: device, device_count=lambda: 2),\n"
        "    _C=types.SimpleNamespace(_cuda_getCurrentRawStream=lambda device: 10 * device + stream,\n"
        "                             _cuda_isCurrentStreamCapturing=lambda: captures,\n"
        "                             _cuda_getDevice=lambda: device),\n"
        "    OutOfMemoryError=type('OutOfMemoryError', (RuntimeError,), {}))\n"
        "_graphs.tell_of_launches(torch, library)\n"
        "_in_use.state['library'] = library\n"
        "graph = CUDAGraph()\n")

    def test_a_replay_is_told_from_its_begin_to_its_end_with_the_device_of_the_capture(self):
        printed = self.run_code(self.LAUNCHES + (
            "for device in (0, 1):\n"
            "    graph.capture_begin()\n"
            "    device, stream = 0, 4\n"
            "    graph.replay()\n"))
        self.assertEqual(printed.splitlines(), [
            "told 1", "captures", "told 0", "begin 0 3 7 4", "replays", "end 5 1",
            "told 1", "captures", "told 0", "begin 1 3 7 14", "replays", "end 5 1"])

    def test_a_replay_tells_of_nothing_until_something_is_lent_unless_it_is_captured(self):
        printed = self.run_code(self.LAUNCHES + (
            "import ctypes, threading\n"
            "closed, threads = ctypes.c_uint8(), []\n"
            "def gate(own):\n"
            "    threads.append(ctypes.c_uint8())\n"
            "    own._obj.value = ctypes.addressof(threads[-1])\n"
            "    return ctypes.addressof(closed)\n"
            "def watched(): return [byte.value for byte in threads]\n"
            "def replays():\n"
            "    graph.replay()\n"
            "    print(*watched())\n"
            "graph.capture_begin()\n"
            "replays()\n"
            "for name in 'one after', 'the other':\n"
            "    thread = threading.Thread(target=replays)\n"
            "    thread.start()\n"
            "    thread.join()\n"
            "captures = True\n"
            "replays()\n"
            "captures, device = False, 1\n"  # another than the graph's: its stream was not asked about
            "replays()\n"
            "device, closed.value = 0, 1\n"
            "replays()\n"))
        told = ["begin 0 3 7 0", "replays 0 0", "end 5 1", "0 0"]
        self.assertEqual(printed.splitlines()[3:], ["replays 1", "0", *["replays 0 1", "0 0"] * 2, *told * 3])

    def test_a_replay_that_fails_is_ended_and_one_that_is_interrupted_counts_as_launched(self):
        printed = self.run_code(self.LAUNCHES + (
            "for graph.error in (RuntimeError('refused'), KeyboardInterrupt()):\n"
            "    try:\n"
            "        graph.replay()\n"
            "    except BaseException as error:\n"
            "        print(type(error).__name__)\n"))
        self.assertEqual(printed.splitlines(), [
            "begin 0 3 7 0", "replays", "end 5 0", "RuntimeError",
            "begin 0 3 7 0", "replays", "end 5 1", "KeyboardInterrupt"])

    def test_a_replay_without_memory_is_out_of_memory_as_pytorch_has_it(self):
        printed = self.run_code(self.LAUNCHES + (
            "for status in (1, 2):\n"
            "    for call in (graph.replay, lambda: _graphs.launching(graph).__enter__()):\n"
            "        try:\n"
            "            call()\n"
            "        except Exception as error:\n"
            "            print(type(error).__name__, error)\n"))
        self.assertEqual(printed.splitlines(), [
            "begin 0 3 7 0", "OutOfMemoryError none left",
            "begin 0 3 7 0", "OutOfMemoryError none left",
            "begin 0 3 7 0", "Problem none left", "begin 0 3 7 0", "Problem none left"])

    def test_a_pool_keeps_its_scratch_once_the_program_has_a_handle_of_a_graph(self):
        printed = self.run_code(self.LAUNCHES + "print(graph.raw_cuda_graph(), graph.raw_cuda_graph_exec())\n")
        self.assertEqual(printed.splitlines(), ["keep 0 3 7 1", "11 12"])

    def test_a_pool_that_keeps_its_scratch_for_another_reason_goes_on(self):
        printed = self.run_code(self.LAUNCHES + (
            "with _graphs.launching(graph): pass\n"
            "graph.raw_cuda_graph()\n"
            "with _graphs.launching(graph):\n"
            "    captures = True\n"  # the replay is part of another graph
            "    graph.replay()\n"))
        self.assertEqual(printed.splitlines(), ["begin 0 3 7 0", "end 5 1", "begin 0 3 7 0",
                                                "begin 0 3 7 0", "replays", "end 5 1", "end 5 1"])

    def test_a_program_that_launches_a_handle_says_so(self):
        printed = self.run_code(self.LAUNCHES + (
            "import weir\n"
            "graph.raw_cuda_graph_exec()\n"
            "for on in (None, types.SimpleNamespace(cuda_stream=6)):\n"
            "    with weir.launching(graph, on):\n"
            "        print('launches', graph.raw_cuda_graph_exec())\n"
            "try:\n"
            "    with weir.launching(graph):\n"
            "        graph.replay()\n"
            "        with weir.launching(graph):\n"
            "            raise ValueError\n"
            "except ValueError:\n"
            "    graph.replay()\n"
            "with weir.launching(graph):\n"
            "    stream = 1\n"
            "    for call in (graph.replay, lambda: weir.launching(graph).__enter__()):\n"
            "        try:\n"
            "            call()\n"
            "        except weir.Problem as problem:\n"
            "            print(problem)\n"))
        other = ("weir.launching(): a graph of the pool is launched on another stream within the block: launch it "
                 "after the block")
        self.assertEqual(printed.splitlines(), [
            "keep 0 3 7 1", "keep 0 3 7 0", "begin 0 3 7 0", "launches 12", "end 5 1",
            "begin 0 3 7 6", "launches 12", "end 5 1",
            "begin 0 3 7 0", "replays", "end 5 1",
            "begin 0 3 7 0", "replays", "end 5 1",
            "begin 0 3 7 0", other, other, "end 5 1"])

    def test_captures_and_replays_are_pytorchs_own_unless_scratch_is_lent(self):
        for settings, told in (({}, 0), ({"graph_scratch": "keep"}, 0), ({"graph_scratch": "lend"}, 1)):
            printed = self.run_code(
                "import torch, weir\n"
                "replay = torch.cuda.CUDAGraph.replay = lambda self: None\n"
                f"weir.enable('pluggable', **{settings})\n"
                "weir._enable.active().weir_torch_tell_of_launches = lambda told: print('told', told)\n"
                "torch.cuda.CUDAGraph().capture_begin(pool=(1, 2))\n"
                "print(torch.cuda.CUDAGraph.replay is replay)\n",
                PYTHONPATH=self.fake_torch(**self.PLUGGABLE), WEIR_DEVICE="sim")
            self.assertEqual(printed.splitlines(),
                             ["told 1", "PyTorch (1, 2)", "told 0", "False"] if told else
                             ["PyTorch (1, 2)", "True"])

    def test_pytorch_is_told_of_expandable_segments_beside_what_is_set(self):
        printed = self.run_code(
            "from weir._enable import with_expandable_segments\n"
            "for conf in ('', 'expandable_segments:False', 'a:1,expandable_segments:False , b:[1:2,3:4]',\n"
            "             'expandable_segments:True'):\n"
            "    print(with_expandable_segments(conf))\n")
        self.assertEqual(printed.splitlines(), [
            "expandable_segments:True", "expandable_segments:True",
            "a:1, b:[1:2,3:4],expandable_segments:True", "expandable_segments:True"])

    def test_torchs_own_settings_are_honoured_or_named(self):
        printed = self.run_code(
            "from weir._enable import settings_of\n"
            "from weir import Problem\n"
            "for conf in ('expandable_segments:True, per_process_memory_fraction:0.5,'\n"
            "             'roundup_power2_divisions:[256:1,512:2],max_split_size_mb:20',\n"
            "             'per_process_memory_fraction:0.00000001', 'a:[1,2', 'b:1],c:2', ',,:,'):\n"
            "    print(settings_of(conf))\n"
            "for value in ('', 'abc', '0', '-1', '2', 'nan', 'inf', '1e-12'):\n"
            "    try:\n"
            "        print(settings_of('per_process_memory_fraction:' + value))\n"
            "    except Problem as problem:\n"
            "        assert 'per_process_memory_fraction:' + value in str(problem), problem\n")
        self.assertEqual(printed.splitlines(), [
            "({'WEIR_LIMIT': '50%'}, ['roundup_power2_divisions', 'max_split_size_mb'])",
            "({'WEIR_LIMIT': '0.000001%'}, [])", "({}, ['a'])", "({}, ['b'])", "({}, [\"':'\"])"])

    def test_a_tensor_for_another_process_turns_weir_on_there(self):
        path = pathlib.Path(tempfile.mkdtemp(dir=self.folder.name))
        package = path / "torch" / "multiprocessing"
        package.mkdir(parents=True)
        (path / "torch" / "__init__.py").write_text(
            "import types\nclass Tensor:\n    def __init__(self, cuda): self.cuda = cuda\n"
            "_tensor_classes = ()\n"
            "nn = types.SimpleNamespace(parameter=types.SimpleNamespace(Parameter=type('P', (), {})))\n")
        (package / "__init__.py").write_text("")
        (package / "reductions.py").write_text(
            "def rebuild_cuda_tensor(*a): return ('cuda', *a)\n"
            "def rebuild_tensor(*a): return ('cpu', *a)\n"
            "def reduce_tensor(t):\n"
            "    return (rebuild_cuda_tensor if t.cuda else rebuild_tensor), (1, 2)\n")
        code = ("import pickle, torch, weir\n"
                "from multiprocessing.reduction import ForkingPickler\n"
                "from weir import _sharing\n"
                "_sharing.bring_along(torch)\n"
                "sent = [bytes(ForkingPickler.dumps(torch.Tensor(c))) for c in (True, False)]\n"
                "import os; os.environ['WEIR_RECORD'] = 'run.weir'\n"
                "weir.enable = lambda kind: print('enabled', kind, os.environ['WEIR_RECORD'])\n"
                "print(pickle.loads(sent[1]))\n"
                "print(pickle.loads(sent[0]))\n")
        printed = self.run_code(code, PYTHONPATH=f"{path}{os.pathsep}{self.folder.name}")
        self.assertEqual(printed.splitlines(),
                         ["('cpu', 1, 2)", unittest.mock.ANY, "('cuda', 1, 2)"])
        self.assertRegex(printed.splitlines()[1], r"enabled full run-\d+\.weir")

    def test_what_is_no_device_is_named_with_what_is_allowed(self):
        printed = self.run_code(
            "import weir\n"
            "weir.enable('pluggable')\n"
            "print(weir.stats(0)['live_blocks'])\n"
            "for call in (weir.stats, weir.residue):\n"
            "    for bad in (-1, 1 << 32, 0.5, []):\n"
            "        try:\n"
            "            print('taken', call(bad))\n"
            "        except (TypeError, ValueError) as error:\n"
            "            print(error)\n",
            PYTHONPATH=self.fake_torch(**self.PLUGGABLE), WEIR_DEVICE="sim")
        lines = printed.splitlines()
        self.assertEqual(lines[0], "0")
        self.assertEqual(lines[1:], [
            f"device is {bad}: it must be a number from 0 on, a torch.device of type cuda, its name, "
            "or None (the current one)" for bad in ("-1", str(1 << 32), "0.5", "[]")] * 2)

    def test_what_is_off_says_how_to_turn_it_on(self):
        for call in ("weir.trim()", "weir.stats(0)", "weir.snapshot('x', 0)"):
            result = self.python("-c", f"import weir; {call}")
            self.assertIn("Weir is not on", result.stderr)


if __name__ == "__main__":
    installed.LIBRARY = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)
