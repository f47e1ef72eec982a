import torch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class Event:
    def __init__(self, enable_timing=False):
        self.enable_timing = enable_timing

    def record(self, stream=None):
        pass


torch.cuda.Event = Event


class CPUModelRunner(GPUModelRunner):
    pass
