# SPDX-License-Identifier: Apache-2.0
"""What torch.cuda's memory functions return with Weir has the shape and the keys of what they return
with PyTorch's own allocator, in the version at hand: one program, run with each on a fake runtime.

usage: memory_interface_test.py FOLDER STUBS    (simulated.py)
"""

import json

import simulated

# Prints what each function returns, with types for values. A list's elements are shown as one that has the keys of all.
PROGRAM = r"""
import functools, json, re, sys, warnings
warned = []
warnings.showwarning = lambda message, *rest, **named: warned.append(str(message).splitlines()[0])
""" + simulated.CONTEXT + r"""
memory = torch.cuda.memory
def tensor(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")
def merged(one, other):
    if isinstance(one, dict) and isinstance(other, dict):
        return {**one, **other, **{key: merged(one[key], other[key]) for key in one.keys() & other.keys()}}
    if isinstance(one, list) and isinstance(other, list):
        return [functools.reduce(merged, one + other)] if one + other else []
    return one if one == other else f"{one}, {other}"
def shape(value):
    if isinstance(value, dict):
        return {str(key): shape(each) for key, each in value.items() if key != "frames"}
    if isinstance(value, (list, tuple)):
        return [functools.reduce(merged, map(shape, value))] if value else []
    return type(value).__name__
memory._record_memory_history("all", stacks="python")
memory._set_memory_metadata("phase")
kept = [tensor(1 << 20), tensor(5 << 20)]
if hasattr(memory, "_annotate_tensor"):
    memory._annotate_tensor(kept[1], "weights")
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    kept.append(tensor(8 << 20))
kept.pop(0)
for size in (1 << 45, 1 << 61):
    try:
        kept.append(tensor(size))
    except torch.OutOfMemoryError as error:
        assert str(error).startswith("CUDA out of memory. Tried to allocate"), error
memory._snapshot()
snapshot = memory._snapshot()
entries = {}
for entry in snapshot.pop("device_traces")[0]:
    entries[entry["action"]] = sorted(entry)
    if entry["action"] == "snapshot":
        entries["active"] = entry["size"]
    if entry["action"] == "annotate":
        entries["annotation"] = [entry["size"], entry["user_metadata"], entry["pool_id"]]
settings = snapshot["allocator_settings"]
nested = torch.cuda.memory_stats_as_nested_dict()
pools = nested.get("reserved_bytes_by_private_pools", {})
out = {
    "snapshot": shape(snapshot), "entries": entries, "settings": settings,
    "memory_snapshot": shape(torch.cuda.memory_snapshot()), "pool.snapshot": shape(pool.snapshot()),
    "memory_stats": shape(torch.cuda.memory_stats()), "nested": shape(nested),
    "pools": {str(id): stat["all"]["current"] > 0 for id, stat in pools.items()},
    "num_ooms": nested["num_ooms"],
    "summary": [re.sub(r"[-\d]+|[KMG]?i?B", "", line).split() for line in torch.cuda.memory_summary().splitlines()],
    "abbreviated": len(torch.cuda.memory_summary(abbreviated=True).splitlines()),
    "host_stats": shape(torch.cuda.host_memory_stats()),
    "backend": torch.cuda.get_allocator_backend(),
    "supports metadata": getattr(memory, "_memory_metadata_supported", lambda: None)(),
    "metadata": memory._get_memory_metadata(),
    "fraction": memory.get_per_process_memory_fraction(),
}
for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "mem_get_info"):
    out[name] = shape(getattr(torch.cuda, name)())
for name in ("reset_peak_memory_stats", "reset_accumulated_memory_stats", "empty_cache"):
    out[name] = shape(getattr(torch.cuda, name)())
out["reset"] = {key: value for key, value in torch.cuda.memory_stats().items() if value != 0 and "freed" in key}
torch.cuda.set_per_process_memory_fraction(0.5)
out["warned"] = [text for text in warned if "NumPy" not in text]
print(json.dumps(out))
"""
WEIR = "import weir\nassert weir.enable('full') == 'full'\n"


