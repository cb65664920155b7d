// The gradients of the kernels, summed in Winograd's domain and brought back once at the end.
//
// A tile's outputs are A^T (U . V) A with U = G w G^T and V = B^T d B. So dU is the sum over all tiles of V times
// A dy A^T, element by element: 16 products for 4 pixels, as forwards. Then dw = G^T dU G.
#pragma once

#include "convolution.h"

namespace {

INLINE void spread_two(Vector p, Vector q, Vector (&to)[4]) {
    to[0] = p, to[1] = p + q, to[2] = p - q, to[3] = -q;
}

// A dy A^T of every tile, to [element][tile][channel]; the channels are whole vectors.
static void transform_gradient(const Image& image, const Strip& strip, const float* zeros, float* to) {
    const int64_t channels = image.channels, element_step = spaced(strip.tiles) * channels;
    for (int64_t tile = 0; tile < strip.tiles; tile++) {
        const float* pixels[2][2];
        for (int64_t i = 0; i < 2; i++) {
            for (int64_t j = 0; j < 2; j++) {
                const int64_t y = 2 * strip.row + i, x = 2 * (strip.first + tile) + j;
                const bool inside = y < strip.height && x < strip.width;
                pixels[i][j] = inside ? image.data + y * image.row + x * image.pixel : zeros;
            }
        }
        for (int64_t channel = 0; channel < channels; channel += WIDTH) {
            Vector left[4], right[4];
            spread_two(load(pixels[0][0] + channel), load(pixels[1][0] + channel), left);
            spread_two(load(pixels[0][1] + channel), load(pixels[1][1] + channel), right);
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                Vector row[4];
                spread_two(left[i], right[i], row);
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) store(to + (i * 4 + j) * element_step + tile * channels + channel, row[j]);
            }
        }
    }
}

#if defined(AMX)
template <class Body>
INLINE void each_even_block(int64_t rows, Body&& body) {
    each_block(rows, body);
}
#else
// Blocks of almost one height: a short last block would leave the multipliers waiting for its few sums.
template <class Body>
INLINE void each_even_block(int64_t rows, Body&& body) {
    const int64_t blocks = (rows + ROWS - 1) / ROWS;
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t first = rows * block / blocks, last = rows * (block + 1) / blocks;
        with_rows<ROWS>(last - first, [&](auto count) __attribute__((always_inline)) { body(first, count); });
    }
}
#endif

// sums[channel][width] += tiles[tile][channel] times gradient[tile], of its first `width`, of one element. `memory` is for
// the tiles as terms. Their channels are read in whole panels, beyond the last one.
static void add_gradient(const float* tiles, int64_t channels, TermRows gradient, int64_t width, int64_t count,
                         float* sums, float* memory) {
    const TermColumns a = turned_terms(tiles, channels, count, padded(channels), memory);
    for (int64_t column = 0; column < width; column += PANEL) {
        each_even_block(channels, [&](int64_t channel, auto rows) {
            add_products_block<rows.value>(sums + channel * width + column, width, a.from(channel),
                                           gradient.data + column, gradient.step, count);
        });
    }
}

// w (outputs, inputs, 3, 3) = G^T dU G, with dU the sum of all parts in their order: [element][input][width].
static void gather_kernels(float* w, int64_t outputs, int64_t inputs, const float* sums, int64_t width, int64_t parts,
                           int64_t part_step) {
    const double g[4][3] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};
    for (int64_t output = 0; output < outputs; output++) {
        for (int64_t input = 0; input < inputs; input++) {
            double kernel[3][3] = {};
            for (int64_t element = 0; element < ELEMENTS; element++) {
                double total = 0;
                for (int64_t part = 0; part < parts; part++) {
                    total += sums[part * part_step + (element * inputs + input) * width + output];
                }
                for (int r = 0; r < 3; r++) {
                    for (int c = 0; c < 3; c++) kernel[r][c] += g[element / 4][r] * total * g[element % 4][c];
                }
            }
            for (int k = 0; k < 9; k++) w[(output * inputs + input) * 9 + k] = (float)kernel[k / 3][k % 3];
        }
    }
}

}  // namespace
