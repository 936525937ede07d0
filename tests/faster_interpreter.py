"""Make Triton's interpreter quicker: what it works out anew in every operation is worked out once.

Each replacement does what it replaces; a test holds them against Triton's own. Overflow of integers is refused, which
Triton computes and lets pass. Names are those of this version, and one that another version lacks is left alone.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from triton import language
from triton.language import core, semantic
from triton.runtime import interpreter


def speed_up() -> None:
    """Replace all of them, once."""
    parts = (
        _patch_once_a_launch, _call_builtins_at_once, _name_dtypes_once, _make_handles_plainly, _make_shapes_once,
        _unwrap_first, _check_types_first, _check_overflow_in_numpy,
    )  # fmt: skip
    for part in parts:
        try:
            part()
        except AttributeError:
            continue


def _patch_once_a_launch() -> None:
    """Replace the language once a launch, not at every call of a helper function, where nothing is left to replace."""
    patch, scope_type, inside = interpreter._patch_lang, interpreter._LangPatchScope, []

    def patch_once(fn: Any) -> Any:
        if inside:
            return scope_type()
        scope = patch(SimpleNamespace(__globals__={"tl": language, "core": language.core}))
        restore = scope.restore
        inside.append(scope)
        scope.restore = lambda: (inside.clear(), restore())
        return scope

    interpreter._patch_lang = patch_once


def _call_builtins_at_once() -> None:
    """Call the language's functions without the wrapper that asks for the semantics, which the interpreter gives."""

    def patch_attr(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        inner = getattr(member, "__wrapped__", member)  # members of the class tensor have no wrapper

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = interpreter.interpreter_semantic
            return inner(*args, **kwargs)

        scope.set_attr(obj, name, call)

    interpreter._patch_attr = patch_attr


def _make_handles_plainly() -> None:
    """Check the size of an array's items against its dtype's by their numbers."""
    init = interpreter.TensorHandle.__init__

    def handle(self: Any, data: Any, dtype: Any, attr: Any = None) -> None:
        if dtype.__class__ is core.dtype and 8 * data.itemsize > max(dtype.primitive_bitwidth, 8):
            init(self, data, dtype)  # which refuses it
        self.data, self.dtype, self.attr = data, dtype, {} if attr is None else attr

    interpreter.TensorHandle.__init__ = handle


def _name_dtypes_once() -> None:
    """Look a dtype's numpy counterpart up by name, and know a dtype by identity before its name."""
    of_type, equal, found = interpreter._get_np_dtype, core.dtype.__eq__, {}

    def of_name(dtype: Any) -> Any:
        if dtype.name not in found:
            found[dtype.name] = of_type(dtype)
        return found[dtype.name]

    integers = frozenset(core.dtype.SINT_TYPES + core.dtype.UINT_TYPES)
    interpreter._get_np_dtype = of_name
    core.dtype.__eq__ = lambda self, other: self is other or equal(self, other)
    core.dtype.is_int = lambda self: self.name in integers


def _make_shapes_once() -> None:
    """Make a block's shape once for all blocks of that shape, and broadcast only what differs in shape."""
    make_block, known_blocks, known_shapes = core.block_type.__init__, {}, {}
    broadcast = semantic.TritonSemantic.broadcast_impl_value

    def numbers(shape: Any) -> tuple[Any, ...]:
        return tuple([x.value if x.__class__ is core.constexpr else x for x in shape])

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        own = numbers(shape.values if shape.__class__ is core.tuple else shape)
        if own not in known_blocks:
            make_block(self, element_ty, shape)
            known_blocks[own] = self.shape, self.numel, str(self.shape)
        self.element_ty, self.numbers = element_ty, own
        self.shape, self.numel, text = known_blocks[own]
        self.name = f"<{text}, {element_ty}>"

    def tensor(self: Any, handle: Any, type: Any) -> None:
        own = type.numbers if type.__class__ is core.block_type else ()
        if own not in known_shapes:
            known_shapes[own] = core.tuple([core.constexpr(x) for x in own]), core.constexpr(math.prod(own))
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = known_shapes[own]

    def broadcast_some(self: Any, lhs: Any, rhs: Any) -> Any:
        return (lhs, rhs) if lhs.shape is rhs.shape else broadcast(self, lhs, rhs)

    core.block_type.__init__, core.tensor.__init__ = block, tensor
    semantic.TritonSemantic.broadcast_impl_value = broadcast_some


def _unwrap_first() -> None:
    """Tell plain numbers and constants apart by class before anything else."""
    unwrap, constexpr = core._unwrap_if_constexpr, core.constexpr

    def quick(x: Any) -> Any:
        kind = x.__class__
        return x.value if kind is constexpr else x if kind is int or kind is float or kind is bool else unwrap(x)

    core._unwrap_if_constexpr = quick


def _check_types_first() -> None:
    """Take operands of one type, and plain numbers beside floats or integers, without looking for a common type."""
    check, block_of, known = semantic.TritonSemantic.binary_op_type_checking_impl, core.block_type.with_element_ty, {}
    whole = frozenset(("int32", "int64"))
    wide, narrow = frozenset(("fp32", "fp64")), frozenset(("fp16", "bf16"))

    def constant(self: Any, number: Any, dtype: Any) -> Any:
        """A number as a scalar of a tensor's dtype where that needs no second look, or None."""
        kind, name = number.__class__, dtype.name
        if (kind is float or kind is int) and name in wide:
            return self.scalar_constant(number, dtype=dtype)
        if kind is int and name in whole and dtype.get_int_min_value() <= number <= dtype.get_int_max_value():
            return self.scalar_constant(number, dtype=dtype)
        return None

    def quick(
        self: Any, lhs: Any, rhs: Any, allow_lhs_ptr: bool = False, allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True, div_or_mod: bool = False,
    ) -> Any:  # fmt: skip
        left, right = lhs, rhs
        if lhs.__class__ is core.tensor:
            if rhs.__class__ is not core.tensor and arithmetic_check:
                right = constant(self, rhs, lhs.dtype)
        elif rhs.__class__ is core.tensor and arithmetic_check:
            left = constant(self, lhs, rhs.dtype)
        if left.__class__ is core.tensor and right.__class__ is core.tensor and left.dtype is right.dtype:
            name = left.dtype.name
            if name in wide or name in whole or (name in narrow and not div_or_mod):
                return (left, right) if left.shape is right.shape else self.broadcast_impl_value(left, right)
        return check(self, lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)

    def with_element_ty(self: Any, scalar_ty: Any) -> Any:
        if scalar_ty.__class__ is not core.dtype:
            return block_of(self, scalar_ty)
        key = self.numbers, scalar_ty.name
        if key not in known:
            known[key] = block_of(self, scalar_ty)
        return known[key]

    semantic.TritonSemantic.binary_op_type_checking_impl = quick
    core.block_type.with_element_ty = with_element_ty


def _check_overflow_in_numpy() -> None:
    """Check a sum, difference or product of integers for overflow in 64 bits, without Triton's own operations."""
    functions = {"add": np.add, "sub": np.subtract, "mul": np.multiply}

    def check(self: Any, lhs: Any, rhs: Any, binary_op: Any) -> None:
        bits = lhs.type.scalar.int_bitwidth
        if bits >= 64 or not self.builder.options.sanitize_overflow:
            return
        wide = functions[binary_op.__name__](lhs.handle.data.astype(np.int64), rhs.handle.data.astype(np.int64))
        low, high = lhs.type.scalar.get_int_min_value(), lhs.type.scalar.get_int_max_value()
        assert ((wide >= low) & (wide <= high)).all(), f"int{bits} overflow detected for operation {binary_op.__name__}"

    semantic.TritonSemantic.binary_op_sanitize_overflow_impl = check