class MemoryInterface(simulated.Simulated):
    def both(self, **environment):
        return [json.loads(self.run_code(begin + PROGRAM, **environment)[0]) for begin in ("", WEIR)]

    def test_all_is_as_natively(self):
        native, weir = self.both()
        # Weir's segments are pages that are mapped, and others go back.
        for of in (native, weir):
            for action in ("segment_alloc", "segment_free", "segment_map", "segment_unmap"):
                of["entries"].pop(action, None)
            of["settings"].pop("PYTORCH_CUDA_ALLOC_CONF")
        self.assertTrue(weir["settings"].pop("expandable_segments"))
        self.assertFalse(native["settings"].pop("expandable_segments"))
        self.assertEqual(native.keys(), weir.keys())
        for name, value in native.items():
            with self.subTest(name):
                self.assertEqual(weir[name], value)
        self.assertIn("oom", weir["entries"])

    def test_what_goes_has_the_stack_of_its_end_or_else_of_the_allocation(self):
        program = simulated.CONTEXT + """
import json
memory = torch.cuda.memory
def the_allocation():
    return torch.empty(48, dtype=torch.uint8, device="cuda")
def the_end(kept):
    kept.pop()
def of_the_heap():
    the_end([the_allocation()])
    memory.empty_cache()
def of_a_pool():
    pool = [torch.cuda.MemPool()]
    with torch.cuda.use_mem_pool(pool[0]):
        kept = [the_allocation()]
    pool[0].snapshot()
    the_end(kept)
    the_end(pool)
def names(entry):
    return [frame["name"] for frame in entry.get("frames", []) if frame["name"].startswith(("the_", "empty"))]
def recorded(context, use):
    memory._record_memory_history(context=context, stacks="python")
    use()
    entries = {entry["action"]: entry for entry in memory._snapshot()["device_traces"][0]}
    memory._record_memory_history(None)
    found = {action: names(entry) for action, entry in entries.items()}
    if "snapshot" in entries:
        found["snapshot"] = [entries["snapshot"].get(key) for key in ("size", "pool_id")]
    return found
print(json.dumps({f"{context} {use.__name__}": recorded(context, use)
                  for context in ("alloc", "all", "state") for use in (of_the_heap, of_a_pool)}))
"""
        native, weir = [json.loads(self.run_code(begin + program)[0]) for begin in ("", WEIR)]
        for name, entries in native.items():
            for action in entries:
                if not action.startswith("segment"):
                    self.assertEqual(weir[name][action], entries[action], (name, action))
        self.assertEqual(weir["alloc of_the_heap"]["free_completed"], ["the_allocation"])
        self.assertEqual(weir["all of_a_pool"]["free_completed"], ["the_end"])
        self.assertGreater(weir["state of_a_pool"]["snapshot"][0], 0)
        unmapped = {name: entries["segment_unmap"] for name, entries in weir.items()}
        self.assertEqual(unmapped, {
            "alloc of_the_heap": ["the_allocation"], "alloc of_a_pool": ["the_allocation"],
            "all of_the_heap": ["empty_cache"], "all of_a_pool": ["the_end"],
            "state of_the_heap": [], "state of_a_pool": []})

    # SGLang calls the one, older libraries the other.
    def test_expandable_segments_that_are_switched_off_in_either_way_are_plain_memory(self):
        printed, _ = self.run_code(simulated.CONTEXT + """
import warnings
warnings.simplefilter("ignore")
kept = []
def is_expandable():
    kept.append(torch.empty(4 << 20, dtype=torch.uint8, device="cuda"))
    return [segment["is_expandable"] for segment in torch.cuda.memory_snapshot()
            if segment["address"] <= kept[-1].data_ptr() < segment["address"] + segment["total_size"]]
for tell in (torch._C._accelerator_setAllocatorSettings, torch.cuda.memory._set_allocator_settings):
    tell("expandable_segments:False")
    print(is_expandable())
    tell("expandable_segments:True")
    print(is_expandable())
""", begin=WEIR)
        self.assertEqual(printed.splitlines(), ["[False]", "[True]"] * 2)

    # They are PyTorch's allocator of pinned memory's, which honours them whatever the GPU's allocator is.
    def test_settings_of_pinned_memory_bring_no_warning(self):
        conf = "pinned_use_background_threads:True,pinned_num_register_threads:2"
        native, weir = self.both(PYTORCH_CUDA_ALLOC_CONF=conf)
        self.assertEqual(weir["warned"], native["warned"])
        self.assertEqual(weir["settings"]["pinned_num_register_threads"], 2)


if __name__ == "__main__":
    simulated.main()
