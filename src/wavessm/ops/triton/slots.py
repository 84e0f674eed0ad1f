"""The algebra of slots in kernels.

A slot (see `wavessm.ops.modes`) is a complex number (c = 1) or two real ones (c = 0); in kernels it is a tuple of two
tensors. For z = f(x) in that algebra the gradient of x is conj(f′(x)) times that of z: `conj_mul`.
"""

from __future__ import annotations

from wavessm.ops.triton.language import jit, load_f64, tl


@jit
def mul(a, b, c):
    """a b"""
    cross = a[1] * b[1]
    return a[0] * b[0] - c * cross, c * (a[0] * b[1] + a[1] * b[0]) + (1.0 - c) * cross


@jit
def conj_mul(a, g, c):
    """conj(a) g"""
    return mul((a[0], a[1] * (1.0 - 2.0 * c)), g, c)


@jit
def add(a, b):
    """a + b"""
    return a[0] + b[0], a[1] + b[1]


@jit
def sub(a, b):
    """a − b"""
    return a[0] - b[0], a[1] - b[1]


@jit
def scale(factor, a):
    """Both halves times one factor."""
    return factor * a[0], factor * a[1]


@jit
def weigh(w, a):
    """Each half times its weight."""
    return w[0] * a[0], w[1] * a[1]


@jit
def choose(condition, a, b):
    """a where the condition holds, else b."""
    return tl.where(condition, a[0], b[0]), tl.where(condition, a[1], b[1])


@jit
def powers(a, l, c, BITS: tl.constexpr):
    """a^l for l < M = 2^BITS, and a^M: products of a, a², a⁴, … by the bits of l.

    A sine of each element in float64 is slow and its code large; six products in float64 cost nothing in accuracy.
    """
    p = l * a[0] * 0.0 + 1.0, l * a[0] * 0.0 + (1.0 - c)
    for bit in range(BITS):
        p = choose((l >> bit) % 2 == 1, mul(p, a, c), p)
        a = mul(a, a, c)
    return p, a


@jit
def load_slots(pointer, mask, stride=1):
    """Slots whose second halves lie `stride` behind the first."""
    return load_f64(pointer, mask), load_f64(pointer + stride, mask)


@jit
def store_slots(pointer, value, mask, stride=1):
    """The same the other way."""
    tl.store(pointer, value[0].to(pointer.dtype.element_ty), mask=mask)
    tl.store(pointer + stride, value[1].to(pointer.dtype.element_ty), mask=mask)
