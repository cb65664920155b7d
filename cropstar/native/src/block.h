// The block that all products are made of: ROWS rows by one panel of columns, held in registers.
#pragma once

#include "interface.h"
#include "lanes.h"

namespace {

template <int Number>
struct Count {
    static constexpr int value = Number;
};

// Calls `body` with the number of rows as a constant, so that every loop over rows unrolls.
template <int Rows, class Body>
INLINE void with_rows(int64_t rows, Body&& body) {
    if (rows >= Rows) {
        body(Count<Rows>{});
    } else if constexpr (Rows > 1) {
        with_rows<Rows - 1>(rows, body);
    }
}

// Runs through `rows` in blocks: body(first row, Count<rows of the block>).
template <class Body>
INLINE void each_block(int64_t rows, Body&& body) {
    for (int64_t row = 0; row < rows; row += ROWS) {
        with_rows<ROWS>(rows - row, [&](auto count) __attribute__((always_inline)) { body(row, count); });
    }
}

template <int Rows>
struct Block {
    Vector sums[Rows][2];
};

template <int Rows>
INLINE void fill(Block<Rows>& block, const float* bias) {
    const Vector left = bias ? load(bias) : Vector{}, right = bias ? load(bias + WIDTH) : Vector{};
#pragma GCC unroll 16
    for (int i = 0; i < Rows; i++) {
        block.sums[i][0] = left;
        block.sums[i][1] = right;
    }
}

// block += a b: a has `Rows` rows `row_step` apart whose terms lie `term_step` apart, b has rows of one panel.
//
// The sums are copied to locals whose every use is unrolled: left in the caller's array, GCC keeps them on the stack.
template <int Rows>
INLINE void multiply(Block<Rows>& block, const float* a, int64_t row_step, int64_t term_step, const float* b,
                     int64_t b_step, int64_t depth) {
    Vector sums[Rows][2];
#pragma GCC unroll 16
    for (int i = 0; i < Rows; i++) {
        sums[i][0] = block.sums[i][0];
        sums[i][1] = block.sums[i][1];
    }
    for (int64_t k = 0; k < depth; k++) {
        const Vector left = load(b + k * b_step), right = load(b + k * b_step + WIDTH);
#pragma GCC unroll 16
        for (int i = 0; i < Rows; i++) {
            const Vector term = all(a[i * row_step + k * term_step]);
            sums[i][0] += term * left;
            sums[i][1] += term * right;
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < Rows; i++) {
        block.sums[i][0] = sums[i][0];
        block.sums[i][1] = sums[i][1];
    }
}

// a (rows in memory) times packed weights.
template <int Rows>
INLINE void multiply_packed(Block<Rows>& block, const float* a, int64_t row_step, const float* panel, int64_t depth) {
    multiply<Rows>(block, a, row_step, 1, panel, PANEL, depth);
}

// Writes the block to columns of which `count` exist.
template <int Rows>
INLINE void write(const Block<Rows>& block, float* to, int64_t row_step, int64_t count) {
#pragma GCC unroll 16
    for (int i = 0; i < Rows; i++) {
        store_some(to + i * row_step, block.sums[i][0], count);
        if (count > WIDTH) store_some(to + i * row_step + WIDTH, block.sums[i][1], count - WIDTH);
    }
}

// Packs outputs x terms, found at w[output * output_step + term * term_step], into [output / PANEL][term][PANEL].
INLINE void pack(const float* w, int64_t outputs, int64_t terms, int64_t output_step, int64_t term_step, float* to) {
    for (int64_t panel = 0; panel < panels_of(outputs); panel++) {
        for (int64_t term = 0; term < terms; term++) {
            for (int64_t j = 0; j < PANEL; j++) {
                const int64_t output = panel * PANEL + j;
                *to++ = output < outputs ? w[output * output_step + term * term_step] : 0.0f;
            }
        }
    }
}

// The rows of a batch that one part works on, in tiles that stay in the cache.
struct Tiles {
    int64_t rows;   // of a tile
    int64_t first;  // the part's first row
    int64_t last;   // the row after its last
};

constexpr int64_t TILE_ROWS = 72;

// Parts get whole blocks and differ by one block at most; where a row lies changes nothing about its result.
INLINE Tiles tiles_of(int64_t batch, int64_t part, int64_t parts) {
    const int64_t blocks = (batch + ROWS - 1) / ROWS;
    const int64_t first = blocks * part / parts * ROWS, last = smaller(blocks * (part + 1) / parts * ROWS, batch);
    const int64_t own = (last - first + ROWS - 1) / ROWS, most = TILE_ROWS / ROWS;
    const int64_t count = larger((own + most - 1) / most, 1);
    return {larger((own + count - 1) / count, 1) * ROWS, first, last};
}

}  // namespace
