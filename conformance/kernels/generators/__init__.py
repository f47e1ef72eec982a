"""Generators of kernels' inputs, by the kernel's name on the surface."""

from __future__ import annotations

from conformance.kernels.generators import drafting, mamba, moving, rejection, slots, warming
from conformance.kernels.generators.generator import Generator

GENERATOR: dict[str, Generator] = {
    generator.kernel: generator
    for module in (slots, drafting, rejection, mamba, moving, warming)
    for generator in module.GENERATORS
}
