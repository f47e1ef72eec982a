"""Tensor methods, and the arguments and literals that name the device."""

from __future__ import annotations

from tests.walker_cases.case import in_execute, runner

CASES = (
    in_execute(
        "tensor methods",
        """
        x = torch.zeros(1)
        x.pin_memory()  #! torch.Tensor.pin_memory call execute tier=direct
        x.record_stream(items)  #! torch.Tensor.record_stream call execute positional=items
        x.cuda()  #! torch.Tensor.cuda call execute
        """,
    ),
    in_execute(
        "a tensor method on the call itself",
        """
        return torch.zeros(1).pin_memory()  #! torch.Tensor.pin_memory call execute
        """,
    ),
    in_execute(
        "a tensor method on an item",
        """
        items[0].record_stream(flag)  #! torch.Tensor.record_stream call execute
        """,
    ),
    runner(
        "a tensor method on a parameter and a field",
        """
        import torch

        class GPUModelRunner:
            def __init__(self):
                self.buffer = torch.zeros(1)

            def execute_model(self, x: torch.Tensor):
                x.cuda()  #! torch.Tensor.cuda call execute
                self.buffer.pin_memory()  #! torch.Tensor.pin_memory call execute
        """,
    ),
    in_execute(
        "pin_memory=True",
        """
        torch.zeros(1, pin_memory=True)  #! pin_memory=True argument execute tier=direct cpu=true
        """,
    ),
    in_execute(
        "pin_memory on its own line",
        """
        torch.zeros(
            1,
            pin_memory=True,  #! pin_memory=True argument execute
        )
        """,
    ),
    runner(
        "pin_memory of an expression",
        """
        import torch

        class GPUModelRunner:
            def __init__(self, pin):
                self.pin = pin

            def execute_model(self):
                #! pin_memory=True argument execute guard=self.pin
                torch.zeros(1, pin_memory=self.pin)
        """,
    ),
    in_execute(
        "pin_memory of an expression that is false on a CPU",
        """
        pin = current_platform.is_cuda()  #! platform.is_cuda predicate execute
        torch.zeros(1, pin_memory=pin)  #! pin_memory=True argument execute cpu=false
        """,
    ),
    in_execute(
        "non_blocking=True",
        """
        items.copy_(flag, non_blocking=True)  #! non_blocking=True argument execute
        """,
    ),
    in_execute(
        "device='cuda' as a keyword",
        """
        torch.zeros(1, device="cuda")  #! device='cuda' argument execute
        """,
    ),
    in_execute(
        "device='cuda' in torch.device",
        """
        torch.device("cuda")  #! device='cuda' argument execute
        torch.zeros(1, device=torch.device("cuda:0"))  #! device='cuda' argument execute
        """,
    ),
    in_execute(
        "device='cuda' in torch.device of an f-string",
        """
        return torch.device(f"cuda:{flag}")  #! device='cuda' argument execute
        """,
    ),
    in_execute(
        "device='cuda' in to, with another argument",
        """
        x = torch.zeros(1)
        #! device='cuda' argument execute; non_blocking=True argument execute
        x.to("cuda", non_blocking=True)
        """,
    ),
)
