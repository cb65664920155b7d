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
INLINE void multiply(Block<Rows>& block, const Term* a, int64_t row_step, int64_t term_step, const Term* b,
                     int64_t b_step, int64_t depth) {
    Vector sums[Rows][2];
#pragma GCC unroll 16
    for (int i = 0; i < Rows; i++) {
        sums[i][0] = block.sums[i][0];
        sums[i][1] = block.sums[i][1];
    }
    for (int64_t k = 0; k < depth; k++) {
        const Terms left = load_terms(b + k * b_step), right = load_terms(b + k * b_step + WIDTH);
#pragma GCC unroll 16
        for (int i = 0; i < Rows; i++) {
            const Terms term = all_terms(a[i * row_step + k * term_step]);
            sums[i][0] = add_product(sums[i][0], term, left);
            sums[i][1] = add_product(sums[i][1], term, right);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < Rows; i++) {
        block.sums[i][0] = sums[i][0];
        block.sums[i][1] = sums[i][1];
    }
}

// a (rows of terms in memory) times packed weights.
template <int Rows>
INLINE void multiply_packed(Block<Rows>& block, const Term* a, int64_t row_step, const Term* panel, int64_t depth) {
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

// A term of one or two numbers; those beyond the last one are zero.
INLINE Term term_from(const float* numbers, int64_t step, int64_t count) {
#if defined(BFLOAT16)
    const Vector two = {numbers[0], count > 1 ? numbers[step] : 0.0f};
    return (Term)_mm256_extract_epi32(rounded(two), 0);
#else
    return numbers[0];
#endif
}

// Packs outputs x numbers, found at w[output * output_step + number * number_step], into [output / PANEL][term][PANEL].
INLINE void pack(const float* w, int64_t outputs, int64_t numbers, int64_t output_step, int64_t number_step, Term* to) {
    for (int64_t panel = 0; panel < panels_of(outputs); panel++) {
        for (int64_t number = 0; number < numbers; number += PER_TERM) {
            for (int64_t j = 0; j < PANEL; j++) {
                const int64_t output = panel * PANEL + j;
                const float* from = w + output * output_step + number * number_step;
                *to++ = output < outputs ? term_from(from, number_step, numbers - number) : Term{};
            }
        }
    }
}

// One number of a panel [term][PANEL].
INLINE void place_number(Term* panel, int64_t number, int64_t column, float value) {
#if defined(BFLOAT16)
    typedef uint16_t Half __attribute__((may_alias));
    Half* halves = reinterpret_cast<Half*>(panel + number / 2 * PANEL + column);
    halves[number % 2] = (uint16_t)term_from(&value, 0, 1);
#else
    panel[number * PANEL + column] = value;
#endif
}

INLINE void pack_bias(const float* bias, int64_t outputs, float* to) {
    copy(to, bias, outputs);
    clear(to + outputs, padded(outputs) - outputs);
}

struct TermRows {
    const Term* data;
    int64_t step;
};

// How many floats of memory the rows of a tile need to become terms.
INLINE int64_t term_floats(int64_t rows, int64_t width) { return PER_TERM > 1 ? rows * (padded(width) / 2) : 0; }

// Rows as terms along each row: as they are, or rounded into `memory`.
INLINE TermRows as_terms(const float* from, int64_t step, int64_t rows, int64_t width, float* memory) {
#if defined(BFLOAT16)
    const int64_t terms = padded(width) / 2;
    Term* to = reinterpret_cast<Term*>(memory);
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = 0; column < width; column += WIDTH) {
            const Vector numbers = load_some(from + row * step + column, width - column);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + row * terms + column / 2), rounded(numbers));
        }
    }
    return {to, terms};
#else
    return {from, step};
#endif
}

// Rows as terms along the columns, for sums over rows: as they are, or two rounded rows side by side in `memory`. The
// width is of whole vectors.
INLINE TermRows across_terms(const float* from, int64_t step, int64_t rows, int64_t width, float* memory) {
#if defined(BFLOAT16)
    Term* to = reinterpret_cast<Term*>(memory);
    for (int64_t row = 0; row < rows; row += 2) {
        const float* here = from + row * step;
        for (int64_t column = 0; column < width; column += WIDTH) {
            const __m512i low = _mm512_cvtepu16_epi32(rounded(load(here + column)));
            const Vector second = row + 1 < rows ? load(here + step + column) : Vector{};
            const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded(second)), 16);
            _mm512_storeu_si512(to + row / 2 * width + column, _mm512_or_si512(low, high));
        }
    }
    return {to, width};
#else
    return {from, step};
#endif
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
