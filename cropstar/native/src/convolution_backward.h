// The ConvSTAR layer backwards, from the last date to the first.
//
// The gates of a date are those of star_backward.h. Their gradients da and dz make an image, padded with zeros to whole
// panels, that is convolved with the turned kernels for the gradients of the state and of the input. A date takes two
// rounds: convolutions look at the neighbours' da, so all gates come first.
#pragma once

#include "convolution_gradient.h"
#include "kernels.h"
#include "star_backward.h"

namespace {

// The kernels turned by half a circle, outputs and inputs exchanged: W_h, W_x and W_z.
struct ConvolutionTransposed {
    const Term *state_weight, *gate_weight, *value_weight;
};

static int64_t convolution_packed_backward_floats(int64_t inputs, int64_t hidden) {
    return ELEMENTS * terms_of(hidden) * (padded(hidden) + 2 * padded(inputs));
}

INLINE ConvolutionTransposed convolution_unpack_backward(const float* packed, int64_t inputs, int64_t hidden) {
    const Term* state_weight = reinterpret_cast<const Term*>(packed);
    const Term* gate_weight = state_weight + ELEMENTS * terms_of(hidden) * padded(hidden);
    return {state_weight, gate_weight, gate_weight + ELEMENTS * terms_of(hidden) * padded(inputs)};
}

// w (outputs, inputs, 3, 3) turned, into panels [element][input / PANEL][output][PANEL].
static void pack_turned_kernels(const float* w, int64_t outputs, int64_t inputs, Term* to) {
    const int64_t panels = panels_of(inputs);
    for (int64_t i = 0; i < ELEMENTS * panels * terms_of(outputs) * PANEL; i++) to[i] = Term{};
    for (int64_t output = 0; output < outputs; output++) {
        for (int64_t input = 0; input < inputs; input++) {
            float turned[9];
            for (int k = 0; k < 9; k++) turned[k] = w[(output * inputs + input) * 9 + 8 - k];
            place_kernel(turned, panels, outputs, input, output, to);
        }
    }
}

static void convolution_pack_backward(const StarWeights& w, float* packed) {
    const ConvolutionTransposed to = convolution_unpack_backward(packed, w.inputs, w.hidden);
    pack_turned_kernels(w.state_weight, w.hidden, w.hidden, const_cast<Term*>(to.state_weight));
    pack_turned_kernels(w.gate_weight, w.hidden, w.inputs, const_cast<Term*>(to.gate_weight));
    pack_turned_kernels(w.value_weight, w.hidden, w.inputs, const_cast<Term*>(to.value_weight));
}

// What all parts see, by pixel: dh, and da and dz side by side.
struct ConvolutionShared {
    float *state, *gates;
    int64_t total;
};

INLINE ConvolutionShared convolution_shared(const ConvolutionBackward& task, float* memory) {
    const int64_t floats = task.images * task.height * task.width * padded(task.hidden);
    return {memory, memory + floats, 3 * floats};
}

static int64_t convolution_backward_shared(const ConvolutionBackward& task) {
    return convolution_shared(task, nullptr).total;
}

// A part's memory. The sums come first: `convolution_backward_sum` adds them up over the parts.
struct ReturnScratch {
    float *input_weights, *state_weight;                       // of W_x and W_z side by side; of W_h
    float *gate_bias, *value_bias, *gate_sum, *value_sum;      // whole, and of one row of pixels
    float *zeros, *gates, *x, *state;                          // of a strip; x and state hold results as well
    float *terms, *gate_terms;                                 // of one element of a strip
    int64_t total;
};

INLINE ReturnScratch return_scratch(const ConvolutionBackward& task, float* memory) {
    const int64_t columns = padded(task.hidden), inputs = padded(task.inputs), strip = ELEMENTS * spaced(STRIP);
    float* next = memory;
    auto take = [&](int64_t count) {
        float* taken = next;
        next += count;
        return taken;
    };
    ReturnScratch s;
    s.input_weights = take(ELEMENTS * task.inputs * 2 * columns);
    s.state_weight = take(ELEMENTS * task.hidden * columns);
    s.gate_bias = take(columns);
    s.value_bias = take(columns);
    s.gate_sum = take(columns);
    s.value_sum = take(columns);
    s.zeros = take(larger(inputs, 2 * columns));
    s.gates = take(strip * 2 * columns);
    s.x = take(strip * inputs);
    s.state = take(strip * columns);
    s.terms = take(term_floats(STRIP, larger(task.inputs, task.hidden)));
    s.gate_terms = take(term_floats(STRIP, 2 * columns));
    s.total = next - memory;
    return s;
}

static int64_t convolution_backward_scratch(const ConvolutionBackward& task) {
    return return_scratch(task, nullptr).total;
}

// da, dz and what of dh needs no product, of one pixel.
static void return_pixel(const ConvolutionBackward& task, int64_t t, int64_t image, int64_t y, int64_t x,
                         const ReturnScratch& s) {
    const int64_t hidden = task.hidden, columns = padded(hidden), date = task.images * task.height * task.width;
    const int64_t pixel = (image * task.height + y) * task.width + x, place = (t * date + pixel) * hidden;
    const ConvolutionShared shared = convolution_shared(task, task.shared);
    float *state = shared.state + pixel * columns, *gates = shared.gates + pixel * 2 * columns;
    const float* final = task.final_gradient ? task.final_gradient + pixel * hidden : nullptr;
    const float* given = task.outputs_gradient ? task.outputs_gradient + t * task.gradient_time +
                                                     image * task.gradient_image + y * task.gradient_row +
                                                     x * task.gradient_pixel
                                               : nullptr;
    const float* earlier = t ? task.outputs + place - date * hidden
                             : (task.initial ? task.initial + pixel * hidden : nullptr);
    const bool valid = !task.valid || task.valid[t * task.valid_time + image * task.valid_image +
                                                 y * task.valid_row + x * task.valid_pixel];
    for (int64_t column = 0; column < columns; column += WIDTH) {
        const int64_t count = larger(hidden - column, 0);
        Vector d = {};
        if (t < task.length - 1) d = load(state + column);
        else if (final) d = load_some(final + column, count);
        if (given) d += load_some(given + column, count);
        Vector rest = d, da = {}, dz = {};
        if (valid && count) {
            const Vector after = load_some(task.outputs + place + column, count);
            const Vector k = load_some(task.gate + place + column, count);
            const Vector z = load_some(task.value + place + column, count);
            const Vector before = earlier ? load_some(earlier + column, count) : Vector{};
            const Vector du = d * (1.0f - after * after);
            const Vector updated = du * k;
            dz = updated * (1.0f - z * z);
            da = updated * (z - before) * (1.0f - k);
            rest = du - updated;
            store(s.gate_sum + column, load(s.gate_sum + column) + da);
            store(s.value_sum + column, load(s.value_sum + column) + dz);
        }
        store(gates + column, da);
        store(gates + columns + column, dz);
        store(state + column, rest);
    }
}

static void convolution_backward_gates(const ConvolutionBackward& task, int64_t t, RowRange rows, float* memory) {
    const int64_t columns = padded(task.hidden), down = (task.height + 1) / 2;
    const ReturnScratch s = return_scratch(task, memory);
    for (int64_t row = rows.first; row < rows.last; row++) {
        const int64_t image = row / down, top = row % down * 2;
        for (int64_t y = top; y < smaller(top + 2, task.height); y++) {
            clear(s.gate_sum, columns);
            clear(s.value_sum, columns);
            for (int64_t x = 0; x < task.width; x++) return_pixel(task, t, image, y, x, s);
            for (int64_t column = 0; column < columns; column++) {
                s.gate_bias[column] += s.gate_sum[column];
                s.value_bias[column] += s.value_sum[column];
            }
        }
    }
}

// Rows of da times one kernel and, if there is a second, of dz times that.
template <int Rows>
static void return_block(const Term* gates, int64_t step, int64_t columns, const Term* first, const Term* second,
                         int64_t depth, float* to, int64_t to_step) {
    Block<Rows> block;
    fill(block, nullptr);
    multiply_packed(block, gates, step, first, depth);
    if (second) multiply_packed(block, gates + columns, step, second, depth);
    write(block, to, to_step, PANEL);
}

// Tiles have da first and dz, where it is needed, `columns` numbers behind.
static void return_products(const float* transformed, int64_t numbers, int64_t columns, const Term* first,
                            const Term* second, int64_t hidden, int64_t tiles, float* to, int64_t width) {
    const Term* gates = reinterpret_cast<const Term*>(transformed);
    const int64_t step = AsTerms::step(numbers), depth = terms_of(hidden);
    for (int64_t element = 0; element < ELEMENTS; element++) {
        for (int64_t column = 0; column < width; column += PANEL) {
            const int64_t panel = (element * width + column) * depth;
            each_block(tiles, [&](int64_t row, auto rows) {
                const int64_t tile = element * spaced(tiles) + row;
                return_block<rows.value>(gates + tile * step, step, columns / PER_TERM, first + panel,
                                         second ? second + panel : nullptr, depth, to + tile * width + column, width);
            });
        }
    }
}

// Takes the results of a strip back to pixels: body(y, x, channel, vector).
template <class Body>
INLINE void each_result(const float* results, int64_t width, int64_t channels, const Strip& strip, Body&& body) {
    for (int64_t tile = 0; tile < strip.tiles; tile++) {
        for (int64_t channel = 0; channel < channels; channel += WIDTH) {
            Vector pixels[2][2];
            transform_output(results + tile * width + channel, spaced(strip.tiles) * width, pixels);
            for (int64_t i = 0; i < 2; i++) {
                for (int64_t j = 0; j < 2; j++) {
                    const int64_t y = 2 * strip.row + i, x = 2 * (strip.first + tile) + j;
                    if (y < strip.height && x < strip.width) body(y, x, channel, pixels[i][j]);
                }
            }
        }
    }
}

// The gradients of the state and of the input in one strip.
static void return_strip(const ConvolutionBackward& task, const ConvolutionTransposed& w, const ReturnScratch& s,
                         int64_t t, int64_t image, const Strip& strip) {
    const int64_t hidden = task.hidden, columns = padded(hidden), inputs = padded(task.inputs);
    const int64_t height = task.height, width = task.width, step = task.x_gradient ? 2 * columns : columns;
    const ConvolutionShared shared = convolution_shared(task, task.shared);
    const float* gates = shared.gates + image * height * width * 2 * columns;
    transform_input<AsTerms>({gates, width * 2 * columns, 2 * columns, step}, strip, s.zeros, s.gates);
    if (t || task.initial_gradient) {
        return_products(s.gates, step, columns, w.state_weight, nullptr, hidden, strip.tiles, s.state, columns);
        each_result(s.state, columns, hidden, strip, [&](int64_t y, int64_t x, int64_t channel, Vector gradient) {
            const int64_t pixel = (image * height + y) * width + x;
            float* state = shared.state + pixel * columns + channel;
            gradient += load(state);
            if (t) store(state, gradient);
            else store_some(task.initial_gradient + pixel * hidden + channel, gradient, hidden - channel);
        });
    }
    if (task.x_gradient) {
        return_products(s.gates, step, columns, w.gate_weight, w.value_weight, hidden, strip.tiles, s.x, inputs);
        each_result(s.x, inputs, task.inputs, strip, [&](int64_t y, int64_t x, int64_t channel, Vector gradient) {
            const int64_t pixel = ((t * task.images + image) * height + y) * width + x;
            store_some(task.x_gradient + pixel * task.inputs + channel, gradient, task.inputs - channel);
        });
    }
}

// Adds a strip to the sums of the weights' gradients.
static void sum_strip(const ConvolutionBackward& task, const ReturnScratch& s, int64_t t, int64_t image,
                      const Strip& strip) {
    const int64_t hidden = task.hidden, columns = padded(hidden), inputs = task.inputs;
    const int64_t pixels = task.height * task.width;
    const ConvolutionShared shared = convolution_shared(task, task.shared);
    const float* gates = shared.gates + image * pixels * 2 * columns;
    transform_gradient({gates, task.width * 2 * columns, 2 * columns, 2 * columns}, strip, s.zeros, s.gates);
    const float* x = task.x + t * task.x_time + image * task.x_image;
    transform_input<AsNumbers>({x, task.x_row, task.x_pixel, inputs}, strip, s.zeros, s.x);
    const float* before = t ? task.outputs + ((t - 1) * task.images + image) * pixels * hidden : task.initial;
    if (before) {
        if (!t) before += image * pixels * hidden;
        transform_input<AsNumbers>({before, task.width * hidden, hidden, hidden}, strip, s.zeros, s.state);
    }
    for (int64_t element = 0; element < ELEMENTS; element++) {
        const int64_t first = element * spaced(strip.tiles);
        const TermRows gradient =
            across_terms(s.gates + first * 2 * columns, 2 * columns, strip.tiles, 2 * columns, s.gate_terms);
        add_gradient(s.x + first * inputs, inputs, gradient, 2 * columns, strip.tiles,
                     s.input_weights + element * inputs * 2 * columns, s.terms);
        if (!before) continue;
        add_gradient(s.state + first * hidden, hidden, gradient, columns, strip.tiles,
                     s.state_weight + element * hidden * columns, s.terms);
    }
}

static void convolution_backward_products(const ConvolutionBackward& task, int64_t t, RowRange rows, float* memory) {
    const Multiplier multiplier;
    const ConvolutionTransposed w = convolution_unpack_backward(task.packed, task.inputs, task.hidden);
    const ReturnScratch s = return_scratch(task, memory);
    const int64_t down = (task.height + 1) / 2, across = (task.width + 1) / 2;
    for (int64_t row = rows.first; row < rows.last; row++) {
        for (int64_t first = 0; first < across; first += STRIP) {
            const Strip strip = {row % down, first, smaller(STRIP, across - first), task.height, task.width};
            if (t || task.initial_gradient || task.x_gradient) return_strip(task, w, s, t, row / down, strip);
            sum_strip(task, s, t, row / down, strip);
        }
    }
}

static void convolution_backward_sum(const ConvolutionBackward& task, int64_t parts, const float* scratch,
                                     int64_t step) {
    const ReturnScratch s = return_scratch(task, const_cast<float*>(scratch));
    const int64_t hidden = task.hidden, inputs = task.inputs, columns = padded(hidden);
    gather_kernels(task.state_weight_gradient, hidden, hidden, s.state_weight, columns, parts, step);
    gather_kernels(task.gate_weight_gradient, hidden, inputs, s.input_weights, 2 * columns, parts, step);
    gather_kernels(task.value_weight_gradient, hidden, inputs, s.input_weights + columns, 2 * columns, parts, step);
    add_parts(task.gate_bias_gradient, 1, hidden, s.gate_bias, 0, parts, step);
    add_parts(task.value_bias_gradient, 1, hidden, s.value_bias, 0, parts, step);
}

}  // namespace
