from vllm.v1.worker.fill_ops import fill_kernel


class GPUModelRunner:
    def execute_model(self, ids):
        fill_kernel[(1,)](ids, 0)
        return ids
