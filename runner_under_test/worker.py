"""The worker that serves with the CPU runner.

``vllm serve MODEL --worker-cls runner_under_test.worker.CPUWorker``, or
``LLM(..., worker_cls="runner_under_test.worker.CPUWorker")``.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import vllm
from packaging.specifiers import SpecifierSet
from vllm.config import CompilationMode, VllmConfig, set_current_vllm_config
from vllm.logger import init_logger
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.worker_base import CompilationTimes
from vllm.v1.worker.workspace import init_workspace_manager

from runner_under_test import SUPPORTED_VLLM, host
from runner_under_test.diagnosis import explains_missing_patches
from runner_under_test.model_runner import CPUModelRunner
from runner_under_test.patches import REGISTER, left_out

logger = init_logger("vllm.runner_under_test")


@explains_missing_patches
class CPUWorker(Worker):
    """vLLM's GPU worker with the host's CPU as its device.

    It holds the patches from its construction to its shutdown, and differs from its base where the
    base asks for a CUDA device: set-up of the device, sizing of the KV cache, sleeping.
    """

    model_runner_class: type[GPUModelRunner] = CPUModelRunner

    def __init__(
        self,
        vllm_config: VllmConfig,
        local_rank: int,
        rank: int,
        distributed_init_method: str,
        is_driver_worker: bool = False,
    ) -> None:
        self._shared_memory = ""
        self._holds_patches = False
        self._hold_patches()
        try:
            torch.ops._C.init_cpu_memory_env([host.worker_memory().node])
            super().__init__(
                vllm_config,
                local_rank,
                rank,
                distributed_init_method,
                is_driver_worker=is_driver_worker,
            )
        except BaseException:
            # No worker comes of it, so nobody will shut it down.
            self._release_patches()
            raise
        self.parallel_config.disable_custom_all_reduce = True

    def init_device(self) -> None:
        """Set the CPU up as the device, join the other workers and build the runner."""
        self.device = torch.device("cpu")
        # vLLM's communicator names its shared memory after this variable.
        method = self.distributed_init_method
        self._shared_memory = (
            os.path.basename(method.removeprefix("file://"))
            if method.startswith("file://")
            else method.rpartition(":")[2]
        )
        os.environ["VLLM_DIST_IDENT"] = self._shared_memory
        init_worker_distributed_environment(
            self.vllm_config,
            self.rank,
            method,
            self.local_rank,
            current_platform.dist_backend,
        )
        set_random_seed(self.model_config.seed)
        init_workspace_manager(self.device, 1)
        runner = self._v2_runner_class() if self.use_v2_model_runner else self.model_runner_class
        self.model_runner = runner(self.vllm_config, self.device)

    def _v2_runner_class(self) -> type[Any]:
        """The V2 runner, whose modules need Triton and are imported where it is asked for only.

        Raises:
            ValueError: this worker serves with a V1 runner of somebody's own.
        """
        if self.model_runner_class is not CPUModelRunner:
            raise ValueError(
                f"{self.model_runner_class.__qualname__} is a V1 model runner: set "
                "VLLM_USE_V2_MODEL_RUNNER=0."
            )
        from runner_under_test.model_runner_v2 import CPUModelRunner as CPUModelRunnerV2

        return CPUModelRunnerV2

    @torch.inference_mode()
    def determine_available_memory(self) -> int:
        """Run the model once, so that it is compiled and its memory is in use, and size the cache.

        Returns the KV cache's size in bytes. The base measures free device memory around that run;
        on a host it is shared with every other process, so this process's own memory counts.
        """
        with set_current_vllm_config(self.vllm_config), _frozen_weights(self.vllm_config):
            self.model_runner.profile_run()
        size = host.kv_cache_bytes(
            host.worker_memory(),
            self.cache_config.gpu_memory_utilization,
            self.cache_config.kv_cache_memory_bytes,
        )
        logger.info("The KV cache gets %.2f GiB.", size / 2**30)
        return size

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Compile what has not been compiled yet, and seed the random state anew.

        The base warms up kernels of GPU-only models here, whose modules need not be importable on a
        host without them; the model itself ran in `determine_available_memory`, unless it has no
        KV cache.
        """
        if not self.model_runner.kv_caches:
            with set_current_vllm_config(self.vllm_config), _frozen_weights(self.vllm_config):
                self.model_runner.profile_run()
        self._seed()
        return CompilationTimes(
            language_model=self.compilation_config.compilation_time,
            encoder=self.compilation_config.encoder_compilation_time,
        )

    def _seed(self) -> None:
        seed = self.model_config.seed
        if "data_parallel_index" in inspect.signature(set_random_seed).parameters:
            set_random_seed(seed, self.parallel_config.data_parallel_index)
        else:  # up to vLLM 0.30
            set_random_seed(seed)

    def sleep(self, level: int = 1) -> None:
        """Do nothing but say so: there is no device whose memory sleeping would free."""
        logger.warning("Sleeping frees device memory, and the CPU runner has none: ignored.")

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Do nothing but say so, as `sleep` did."""
        logger.warning("The CPU runner does not sleep, so it is not woken up: ignored.")

    def shutdown(self) -> None:
        """Shut down as the GPU worker does, then take the patches and shared memory back."""
        try:
            super().shutdown()
        finally:
            host.unlink_shared_memory(self._shared_memory)
            self._release_patches()

    def _hold_patches(self) -> None:
        refuse_unsupported_version(vllm.__version__)
        REGISTER.hold(left_out())
        self._holds_patches = True

    def _release_patches(self) -> None:
        if self._holds_patches:
            self._holds_patches = False
            REGISTER.release()


def refuse_unsupported_version(version: str) -> None:
    """Raise RuntimeError, in one sentence, for a vLLM that the patches were not made for."""
    if not SpecifierSet(SUPPORTED_VLLM).contains(version, prereleases=True):
        raise RuntimeError(
            f"runner_under_test supports vLLM {SUPPORTED_VLLM}, and {version} is installed: "
            "install a supported release, or leave --worker-cls out to use vLLM's own CPU worker."
        )


@contextmanager
def _frozen_weights(vllm_config: VllmConfig) -> Iterator[None]:
    """Let inductor fold the weights while it compiles, which its tuned CPU kernels need."""
    import torch._inductor.config as inductor

    compilation = vllm_config.compilation_config
    tuned = compilation.mode != CompilationMode.NONE and compilation.inductor_compile_config.get(
        "max_autotune", False
    )
    before = inductor.freezing
    inductor.freezing = before or bool(tuned)
    try:
        yield
    finally:
        inductor.freezing = before
