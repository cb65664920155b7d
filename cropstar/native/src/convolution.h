// One date of a ConvSTAR layer by Winograd's F(2x2, 3x3): 16 products for 4 pixels where 36 would be.
//
// Tiles of 2x2 pixels read 4x4 pixels around them; what lies outside of the image is zero, or a given pixel. Of a strip of tiles, the
// input and the state are transformed, multiplied with the transformed kernels, and transformed back where the gate
// arithmetic is done. Any size of image and any number of channels will do.
#pragma once

#include "block.h"
#include "nonlinear.h"

namespace {

#if defined(AMX)
constexpr int64_t STRIP = 32;  // tiles that are worked on together
#else
constexpr int64_t STRIP = 24;
#endif
constexpr int64_t ELEMENTS = 16;

// Rows from one element of a strip to the next. Without the one between them all elements of a tile could lie in the same
// few places of the cache.
INLINE int64_t spaced(int64_t tiles) { return tiles + 1; }

struct ConvolutionPacked {
    const Term *value_weight, *gate_weight, *state_weight;
    const float *value_bias, *gate_bias;
};

INLINE int64_t convolution_packed_floats(int64_t inputs, int64_t hidden) {
    return padded(hidden) * (ELEMENTS * (2 * terms_of(inputs) + terms_of(hidden)) + 2);
}

INLINE ConvolutionPacked convolution_unpack(const float* packed, int64_t inputs, int64_t hidden) {
    const int64_t columns = padded(hidden), weights = ELEMENTS * columns * terms_of(inputs);
    const Term* value_weight = reinterpret_cast<const Term*>(packed);
    const Term* gate_weight = value_weight + weights;
    const Term* state_weight = gate_weight + weights;
    const float* value_bias = packed + 2 * weights + ELEMENTS * columns * terms_of(hidden);
    return {value_weight, gate_weight, state_weight, value_bias, value_bias + columns};
}

// G w G^T of one 3x3 kernel, in double precision.
INLINE void transform_kernel(const float* w, double (&to)[4][4]) {
    const double g[4][3] = {{1, 0, 0}, {0.5, 0.5, 0.5}, {0.5, -0.5, 0.5}, {0, 0, 1}};
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            to[i][j] = 0;
            for (int r = 0; r < 3; r++) {
                for (int c = 0; c < 3; c++) to[i][j] += g[i][r] * w[r * 3 + c] * g[j][c];
            }
        }
    }
}

// One kernel, transformed, to panels [element][column / PANEL][term][PANEL]: one number among `numbers` of each.
INLINE void place_kernel(const float* w, int64_t panels, int64_t numbers, int64_t column, int64_t number, Term* to) {
    double kernel[4][4];
    transform_kernel(w, kernel);
    for (int64_t element = 0; element < ELEMENTS; element++) {
        Term* panel = to + (element * panels + column / PANEL) * terms_of(numbers) * PANEL;
        place_number(panel, number, column % PANEL, (float)kernel[element / 4][element % 4]);
    }
}

// Into panels [element][output / PANEL][input][PANEL].
static void pack_kernels(const float* w, int64_t outputs, int64_t inputs, Term* to) {
    const int64_t panels = panels_of(outputs);
    for (int64_t i = 0; i < ELEMENTS * panels * terms_of(inputs) * PANEL; i++) to[i] = Term{};
    for (int64_t output = 0; output < outputs; output++) {
        for (int64_t input = 0; input < inputs; input++) {
            place_kernel(w + (output * inputs + input) * 9, panels, inputs, output, input, to);
        }
    }
}

static void convolution_pack(const StarWeights& w, float* packed) {
    const ConvolutionPacked to = convolution_unpack(packed, w.inputs, w.hidden);
    pack_kernels(w.value_weight, w.hidden, w.inputs, const_cast<Term*>(to.value_weight));
    pack_kernels(w.gate_weight, w.hidden, w.inputs, const_cast<Term*>(to.gate_weight));
    pack_kernels(w.state_weight, w.hidden, w.hidden, const_cast<Term*>(to.state_weight));
    pack_bias(w.value_bias, w.hidden, const_cast<float*>(to.value_bias));
    pack_bias(w.gate_bias, w.hidden, const_cast<float*>(to.gate_bias));
}

INLINE void transform_four(Vector& a, Vector& b, Vector& c, Vector& d) {
    const Vector first = a - c, second = b + c, third = c - b, fourth = b - d;
    a = first, b = second, c = third, d = fourth;
}

struct Image {
    const float* data;
    int64_t row, pixel, channels;
};

// Where the strip lies: tile row and first tile, in an image of height x width.
struct Strip {
    int64_t row, first, tiles, height, width;
};

// How transformed tiles are kept: as numbers, or as terms to be multiplied.
struct AsNumbers {
    static int64_t step(int64_t channels) { return channels; }
    static INLINE_MEMBER void keep(float* tile, int64_t channel, Vector numbers, int64_t count) {
        store_some(tile + channel, numbers, count);
    }
};

