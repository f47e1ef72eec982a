"""What stands where a Triton kernel stood."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

# Keywords that steer Triton's compilers for CUDA and HIP (3.9) and not the result. A launch may
# carry them.
_COMPILER_OPTIONS = frozenset(
    {
        "num_warps",
        "num_stages",
        "num_ctas",
        "maxnreg",
        "launch_cooperative_grid",
        "launch_pdl",
        "debug",
        "enable_fp_fusion",
        "waves_per_eu",
        "matrix_instr_nonkdim",
        "kpack",
        "sanitize_overflow",
        "instrumentation_mode",
    }
)


def parameter_names(kernel: Any) -> tuple[str, ...]:
    """Return the parameter names of a kernel, in launch order.

    ``kernel`` is a Triton ``JITFunction`` or vLLM's ``KernelOverride`` (both carry
    ``arg_names``), an object that wraps a Python function (``fn`` or ``func``), or, where Triton
    is not installed, the plain function that the decorator left.
    """
    names = getattr(kernel, "arg_names", None)
    if names is None:
        function = getattr(kernel, "fn", None) or getattr(kernel, "func", None) or kernel
        names = inspect.signature(function).parameters
    return tuple(names)


class KernelStandIn:
    """Runs a Python implementation wherever the launches of one Triton kernel go.

    ``stand_in[grid](*args, **kwargs)`` binds the arguments by the parameter names of the original
    kernel and calls the implementation with keywords. The grid is not used: the shapes of the
    tensors say how much there is to do. Names in ``arg_names``, ``constexprs``, ``func``,
    ``__name__`` and ``__module__`` are what vLLM's warm-up reads of a kernel.

    Raises TypeError when constructed if the original has a parameter that the implementation does
    not take, or lacks one that it needs: the kernel has changed, and a launch could not be right.
    """

    def __init__(
        self, original: Any, implementation: Callable[..., None], target: str = ""
    ) -> None:
        """Stand in for ``original``, in whatever form the process holds it.

        ``target`` is the dotted path of the kernel. It names the stand-in; without it the original
        does, which for a ``KernelOverride`` is the name of vLLM's own CPU implementation.
        """
        self.original = original
        self.func = implementation
        self.arg_names = parameter_names(original)
        self.constexprs = getattr(original, "constexprs", None)
        module = str(getattr(original, "__module__", ""))
        name = str(getattr(original, "__name__", implementation.__name__))
        self._label = target or (f"{module}.{name}" if module else name)
        self.__name__ = self._label.rpartition(".")[2]
        self.__module__ = module
        self.__qualname__ = self.__name__
        self.__doc__ = implementation.__doc__
        self._known = frozenset(self.arg_names)
        self._required = self._check_signature(implementation)

    def _check_signature(self, implementation: Callable[..., None]) -> frozenset[str]:
        """Compare both parameter lists; return the names that a launch must give."""
        parameters = inspect.signature(implementation).parameters
        unknown = [name for name in self.arg_names if name not in parameters]
        needed = {n for n, p in parameters.items() if p.default is inspect.Parameter.empty}
        absent = sorted(needed - self._known)
        if unknown or absent:
            differences = [f"{n!r} is not handled" for n in unknown]
            differences += [f"{n!r} is gone" for n in absent]
            raise TypeError(
                f"the parameters of kernel {self._label} differ from those its implementation "
                f"was written for: {', '.join(differences)}"
            )
        return frozenset(needed)

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        """Return the launcher, as ``kernel[grid]`` does."""
        return self.launch

    def launch(self, *args: Any, **kwargs: Any) -> None:
        """Run the implementation with the arguments of one launch."""
        self.func(**self._bind(args, kwargs))

    def run(self, *args: Any, grid: Any = None, warmup: bool = False, **kwargs: Any) -> None:
        """Launch as Triton's ``kernel.run`` does; with ``warmup`` only check the arguments."""
        if warmup:
            self.warmup(*args, **kwargs)
        else:
            self.launch(*args, **kwargs)

    def warmup(self, *args: Any, grid: Any = None, **kwargs: Any) -> None:
        """Check the arguments of a compile-only launch. There is nothing to compile."""
        self._bind(args, kwargs)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        # Runs at every launch: one pass over sets for the usual call, details only on error.
        if args:
            positional = dict(zip(self.arg_names, args, strict=False))
            if len(args) > len(self.arg_names) or not positional.keys().isdisjoint(kwargs):
                self._refuse_positional(args, kwargs)
            kwargs = positional | kwargs
        if not kwargs.keys() <= self._known:
            kwargs = self._without_compiler_options(kwargs)
        if not kwargs.keys() >= self._required:
            missing = ", ".join(n for n in self.arg_names if n in self._required - kwargs.keys())
            raise TypeError(f"launch of kernel {self._label} lacks {missing}; {self._takes}")
        return kwargs

    def _without_compiler_options(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        unknown = [n for n in kwargs if n not in self._known and n not in _COMPILER_OPTIONS]
        if unknown:
            raise TypeError(
                f"launch of kernel {self._label} has unknown argument "
                f"{', '.join(map(repr, unknown))}; {self._takes}"
            )
        return {n: value for n, value in kwargs.items() if n in self._known}

    def _refuse_positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(args) > len(self.arg_names):
            what = f"{len(args)} positional arguments for {len(self.arg_names)} parameters"
        else:
            twice = [name for name in self.arg_names[: len(args)] if name in kwargs]
            what = f"{', '.join(map(repr, twice))} given twice"
        raise TypeError(f"launch of kernel {self._label} has {what}; {self._takes}")

    @property
    def _takes(self) -> str:
        return f"it takes {', '.join(self.arg_names)}"

    def __repr__(self) -> str:
        """Name the kernel and what runs in its place."""
        return f"<{type(self).__name__} for {self._label}: {self.func.__name__}>"
