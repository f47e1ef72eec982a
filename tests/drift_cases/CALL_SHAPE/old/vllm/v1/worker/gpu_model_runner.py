import torch


class GPUModelRunner:
    def execute_model(self, ids):
        event = torch.cuda.Event()
        event.record()
        return ids
