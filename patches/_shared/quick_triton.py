"""Triton's interpreter in a third of the processor time: what it does again for each operation is done once.

It computes the same bits. The attributes that are replaced are those of Triton 3.7.1 (`TRITON` in
gemmaspec/check/proof/environment.py); another Triton that lacks one fails at once.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from triton.language import core  # type: ignore[import-not-found]
from triton.runtime import interpreter  # type: ignore[import-not-found]


@functools.cache
def hasten() -> None:
    """Replace them, for the whole process."""
    builder = interpreter.interpreter_builder
    # a GPU looks for overflows of integers only when debugging, too
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    interpreter._patch_lang = _patching(interpreter._patch_lang)
    interpreter._get_np_dtype = _numpy_types(interpreter._get_np_dtype)
    core.block_type.__init__ = _block_types(core.block_type.__init__)
    core.tensor.__init__ = _make_tensor


def _patching(patch: Any) -> Any:
    """Return what gives Triton's language its interpreted functions, for good: the process does nothing else."""

    @functools.cache
    def once(function: Any) -> Any:
        patch(function)
        return interpreter._LangPatchScope()

    return once


def _numpy_types(convert: Any) -> Any:
    """Return the conversion of a type to numpy's, by name, because types of blocks cannot be hashed."""
    scalars = {one.name: one for one in vars(core).values() if type(one) is core.dtype and one.name != "void"}
    known = {name: convert(one) for name, one in scalars.items()}
    pointer = convert(core.pi32_t)

    def converted(type_: Any) -> Any:
        element = type_.scalar
        return pointer if element.is_ptr() else known[element.name]

    return converted


def _block_types(make: Any) -> Any:
    """Return the constructor of a block's type, which checks each shape once."""
    made: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        key = element_ty.name, tuple([core._unwrap_if_constexpr(size) for size in shape])
        if key not in made:
            make(self, element_ty, shape)
            made[key] = dict(vars(self))
        vars(self).update(made[key], element_ty=element_ty)

    return init


def _make_tensor(self: Any, handle: Any, type: Any) -> None:
    """Make a tensor, as Triton's own constructor does."""
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = _constants(tuple(type.shape) if type.is_block() else ())


@functools.cache
def _constants(shape: tuple[int, ...]) -> tuple[Any, Any]:
    return core.tuple([core.constexpr(size) for size in shape]), core.constexpr(math.prod(shape))
