from vllm.triton_utils import tl, triton


@triton.jit
def fill_kernel(out, value, BLOCK: tl.constexpr):
    tl.store(out, value)


class GPUModelRunner:
    def execute_model(self, ids):
        fill_kernel[(1,)](ids, 0, BLOCK=16)
        return ids
