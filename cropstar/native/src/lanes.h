// Vectors of LANES floats, written with the vector types that GCC and Clang share.
//
// The compiler turns the same source into SSE, AVX2, AVX-512 or NEON, as the unit's options say; intrinsics are left to
// the two operations that GCC does not find by itself. The units define LANES and ROWS: a block of ROWS x 2 vectors and its operands fill the registers. Everything has
// internal linkage and nothing of the standard library is used, so that the linker can never hand code of one
// instruction set to a processor that lacks it.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define INLINE_MEMBER inline __attribute__((always_inline))
#define INLINE static INLINE_MEMBER

namespace {

constexpr int64_t WIDTH = LANES;
constexpr int64_t PANEL = 2 * WIDTH;  // columns of a block

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef int32_t Integers __attribute__((vector_size(LANES * 4)));
typedef float LooseVector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

INLINE Vector load(const float* from) { return *reinterpret_cast<const LooseVector*>(from); }
INLINE void store(float* to, Vector vector) { *reinterpret_cast<LooseVector*>(to) = vector; }
INLINE Vector all(float number) { return number - Vector{}; }

// x, but not below or above the bound; NaN stays NaN: a comparison with it is false, and of the instructions' operands it
// is the second one.
#if defined(__AVX512F__) && LANES == 16
INLINE Vector at_least(Vector x, float bound) { return (Vector)_mm512_max_ps((__m512)all(bound), (__m512)x); }
INLINE Vector at_most(Vector x, float bound) { return (Vector)_mm512_min_ps((__m512)all(bound), (__m512)x); }
#elif defined(__AVX__) && LANES == 8
INLINE Vector at_least(Vector x, float bound) { return (Vector)_mm256_max_ps((__m256)all(bound), (__m256)x); }
INLINE Vector at_most(Vector x, float bound) { return (Vector)_mm256_min_ps((__m256)all(bound), (__m256)x); }
#elif defined(__SSE__) && LANES == 4
INLINE Vector at_least(Vector x, float bound) { return (Vector)_mm_max_ps((__m128)all(bound), (__m128)x); }
INLINE Vector at_most(Vector x, float bound) { return (Vector)_mm_min_ps((__m128)all(bound), (__m128)x); }
#else
INLINE Vector at_least(Vector x, float bound) { return x < bound ? all(bound) : x; }
INLINE Vector at_most(Vector x, float bound) { return x > bound ? all(bound) : x; }
#endif

// a / b. Beside products of bfloat16 a reciprocal to 27 bits will do, in a third of the time.
#if defined(BFLOAT16)
INLINE Vector quotient(Vector a, Vector b) {
    const Vector near = (Vector)_mm512_rcp14_ps((__m512)b);
    return a * (near * (2.0f - b * near));
}
#else
INLINE Vector quotient(Vector a, Vector b) { return a / b; }
#endif

// A term of a product. Of float32 it is one number. Of bfloat16 it is two, side by side, of which one instruction adds
// both products to a float32 sum: a row of numbers is then a row of half as many terms.
#if defined(BFLOAT16)
constexpr int64_t PER_TERM = 2;
typedef uint32_t Term __attribute__((may_alias));
typedef __m512bh Terms;
INLINE Terms load_terms(const Term* from) { return (Terms)_mm512_loadu_si512(from); }
INLINE Terms all_terms(Term term) { return (Terms)_mm512_set1_epi32((int)term); }
INLINE Vector add_product(Vector sum, Terms a, Terms b) { return (Vector)_mm512_dpbf16_ps((__m512)sum, a, b); }
INLINE __m256i rounded(Vector x) { return (__m256i)_mm512_cvtneps_pbh((__m512)x); }
#else
constexpr int64_t PER_TERM = 1;
typedef float Term;
typedef Vector Terms;
INLINE Terms load_terms(const Term* from) { return load(from); }
INLINE Terms all_terms(Term term) { return all(term); }
INLINE Vector add_product(Vector sum, Terms a, Terms b) { return sum + a * b; }
#endif

// The first `count` floats, zeros after them.
INLINE Vector load_some(const float* from, int64_t count) {
    if (count >= WIDTH) return load(from);
    Vector vector = {};
    for (int64_t lane = 0; lane < count; lane++) vector[lane] = from[lane];
    return vector;
}

INLINE void store_some(float* to, Vector vector, int64_t count) {
    if (count >= WIDTH) return store(to, vector);
    for (int64_t lane = 0; lane < count; lane++) to[lane] = vector[lane];
}

INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t panels_of(int64_t columns) { return (columns + PANEL - 1) / PANEL; }
INLINE int64_t padded(int64_t columns) { return panels_of(columns) * PANEL; }
#if defined(AMX)
INLINE int64_t terms_of(int64_t numbers) { return padded(numbers) / PER_TERM; }  // whole matrix registers
#else
INLINE int64_t terms_of(int64_t numbers) { return (numbers + PER_TERM - 1) / PER_TERM; }
#endif

INLINE void clear(float* to, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = 0.0f;
}

INLINE void copy(float* to, const float* from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = from[i];
}

}  // namespace