#if defined(BFLOAT16)
struct AsTerms {
    static int64_t step(int64_t channels) { return padded(channels) / 2; }
    static INLINE_MEMBER void keep(float* tile, int64_t channel, Vector numbers, int64_t) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(tile + channel / 2), rounded(numbers));
    }
};
#else
typedef AsNumbers AsTerms;
#endif

// B^T d B of every tile and channel, to [element][tile][channel]. `outside` is a pixel beyond the image's edge.
template <class Form>
static void transform_input(const Image& image, const Strip& strip, const float* outside, float* to) {
    const int64_t channels = image.channels, step = Form::step(channels);
    const int64_t element_step = spaced(strip.tiles) * step;
    for (int64_t tile = 0; tile < strip.tiles; tile++) {
        const float* pixels[4][4];
        for (int64_t i = 0; i < 4; i++) {
            for (int64_t j = 0; j < 4; j++) {
                const int64_t y = 2 * strip.row + i - 1, x = 2 * (strip.first + tile) + j - 1;
                const bool inside = y >= 0 && y < strip.height && x >= 0 && x < strip.width;
                pixels[i][j] = inside ? image.data + y * image.row + x * image.pixel : outside;
            }
        }
        for (int64_t channel = 0; channel < channels; channel += WIDTH) {
            const int64_t count = channels - channel;
            Vector d[4][4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
#pragma GCC unroll 4
                for (int j = 0; j < 4; j++) d[i][j] = load_some(pixels[i][j] + channel, count);
                transform_four(d[i][0], d[i][1], d[i][2], d[i][3]);
            }
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                transform_four(d[0][j], d[1][j], d[2][j], d[3][j]);
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++) {
                    Form::keep(to + (i * 4 + j) * element_step + tile * step, channel, d[i][j], count);
                }
            }
        }
    }
}

// A^T m A of one tile and vector of channels: 2x2 pixels.
INLINE void transform_output(const float* from, int64_t element_step, Vector (&to)[2][2]) {
    Vector upper[4], lower[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++) {
        const Vector a = load(from + j * element_step), b = load(from + (4 + j) * element_step);
        const Vector c = load(from + (8 + j) * element_step), d = load(from + (12 + j) * element_step);
        upper[j] = a + b + c;
        lower[j] = b - c - d;
    }
    to[0][0] = upper[0] + upper[1] + upper[2];
    to[0][1] = upper[1] - upper[2] - upper[3];
    to[1][0] = lower[0] + lower[1] + lower[2];
    to[1][1] = lower[1] - lower[2] - lower[3];
}

// Not inlined: among the loops over elements and columns, GCC keeps the addresses of every row on the stack.
template <int Rows>
static __attribute__((noinline)) void convolution_block(const Term* x, int64_t inputs, const Term* x_panel,
                                                        const Term* state, int64_t hidden, const Term* state_panel,
                                                        float* to, int64_t columns) {
    Block<Rows> block;
    fill(block, nullptr);
    multiply_packed(block, x, AsTerms::step(inputs), x_panel, terms_of(inputs));
    if (state) multiply_packed(block, state, AsTerms::step(hidden), state_panel, terms_of(hidden));
    write(block, to, columns, PANEL);
}

struct ConvolutionScratch {
    float *zeros, *x, *state, *value, *gate;
    int64_t total;
};

INLINE ConvolutionScratch convolution_memory(const ConvolutionStep& task, float* memory) {
    const int64_t strip = ELEMENTS * spaced(STRIP), columns = padded(task.hidden);
    ConvolutionScratch s;
    s.zeros = memory;
    s.x = s.zeros + larger(task.inputs, task.hidden);
    s.state = s.x + strip * AsTerms::step(task.inputs);
    s.value = s.state + strip * AsTerms::step(task.hidden);
    s.gate = s.value + strip * columns;
    s.total = s.gate + strip * columns - memory;
    return s;
}

static int64_t convolution_scratch(const ConvolutionStep& task) { return convolution_memory(task, nullptr).total; }

// The products of all elements of a strip.
static void convolution_products(const ConvolutionStep& task, const ConvolutionPacked& w, const ConvolutionScratch& s,
                                 int64_t tiles) {
    const int64_t inputs = task.inputs, hidden = task.hidden, columns = padded(hidden);
    for (int64_t element = 0; element < ELEMENTS; element++) {
        for (int64_t column = 0; column < columns; column += PANEL) {
            const int64_t panel = element * columns + column;
            each_block(tiles, [&](int64_t row, auto rows) {
                const int64_t tile = element * spaced(tiles) + row;
                const Term* x = reinterpret_cast<const Term*>(s.x) + tile * AsTerms::step(inputs);
                const Term* state = reinterpret_cast<const Term*>(s.state) + tile * AsTerms::step(hidden);
                convolution_block<rows.value>(x, inputs, w.value_weight + panel * terms_of(inputs), nullptr, 0,
                                              nullptr, s.value + tile * columns + column, columns);
                convolution_block<rows.value>(x, inputs, w.gate_weight + panel * terms_of(inputs),
                                              task.state ? state : nullptr, hidden,
                                              w.state_weight + panel * terms_of(hidden),
                                              s.gate + tile * columns + column, columns);
            });
        }
    }
}

