# SPDX-License-Identifier: Apache-2.0
"""As much of the sleep mode of vLLM 0.33 as a backend sees of it, for package_test.py: by the names,
the arguments and the order of calls of vllm.device_allocator."""
import importlib
import sys
import types


class SleepModeBackend:
    def __init__(self):
        self._state = "RUNNING"

    def state(self):
        return self._state


class SleepModeBackendFactory:
    registry = {}

    @classmethod
    def register_backend(cls, name, module_path, class_name):
        if name in cls.registry:
            raise ValueError(f"{name} is already registered")
        cls.registry[name] = lambda: getattr(importlib.import_module(module_path), class_name)

    @classmethod
    def create_backend(cls, model_config):
        name = model_config.sleep_mode_backend
        backend = cls.registry[name]()
        if not backend.is_supported():
            raise ValueError(f"{name} is not supported")
        return backend()


def install():
    """Puts modules of vLLM's names in place. Returns that of its allocators, and one that has
    imported from it already."""
    package = types.ModuleType("vllm")
    allocators = types.ModuleType("vllm.device_allocator")
    backends = types.ModuleType("vllm.device_allocator.sleep_mode_backend")
    package.__path__ = allocators.__path__ = []
    package.device_allocator = allocators
    allocators.sleep_mode_backend = backends
    allocators.get_mem_allocator_instance = lambda: None
    lora = types.ModuleType("vllm.v1.worker.lora_model_runner_mixin")
    lora.get_mem_allocator_instance = allocators.get_mem_allocator_instance
    backends.SleepModeBackend = SleepModeBackend
    backends.SleepModeBackendFactory = SleepModeBackendFactory
    sys.modules.update({"vllm": package, "vllm.device_allocator": allocators,
                        "vllm.device_allocator.sleep_mode_backend": backends,
                        lora.__name__: lora})
    return allocators, lora
