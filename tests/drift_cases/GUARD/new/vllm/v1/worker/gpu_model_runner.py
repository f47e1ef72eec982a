import torch


class GPUModelRunner:
    def execute_model(self, ids):
        torch.cuda.synchronize()
        return ids