// One panel of channels of one pixel: where it lies, and what becomes of it.
struct Pixel {
    const float* before;  // or null: zeros
    float *after, *gate, *value;
    bool exists, is_valid;
};

INLINE Pixel pixel_of(const ConvolutionStep& task, int64_t image, int64_t y, int64_t x) {
    if (y >= task.height || x >= task.width) return {};
    const int64_t place = ((image * task.height + y) * task.width + x) * task.hidden;
    Pixel pixel = {};
    pixel.exists = true;
    pixel.is_valid =
        !task.valid || task.valid[image * task.valid_image + y * task.valid_row + x * task.valid_pixel];
    if (task.state) {
        pixel.before = task.state + image * task.state_image + y * task.state_row + x * task.state_pixel;
    }
    pixel.after = task.after + image * task.after_image + y * task.after_row + x * task.after_pixel;
    if (task.gate) pixel.gate = task.gate + place, pixel.value = task.value + place;
    return pixel;
}

// `count` is a constant where the panel is whole: without branches between them, both halves run side by side.
INLINE void update_pixel(const Pixel& pixel, int64_t channel, int64_t count, Pair value, Pair logits) {
    const Pair before = pixel.before ? load_pair(pixel.before + channel, count) : Pair{};
    if (!pixel.is_valid) return store_pair(pixel.after + channel, before, count);
    value = tanh_of(value);
    const Pair gate = sigmoid_of(logits);
    store_pair(pixel.after + channel, tanh_of(gate * (value - before) + before), count);
    if (pixel.gate) {
        store_pair(pixel.gate + channel, gate, count);
        store_pair(pixel.value + channel, value, count);
    }
}

// The gate arithmetic of one strip of one image.
static void convolution_update(const ConvolutionStep& task, const ConvolutionPacked& w, const ConvolutionScratch& s,
                               const Strip& strip, int64_t image) {
    const int64_t columns = padded(task.hidden), element_step = spaced(strip.tiles) * columns;
    for (int64_t tile = 0; tile < strip.tiles; tile++) {
        const int64_t y = 2 * strip.row, x = 2 * (strip.first + tile);
        const Pixel pixels[2][2] = {{pixel_of(task, image, y, x), pixel_of(task, image, y, x + 1)},
                                    {pixel_of(task, image, y + 1, x), pixel_of(task, image, y + 1, x + 1)}};
        for (int64_t channel = 0; channel < task.hidden; channel += PANEL) {
            const int64_t place = tile * columns + channel;
            Vector values[2][2][2], logits[2][2][2];
            for (int half = 0; half < 2; half++) {
                transform_output(s.value + place + half * WIDTH, element_step, values[half]);
                transform_output(s.gate + place + half * WIDTH, element_step, logits[half]);
            }
            const Pair value_bias = load_pair(w.value_bias + channel, PANEL);
            const Pair gate_bias = load_pair(w.gate_bias + channel, PANEL);
            for (int i = 0; i < 2; i++) {
                for (int j = 0; j < 2; j++) {
                    if (!pixels[i][j].exists) continue;
                    const Pair value = {values[0][i][j], values[1][i][j]}, gate = {logits[0][i][j], logits[1][i][j]};
                    const int64_t count = task.hidden - channel;
                    if (count >= PANEL) update_pixel(pixels[i][j], channel, PANEL, value + value_bias, gate + gate_bias);
                    else update_pixel(pixels[i][j], channel, count, value + value_bias, gate + gate_bias);
                }
            }
        }
    }
}

// The rows of tiles from `begin` to `end`, counted through all images.
static void convolution_rows(const ConvolutionStep& task, int64_t begin, int64_t end, float* memory) {
    const Multiplier multiplier;
    const ConvolutionPacked w = convolution_unpack(task.packed, task.inputs, task.hidden);
    const ConvolutionScratch s = convolution_memory(task, memory);
    clear(s.zeros, larger(task.inputs, task.hidden));
#if defined(AMX)
    clear(s.x, s.value - s.x);  // terms beyond the last channel are multiplied, too
#endif
    const int64_t down = (task.height + 1) / 2, across = (task.width + 1) / 2;
    for (int64_t row = begin; row < end; row++) {
        const int64_t image = row / down;
        const Image x = {task.x + image * task.x_image, task.x_row, task.x_pixel, task.inputs};
        const Image state = {task.state + image * task.state_image, task.state_row, task.state_pixel, task.hidden};
        for (int64_t first = 0; first < across; first += STRIP) {
            const Strip strip = {row % down, first, smaller(STRIP, across - first), task.height, task.width};
            transform_input<AsTerms>(x, strip, task.border ? task.border : s.zeros, s.x);
            if (task.state) transform_input<AsTerms>(state, strip, s.zeros, s.state);
            convolution_products(task, w, s, strip.tiles);
            convolution_update(task, w, s, strip, image);
        }
    }
}

static void convolution_step(const ConvolutionStep& task, int64_t part, int64_t parts, float* memory) {
    const int64_t rows = task.images * ((task.height + 1) / 2);
    convolution_rows(task, rows * part / parts, rows * (part + 1) / parts, memory);
}

}  // namespace
