// tanh and sigmoid of vectors, to a few units in the last place; NaN stays NaN.
#pragma once

#include "lanes.h"

namespace {

// One panel of columns. A function of both halves loads its constants once, and its two chains overlap.
struct Pair {
    Vector left, right;
};

INLINE Pair operator+(Pair a, Pair b) { return {a.left + b.left, a.right + b.right}; }
INLINE Pair operator-(Pair a, Pair b) { return {a.left - b.left, a.right - b.right}; }
INLINE Pair operator*(Pair a, Pair b) { return {a.left * b.left, a.right * b.right}; }
INLINE Pair quotient(Pair a, Pair b) { return {quotient(a.left, b.left), quotient(a.right, b.right)}; }
INLINE Pair operator+(Pair a, float b) { return {a.left + b, a.right + b}; }
INLINE Pair operator-(Pair a, float b) { return {a.left - b, a.right - b}; }
INLINE Pair operator*(Pair a, float b) { return {a.left * b, a.right * b}; }
INLINE Pair operator-(Pair a) { return {-a.left, -a.right}; }

INLINE Pair load_pair(const float* from, int64_t count) {
    return {load_some(from, count), count > WIDTH ? load_some(from + WIDTH, count - WIDTH) : Vector{}};
}

INLINE void store_pair(float* to, Pair pair, int64_t count) {
    store_some(to, pair.left, count);
    if (count > WIDTH) store_some(to + WIDTH, pair.right, count - WIDTH);
}

INLINE Vector clamped(Vector x, float bound) { return at_most(at_least(x, -bound), bound); }

INLINE Pair clamped(Pair x, float bound) { return {clamped(x.left, bound), clamped(x.right, bound)}; }

#if defined(BFLOAT16)
// Beside products whose factors have eight bits, an error of 3e-5 will do, in little more than half of the time: the
// same kind of fit with fewer terms, a hair below one at its largest.
template <class Lanes>
INLINE Lanes tanh_of(Lanes x) {
    x = clamped(x, 6.0f);
    const Lanes square = x * x;
    const Lanes above = (square * 0.0015149477f + 0.11484258f) * square + 0.999992f;
    const Lanes below = ((square * 5.6287976e-05f + 0.017614472f) * square + 0.44813417f) * square + 1.0f;
    return quotient(x * above, below);
}

// (1 + tanh(x / 2)) / 2
template <class Lanes>
INLINE Lanes sigmoid_of(Lanes x) {
    x = clamped(x, 12.0f);
    const Lanes square = x * x;
    const Lanes above = (square * 2.3671057e-05f + 0.0071776613f) * square + 0.249998f;
    const Lanes below = ((square * 8.7949963e-07f + 0.0011009045f) * square + 0.11203354f) * square + 1.0f;
    return quotient(x * above, below) + 0.5f;
}
#else
// x P(x^2) / Q(x^2), a minimax fit (relative error 3e-8) up to where tanh rounds to one; rounding must not exceed that.
template <class Lanes>
INLINE Lanes tanh_of(Lanes x) {
    x = clamped(x, 9.01f);
    const Lanes square = x * x;
    Lanes above = square * 1.3402182e-08f + 2.0648642e-05f;
    Lanes below = square * 7.797543e-07f + 0.00032897881f;
    above = above * square + 0.0034982334f;
    below = below * square + 0.025887309f;
    above = above * square + 0.1338334f;
    below = below * square + 0.4671666f;
    above = above * square + 1.0f;
    below = below * square + 1.0f;
    return clamped(quotient(x * above, below), 1.0f);
}

// x 2^n, with n in the low bits of `shifted`.
INLINE Vector scaled(Vector x, Vector shifted) { return (Vector)((Integers)x + ((Integers)shifted << 23)); }
INLINE Pair scaled(Pair x, Pair shifted) { return {scaled(x.left, shifted.left), scaled(x.right, shifted.right)}; }

// 2^n e^r with |r| <= log(2) / 2, and a minimax polynomial for e^r.
template <class Lanes>
INLINE Lanes exponential(Lanes x) {
    x = clamped(x, 87.0f);
    const float round_here = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the low bits
    const Lanes shifted = x * 1.44269504f + round_here;
    const Lanes whole = shifted - round_here;
    const Lanes rest = (x - whole * 0.693145752f) - whole * 1.42860677e-06f;  // log(2) in two parts
    Lanes series = rest * 0.0013814467f + 0.008368781f;
    series = series * rest + 0.041668393f;
    series = series * rest + 0.1666652f;
    series = series * rest + 0.49999994f;
    series = series * (rest * rest) + rest + 1.0f;
    return scaled(series, shifted) + (x - x);  // NaN stays NaN, whose bits were taken for a number
}

template <class Lanes>
INLINE Lanes one();
template <>
INLINE_MEMBER Vector one<Vector>() { return all(1.0f); }
template <>
INLINE_MEMBER Pair one<Pair>() { return {all(1.0f), all(1.0f)}; }

template <class Lanes>
INLINE Lanes sigmoid_of(Lanes x) {
    return quotient(one<Lanes>(), exponential(-x) + 1.0f);
}
#endif

template <class Function>
INLINE void apply(const float* x, int64_t count, float* y, Function function) {
    for (int64_t i = 0; i < count; i += WIDTH) store_some(y + i, function(load_some(x + i, count - i)), count - i);
}

}  // namespace
