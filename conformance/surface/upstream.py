"""What vLLM's own CPU runner does about the surface: names it rebinds, methods it replaces."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from conformance.surface import torch_api
from conformance.surface.program import Module, Program

_CPU_MODULE = re.compile(r"vllm\.v1\.worker\.(cpu_\w+|cpu(\.\w+)*)|vllm\.platforms\.cpu")
_KERNEL = re.compile(r"vllm(?:\.[a-z_]\w*)*\.((?:[A-Z]\w*\.)?\w*kernel\w*)")
_CLASSES = (
    ("vllm.v1.worker.cpu_model_runner", "CPUModelRunner", "v1"),
    ("vllm.v1.worker.cpu.model_runner", "CPUModelRunner", "v2"),
    ("vllm.v1.worker.cpu_worker", "CPUWorker", "worker"),
)


class Upstream:
    """Read from the modules of vLLM's CPU backend; nothing is executed."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self.rebound: frozenset[str] = frozenset(self._rebound())
        self.overridden: dict[str, frozenset[str]] = {
            role: frozenset(self._overridden(module, name)) for module, name, role in _CLASSES
        }

    def rebinds(self, attribute: str) -> bool:
        """Whether an attribute, or the class that it is a member of, is assigned."""
        if attribute.startswith("triton:"):
            return attribute in self.rebound
        parts = attribute.split(".")
        return any(".".join(parts[:count]) in self.rebound for count in range(2, len(parts) + 1))

    def overrides(self, role: str, method: str) -> bool:
        """Whether the CPU runner (``v1``, ``v2``) or ``worker`` replaces a method outright."""
        return method in self.overridden[role]

    def _modules(self) -> Iterator[Module]:
        for name in self._program.tree.files:
            if _CPU_MODULE.fullmatch(name):
                module = self._program.module(name)
                if module is not None:
                    yield module

    def _rebound(self) -> Iterator[str]:
        for module in self._modules():
            for part in ast.walk(ast.parse(module.text)):
                if isinstance(part, ast.Assign):
                    for target in part.targets:
                        if isinstance(target, ast.Attribute):
                            yield from self._named(module, target)
                            yield f"triton:{target.attr}"
                elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                    # A table of kernels by dotted name; a method of a class keeps its class.
                    kernel = _KERNEL.fullmatch(part.value)
                    if kernel is not None:
                        yield f"triton:{kernel[1]}"
                match part:
                    case ast.Call(
                        func=ast.Name(id="setattr"), args=[owner, ast.Constant(value=str(name)), _]
                    ):
                        yield from self._named(module, ast.Attribute(owner, name, ast.Load()))
                    case _:
                        pass

    def _named(self, module: Module, target: ast.Attribute) -> Iterator[str]:
        symbol = self._program.resolve(module, target)
        if symbol is not None and symbol.kind == "external" and symbol.name.startswith("torch."):
            yield torch_api.canonical(symbol.name)

    def _overridden(self, module_name: str, name: str) -> Iterator[str]:
        module = self._program.module(module_name)
        cls = module.classes.get(name) if module else None
        if module is None or cls is None:
            return
        for statement in cls.node.body:
            if isinstance(statement, ast.FunctionDef):
                module.restore(statement)
                if not calls_super(statement, statement.name):
                    yield statement.name


def calls_super(tree: ast.AST, name: str) -> bool:
    """Whether a method's source hands over to its base's method of that name."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == name
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id == "super"
        for node in ast.walk(tree)
    )
