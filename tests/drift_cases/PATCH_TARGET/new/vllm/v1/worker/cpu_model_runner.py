import vllm.v1.worker.fill_ops
from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class FuncWrapper:
    def __init__(self, func):
        self.func = func

    def __getitem__(self, grid):
        return self.func


def fill(out, value):
    out.fill_(value)


vllm.v1.worker.fill_ops.fill_kernel = FuncWrapper(fill)


class CPUModelRunner(GPUModelRunner):
    pass
