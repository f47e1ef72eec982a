import torch
from vllm.platforms import current_platform


class GPUModelRunner:
    def execute_model(self, ids):
        if current_platform.is_cuda():
            torch.cuda.synchronize()
        return ids
