from vllm.v1.worker.fill_ops import fill


class GPUModelRunner:
    def execute_model(self, ids):
        fill(ids)
        return ids
