// tanh and sigmoid of vectors, to a few units in the last place; NaN stays NaN.
#pragma once

#include "lanes.h"

namespace {

// A comparison with NaN is false: it passes through.
INLINE Vector clamped(Vector x, float bound) {
    x = x < -bound ? all(-bound) : x;
    return x > bound ? all(bound) : x;
}

// x P(x^2) / Q(x^2), a minimax fit (relative error 3e-8) up to where tanh rounds to one; rounding must not exceed that.
INLINE Vector tanh_of(Vector x) {
    x = clamped(x, 9.01f);
    const Vector square = x * x;
    Vector above = square * 1.3402182e-08f + 2.0648642e-05f;
    above = above * square + 0.0034982334f;
    above = above * square + 0.1338334f;
    above = above * square + 1.0f;
    Vector below = square * 7.797543e-07f + 0.00032897881f;
    below = below * square + 0.025887309f;
    below = below * square + 0.4671666f;
    below = below * square + 1.0f;
    return clamped(x * above / below, 1.0f);
}

// 2^n e^r with |r| <= log(2) / 2, and a minimax polynomial for e^r.
INLINE Vector exponential(Vector x) {
    x = clamped(x, 87.0f);
    const float round_here = 12582912.0f;  // 1.5 * 2^23: adding it leaves an integer in the low bits
    const Vector shifted = x * 1.44269504f + round_here;
    const Vector whole = shifted - round_here;
    const Vector rest = (x - whole * 0.693145752f) - whole * 1.42860677e-06f;  // log(2) in two parts
    Vector series = rest * 0.0013814467f + 0.008368781f;
    series = series * rest + 0.041668393f;
    series = series * rest + 0.1666652f;
    series = series * rest + 0.49999994f;
    series = series * (rest * rest) + rest + 1.0f;
    return (Vector)((Integers)series + ((Integers)shifted << 23));
}

INLINE Vector sigmoid_of(Vector x) { return 1.0f / (1.0f + exponential(-x)); }

template <class Function>
INLINE void apply(const float* x, int64_t count, float* y, Function function) {
    for (int64_t i = 0; i < count; i += WIDTH) store_some(y + i, function(load_some(x + i, count - i)), count - i);
}

}  // namespace
