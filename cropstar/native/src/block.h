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

#if defined(AMX)
constexpr int MATRIX = 16;  // rows of a matrix register; each is of 16 sums, or of 16 terms
constexpr int LAST_ROWS = MATRIX;
#else
constexpr int LAST_ROWS = ROWS;
#endif

// Runs through `rows` in blocks: body(first row, Count<rows of the block>). Those after the last whole one have up to
// LAST_ROWS.
template <class Body>
INLINE void each_block(int64_t rows, Body&& body) {
    int64_t row = 0;
    for (; rows - row >= ROWS; row += ROWS) body(row, Count<ROWS>{});
    for (; row < rows; row += LAST_ROWS) {
        with_rows<LAST_ROWS>(rows - row, [&](auto count) __attribute__((always_inline)) { body(row, count); });
    }
}

// A block of sums: begun with `fill` or `start`, added to with `multiply`, and ended with `finish`, after which the sums
// can be read, or with `write`.
#if defined(AMX)
// Until the end, matrix registers 0 to 3 hold the sums: of one block at a time. 4 and 5 hold rows of a, 6 and 7 columns of
// b. Rows up to the next whole register are read and computed, too; nobody sees them.
template <int Rows>
struct Block {
    static constexpr bool has_lower = Rows > MATRIX;
    static constexpr int64_t STEP = 4 * PANEL;  // bytes from one row to the next
    Vector sums[has_lower ? 2 * MATRIX : MATRIX][2];
};

template <int Rows>
INLINE void load_sums(const float* from, int64_t bytes) {
    __asm__ volatile("" ::: "memory");  // the compiler does not know that what it wrote is read
    _tile_loadd(0, from, bytes);
    _tile_loadd(1, from + WIDTH, bytes);
    if constexpr (Block<Rows>::has_lower) {
        _tile_loadd(2, from + MATRIX * bytes / 4, bytes);
        _tile_loadd(3, from + MATRIX * bytes / 4 + WIDTH, bytes);
    }
}

