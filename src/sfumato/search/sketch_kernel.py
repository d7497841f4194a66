# SPDX-License-Identifier: Apache-2.0
"""The compiled scan of sketches: 32 entries at once, eight words each, and the whole codes of those that are near.

Written as vector instructions, as in ``sfumato.subspace.kernels.simd``: the words of a query stay in registers while
it meets the blocks. Compiled once, for one signature, and kept on disk.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from sfumato.subspace.kernels.simd import INT32, INT64, pointers

LANES = 32
"""Entries of a block."""
WORDS = 8
"""Words of 16 bits of a sketch."""
BLOCKS_AT_ONCE = 64
"""Blocks that a query meets before the next one does: their sketches stay in the nearest caches."""

SHORTS = ir.VectorType(ir.IntType(16), LANES)

_CODES = "Array(uint64, 2, 'C', True, aligned=True)"
SIGNATURE = f"int64({_CODES}, Array(uint16, 2, 'C', True, aligned=True), {_CODES}, Array(uint16, 3, 'C', True, aligned=True), Array(boolean, 1, 'C', True, aligned=True), uint16, int64, int64, int32[:,::1], int64[:,::1])"  # noqa: E501


@intrinsic  # type: ignore[untyped-decorator]
def near_masks(
    _context: Any, sketches: Any, query: Any, blocks: Any, first: Any, last: Any, limit: Any, masks: Any
) -> Any:
    """Set bit j of masks[i] where entry j of block first + i differs in at most ``limit`` bits of its sketch."""
    size = types.int64
    signature = types.void(sketches, size, blocks, size, size, types.uint16, masks)

    def generate(context: Any, builder: Any, concrete: Any, args: Any) -> Any:
        queries, entries, results = pointers(context, builder, concrete, args, (0, 2, 6))
        popcount = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(SHORTS, [SHORTS]), f"llvm.ctpop.v{LANES}i16"
        )
        own = builder.gep(queries, [builder.mul(args[1], INT64(WORDS))])
        words = [_spread(builder, builder.load(builder.gep(own, [INT64(word)]), align=2)) for word in range(WORDS)]
        most = _spread(builder, args[5])
        with cgutils.for_range(builder, builder.sub(args[4], args[3])) as loop:
            number = builder.add(loop.index, args[3])
            block = builder.gep(entries, [builder.mul(number, INT64(WORDS * LANES))])
            sums = []
            for word in range(WORDS):
                place = builder.bitcast(builder.gep(block, [INT64(word * LANES)]), SHORTS.as_pointer())
                different = builder.xor(words[word], builder.load(place, align=2))
                sums.append(builder.call(popcount, [different]))
            while len(sums) > 1:
                sums = [builder.add(*sums[at : at + 2]) for at in range(0, len(sums), 2)]
            near = builder.bitcast(builder.icmp_unsigned("<=", sums[0], most), INT32)
            builder.store(near, builder.gep(results, [loop.index]))
        return context.get_dummy_value()

    return signature, generate


def _spread(builder: Any, value: Any) -> Any:
    """Return a register with a number in all lanes."""
    empty = ir.Constant(SHORTS, ir.Undefined)
    first = builder.insert_element(empty, value, INT32(0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(INT32, LANES), [0] * LANES))


@intrinsic  # type: ignore[untyped-decorator]
def lowest_bit(_context: Any, mask: Any) -> Any:
    """The number of the lowest bit that is set; one must be."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.zext(builder.cttz(args[0], ir.IntType(1)(1)), INT64)

    return types.int64(types.uint32), generate


@intrinsic  # type: ignore[untyped-decorator]
def popcount(_context: Any, word: Any) -> Any:
    """The number of ones in a word of 64 bits."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), generate


@njit(SIGNATURE, nogil=True, cache=True, error_model="numpy")
def scan_sketches(queries, sketches, codes, blocks, alive, limit, start, stop, best, where):  # type: ignore[no-untyped-def]  # pragma: no cover
    """Compare queries (Q, W), sketches (Q, WORDS), with the codes (N, W) whose sketches in the blocks are near.

    ``blocks`` (N / LANES, WORDS, LANES), those from ``start`` to ``stop``; ``limit``: the most different bits of a near
    sketch. ``best`` and ``where`` (Q, K) hold the least distances so far, sorted, and their rows; of equals the one
    that came first stays. Returns how many codes were compared.
    """
    count, words, keep = len(codes), codes.shape[1], best.shape[1]
    masks, near = np.empty(BLOCKS_AT_ONCE, np.uint32), np.empty(BLOCKS_AT_ONCE * LANES, np.int64)
    compared = 0
    for first in range(start, stop, BLOCKS_AT_ONCE):
        last = min(first + BLOCKS_AT_ONCE, stop)
        for query in range(len(queries)):
            near_masks(sketches, query, blocks, first, last, limit, masks)
            size = 0
            for at in range(last - first):
                mask = masks[at]
                while mask:
                    near[size] = (first + at) * LANES + lowest_bit(mask)
                    size += 1
                    mask &= np.uint32(mask - np.uint32(1))
            farthest = best[query, keep - 1]
            for at in range(size):
                row = near[at]
                if row >= count or not alive[row]:
                    continue
                compared += 1
                distance = 0
                for word in range(words):
                    distance += popcount(queries[query, word] ^ codes[row, word])
                if distance < farthest:
                    place = keep - 1
                    while place > 0 and best[query, place - 1] > distance:
                        best[query, place] = best[query, place - 1]
                        where[query, place] = where[query, place - 1]
                        place -= 1
                    best[query, place] = distance
                    where[query, place] = row
                    farthest = best[query, keep - 1]
    return compared