template <int Rows>
INLINE void fill(Block<Rows>&, const float* bias) {
    if (bias) return load_sums<Rows>(bias, 0);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

template <int Rows>
INLINE void start(Block<Rows>&, const float* from, int64_t row_step) {
    load_sums<Rows>(from, 4 * row_step);
}

// The terms of a row of a lie side by side.
template <int Rows>
INLINE void multiply(Block<Rows>&, const Term* a, int64_t row_step, int64_t, const Term* b, int64_t b_step,
                     int64_t depth) {
    __asm__ volatile("" ::: "memory");
    for (int64_t k = 0; k < depth; k += MATRIX) {
        _tile_loadd(6, b + k * b_step, 4 * b_step);
        _tile_loadd(7, b + k * b_step + WIDTH, 4 * b_step);
        _tile_loadd(4, a + k, 4 * row_step);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (Block<Rows>::has_lower) {
            _tile_loadd(5, a + k + MATRIX * row_step, 4 * row_step);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
}

template <int Rows>
INLINE void store_sums(float* to, int64_t bytes) {
    _tile_stored(0, to, bytes);
    _tile_stored(1, to + WIDTH, bytes);
    if constexpr (Block<Rows>::has_lower) {
        _tile_stored(2, to + MATRIX * bytes / 4, bytes);
        _tile_stored(3, to + MATRIX * bytes / 4 + WIDTH, bytes);
    }
    __asm__ volatile("" ::: "memory");
}

template <int Rows>
INLINE void finish(Block<Rows>& block) {
    store_sums<Rows>(reinterpret_cast<float*>(block.sums), Block<Rows>::STEP);
}

// While there is one, this thread can multiply.
struct Multiplier {
    Multiplier() {
        struct alignas(64) Shape {
            uint8_t palette, first_row, reserved[14];
            uint16_t row_bytes[16];
            uint8_t rows[16];
        };
        static const Shape shape = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
        _tile_loadconfig(&shape);
    }
    Multiplier(const Multiplier&) = delete;
    ~Multiplier() { _tile_release(); }
};
#else
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

// The sums so far, from rows `row_step` apart.
template <int Rows>
INLINE void start(Block<Rows>& block, const float* from, int64_t row_step) {
#pragma GCC unroll 16
    for (int i = 0; i < Rows; i++) {
        block.sums[i][0] = load(from + i * row_step);
        block.sums[i][1] = load(from + i * row_step + WIDTH);
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

template <int Rows>
INLINE void finish(Block<Rows>&) {}

struct Multiplier {  // nothing is needed
    Multiplier() {}
};
#endif

// a (rows of terms in memory) times packed weights.
template <int Rows>
INLINE void multiply_packed(Block<Rows>& block, const Term* a, int64_t row_step, const Term* panel, int64_t depth) {
    multiply<Rows>(block, a, row_step, 1, panel, PANEL, depth);
}

// Writes finished sums to columns of which `count` exist.
template <int Rows>
INLINE void write_some(const Block<Rows>& block, float* to, int64_t row_step, int64_t count) {
#pragma GCC unroll 16
    for (int i = 0; i < Rows; i++) {
        store_some(to + i * row_step, block.sums[i][0], count);
        if (count > WIDTH) store_some(to + i * row_step + WIDTH, block.sums[i][1], count - WIDTH);
    }
}

template <int Rows>
INLINE void write(Block<Rows>& block, float* to, int64_t row_step, int64_t count) {
#if defined(AMX)
    if (Rows % MATRIX == 0 && count >= PANEL) return store_sums<Rows>(to, 4 * row_step);
#endif
    finish(block);
    write_some(block, to, row_step, count);
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
        for (int64_t number = 0; number < PER_TERM * terms_of(numbers); number += PER_TERM) {
            for (int64_t j = 0; j < PANEL; j++) {
                const int64_t output = panel * PANEL + j;
                const float* from = w + output * output_step + number * number_step;
                const bool exists = output < outputs && number < numbers;
                *to++ = exists ? term_from(from, number_step, numbers - number) : Term{};
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

// Rows as terms along each row: as they are, or rounded into `memory`, with zeros up to a whole panel.
INLINE TermRows as_terms(const float* from, int64_t step, int64_t rows, int64_t width, float* memory) {
#if defined(BFLOAT16)
    const int64_t terms = padded(width) / 2;
    Term* to = reinterpret_cast<Term*>(memory);
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = 0; column < padded(width); column += WIDTH) {
            const Vector numbers = load_some(from + row * step + column, width - column);
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + row * terms + column / 2), rounded(numbers));
        }
    }
    return {to, terms};
#else
    return {from, step};
#endif
}

#if defined(BFLOAT16)
// Two rows as terms along the columns; a row that is not there is zeros.
INLINE __m512i terms_across(const float* first, int64_t step, int64_t rows) {
    const __m512i low = _mm512_cvtepu16_epi32(rounded(rows > 0 ? load(first) : Vector{}));
    const __m512i high = _mm512_cvtepu16_epi32(rounded(rows > 1 ? load(first + step) : Vector{}));
    return _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
}
#endif

#if defined(AMX)
// 16 x 16 terms.
INLINE void transpose(__m512i (&lines)[MATRIX]) {
    __m512i pairs[MATRIX];
#pragma GCC unroll 8
    for (int i = 0; i < MATRIX; i += 2) {
        pairs[i] = _mm512_unpacklo_epi32(lines[i], lines[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(lines[i], lines[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < MATRIX; i += 4) {  // lines[i + j]: four terms of column j of each quarter
        lines[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        lines[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        lines[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        lines[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const __m512i low = _mm512_shuffle_i32x4(lines[j], lines[4 + j], 0x88);
        const __m512i high = _mm512_shuffle_i32x4(lines[j], lines[4 + j], 0xdd);
        const __m512i lower = _mm512_shuffle_i32x4(lines[8 + j], lines[12 + j], 0x88);
        const __m512i upper = _mm512_shuffle_i32x4(lines[8 + j], lines[12 + j], 0xdd);
        pairs[j] = _mm512_shuffle_i32x4(low, lower, 0x88);
        pairs[4 + j] = _mm512_shuffle_i32x4(high, upper, 0x88);
        pairs[8 + j] = _mm512_shuffle_i32x4(low, lower, 0xdd);
        pairs[12 + j] = _mm512_shuffle_i32x4(high, upper, 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < MATRIX; i++) lines[i] = pairs[i];
}
#endif

// Rows as terms along the columns, for sums over rows: as they are, or two rounded rows side by side in `memory`. The
// width is of whole vectors.
INLINE TermRows across_terms(const float* from, int64_t step, int64_t rows, int64_t width, float* memory) {
#if defined(BFLOAT16)
    Term* to = reinterpret_cast<Term*>(memory);
    for (int64_t term = 0; term < terms_of(rows); term++) {
        const float* here = from + 2 * term * step;
        for (int64_t column = 0; column < width; column += WIDTH) {
            _mm512_storeu_si512(to + term * width + column, terms_across(here + column, step, rows - 2 * term));
        }
    }
    return {to, width};
#else
    return {from, step};
#endif
}

// The same to be multiplied from the left: the terms of each column.
struct TermColumns {
    const Term* data;
    int64_t step, term_step;

    TermColumns from(int64_t column) const { return {data + column * step, step, term_step}; }
};

INLINE TermColumns turned_terms(const float* from, int64_t step, int64_t rows, int64_t width, float* memory) {
#if defined(AMX)
    const int64_t terms = terms_of(rows);
    Term* to = reinterpret_cast<Term*>(memory);
    for (int64_t first = 0; first < terms; first += MATRIX) {
        for (int64_t column = 0; column < width; column += MATRIX) {
            __m512i lines[MATRIX];
#pragma GCC unroll 16
            for (int64_t k = 0; k < MATRIX; k++) {
                const int64_t row = 2 * (first + k);
                lines[k] = terms_across(from + row * step + column, step, rows - row);
            }
            transpose(lines);
#pragma GCC unroll 16
            for (int64_t k = 0; k < MATRIX; k++) _mm512_storeu_si512(to + (column + k) * terms + first, lines[k]);
        }
    }
    return {to, terms, 1};
#else
    const TermRows across = across_terms(from, step, rows, width, memory);
    return {across.data, 1, across.step};
#endif
}

// total += a^T b, over the rows of a tile. Their own sum is formed first: adding every row to a total over all dates
// would lose digits.
template <int Rows>
static void add_products_block(float* total, int64_t total_step, TermColumns a, const Term* b, int64_t b_step,
                               int64_t rows) {
    Block<Rows> block;
    fill(block, nullptr);
    multiply<Rows>(block, a.data, a.step, a.term_step, b, b_step, terms_of(rows));
    finish(block);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; i++) {
        float* to = total + i * total_step;
        store(to, load(to) + block.sums[i][0]);
        store(to + WIDTH, load(to + WIDTH) + block.sums[i][1]);
    }
}

// The rows of a batch that one part works on, in tiles that stay in the cache.
struct Tiles {
    int64_t rows;   // of a tile
    int64_t first;  // the part's first row
    int64_t last;   // the row after its last
};

#if defined(AMX)
constexpr int64_t TILE_ROWS = 64;
#else
constexpr int64_t TILE_ROWS = 72;
#endif

// Parts get whole blocks and differ by one block at most; where a row lies changes nothing about its result.
INLINE Tiles tiles_of(int64_t batch, int64_t part, int64_t parts) {
    const int64_t blocks = (batch + ROWS - 1) / ROWS;
    const int64_t first = blocks * part / parts * ROWS, last = smaller(blocks * (part + 1) / parts * ROWS, batch);
    const int64_t own = (last - first + ROWS - 1) / ROWS, most = TILE_ROWS / ROWS;
    const int64_t count = larger((own + most - 1) / most, 1);
    return {larger((own + count - 1) / count, 1) * ROWS, first, last};
}

}  // namespace
