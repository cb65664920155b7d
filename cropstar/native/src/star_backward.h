// The STAR layer backwards: a part runs its rows from the last date to the first and sums its own weight gradients.
//
// With u = h + k (z - h) and d the gradient of h' = tanh(u), a valid date gives
//     du = d (1 - h'^2)    dz = du k (1 - z^2)    da = du (z - h) k (1 - k)    dh = du (1 - k) + da W_h
// where dz and da belong to the arguments of the candidate's tanh and of the gate's sigmoid. A date that is not valid
// passes d on. Rows in the scratch memory are padded with zeros to whole panels.
#pragma once

#include "block.h"

namespace {

// The weights read backwards: W_h^T, W_x^T and W_z^T in panels.
struct StarTransposed {
    const Term *state_weight, *gate_weight, *value_weight;
};

INLINE int64_t star_packed_backward_floats(int64_t inputs, int64_t hidden) {
    return terms_of(hidden) * (padded(hidden) + 2 * padded(inputs));
}

INLINE StarTransposed star_unpack_backward(const float* packed, int64_t inputs, int64_t hidden) {
    const Term* state_weight = reinterpret_cast<const Term*>(packed);
    const Term* gate_weight = state_weight + terms_of(hidden) * padded(hidden);
    return {state_weight, gate_weight, gate_weight + terms_of(hidden) * padded(inputs)};
}

INLINE void star_pack_backward(const StarWeights& w, float* packed) {
    const StarTransposed to = star_unpack_backward(packed, w.inputs, w.hidden);
    pack(w.state_weight, w.hidden, w.hidden, 1, w.hidden, const_cast<Term*>(to.state_weight));
    pack(w.gate_weight, w.inputs, w.hidden, 1, w.inputs, const_cast<Term*>(to.gate_weight));
    pack(w.value_weight, w.inputs, w.hidden, 1, w.inputs, const_cast<Term*>(to.value_weight));
}

// A part's memory. The sums come first: `star_backward_sum` adds them up over the parts.
struct StarScratch {
    float *state_weight, *gate_weight, *value_weight, *gate_bias, *value_bias;
    float *state, *gate, *value;      // dh, da, dz of a tile
    float *gate_sum, *value_sum;      // of one date of a tile
    float *input_rows, *before_rows;  // padded copies
    float *gate_terms, *value_terms, *row_terms;
    int64_t sums, total;
};

INLINE StarScratch star_scratch(const StarBackward& task, float* memory) {
    const int64_t columns = padded(task.hidden), inputs = padded(task.inputs), tile = TILE_ROWS * columns;
    float* next = memory;
    auto take = [&](int64_t count) {
        float* taken = next;
        next += count;
        return taken;
    };
    StarScratch s;
    s.state_weight = take(task.hidden * columns);
    s.gate_weight = take(task.hidden * inputs);
    s.value_weight = take(task.hidden * inputs);
    s.gate_bias = take(columns);
    s.value_bias = take(columns);
    s.sums = next - memory;
    s.state = take(tile);
    s.gate = take(tile);
    s.value = take(tile);
    s.gate_sum = take(columns);
    s.value_sum = take(columns);
    s.input_rows = take(TILE_ROWS * inputs);
    s.before_rows = take(tile);
    s.gate_terms = take(term_floats(TILE_ROWS, task.hidden));
    s.value_terms = take(term_floats(TILE_ROWS, task.hidden));
    s.row_terms = take(term_floats(TILE_ROWS, larger(task.inputs, task.hidden)));
    s.total = next - memory;
    return s;
}

static int64_t star_backward_scratch(const StarBackward& task) { return star_scratch(task, nullptr).total; }

// One date of one tile.
struct StarReturn {
    int64_t rows, first, t;
    const float* x;
    const float* before;  // (rows, hidden), or null: zeros
    bool on;              // whether the gradient of `before` is asked for
};

// da, dz and what of dh needs no product.
static void star_return_gates(const StarBackward& task, const StarReturn& date, const StarScratch& s) {
    const int64_t hidden = task.hidden, columns = padded(hidden);
    const int64_t place = (date.t * task.batch + date.first) * hidden;
    clear(s.gate_sum, columns);
    clear(s.value_sum, columns);
    for (int64_t row = 0; row < date.rows; row++) {
        const int64_t sample = date.first + row, from = place + row * hidden;
        const float* given = task.outputs_gradient
                                 ? task.outputs_gradient + date.t * task.gradient_time + sample * task.gradient_sample
                                 : nullptr;
        const bool valid = !task.valid || task.valid[date.t * task.valid_time + sample * task.valid_sample];
        for (int64_t column = 0; column < hidden; column += WIDTH) {
            const int64_t here = row * columns + column, count = hidden - column;
            Vector d = load(s.state + here);
            if (given) d += load_some(given + column, count);
            if (!valid) {
                store(s.gate + here, Vector{});
                store(s.value + here, Vector{});
                store(s.state + here, d);
                continue;
            }
            const Vector after = load_some(task.outputs + from + column, count);
            const Vector k = load_some(task.gate + from + column, count);
            const Vector z = load_some(task.value + from + column, count);
            const Vector before = date.before ? load_some(date.before + row * hidden + column, count) : Vector{};
            const Vector du = d * (1.0f - after * after);
            const Vector updated = du * k;
            const Vector dz = updated * (1.0f - z * z);
            const Vector da = updated * (z - before) * (1.0f - k);
            store(s.gate + here, da);
            store(s.value + here, dz);
            store(s.state + here, du - updated);
            store(s.gate_sum + column, load(s.gate_sum + column) + da);
            store(s.value_sum + column, load(s.value_sum + column) + dz);
        }
    }
    for (int64_t column = 0; column < columns; column++) {
        s.gate_bias[column] += s.gate_sum[column];
        s.value_bias[column] += s.value_sum[column];
    }
}

// dh += da W_h
template <int Rows>
static void star_return_state(const StarScratch& s, TermRows gate, const Term* panel, int64_t row, int64_t column,
                              int64_t columns, int64_t depth) {
    Block<Rows> block;
    float* to = s.state + row * columns + column;
    start(block, to, columns);
    multiply_packed(block, gate.data + row * gate.step, gate.step, panel, depth);
    write(block, to, columns, PANEL);
}

// dx = da W_x + dz W_z
template <int Rows>
static void star_return_input(TermRows gate, const Term* gate_panel, TermRows value, const Term* value_panel,
                              int64_t row, int64_t depth, float* to, int64_t to_step, int64_t count) {
    Block<Rows> block;
    fill(block, nullptr);
    multiply_packed(block, gate.data + row * gate.step, gate.step, gate_panel, depth);
    multiply_packed(block, value.data + row * value.step, value.step, value_panel, depth);
    write(block, to, to_step, count);
}

// total (outputs x columns) += a^T b, over the rows of a tile.
INLINE void add_products(float* total, int64_t outputs, int64_t columns, TermColumns a, TermRows b, int64_t rows) {
    for (int64_t column = 0; column < columns; column += PANEL) {
        each_block(outputs, [&](int64_t output, auto count) {
            add_products_block<count.value>(total + output * columns + column, columns, a.from(output), b.data + column,
                                            b.step, rows);
        });
    }
}

struct PaddedRows {
    const float* data;
    int64_t step;
};

// Rows that may be read in whole panels: as they are where their width allows it, a copy with zeros otherwise.
INLINE PaddedRows padded_rows(const float* from, int64_t step, int64_t rows, int64_t width, float* memory) {
    const int64_t columns = padded(width);
    if (columns == width) return {from, step};
    for (int64_t row = 0; row < rows; row++) {
        copy(memory + row * columns, from + row * step, width);
        clear(memory + row * columns + width, columns - width);
    }
    return {memory, columns};
}

static void star_return_date(const StarBackward& task, const StarTransposed& w, const StarReturn& date,
                             const StarScratch& s) {
    const int64_t hidden = task.hidden, inputs = task.inputs, columns = padded(hidden);
    star_return_gates(task, date, s);
    const int64_t depth = terms_of(hidden);
    const TermRows gate = as_terms(s.gate, columns, date.rows, hidden, s.gate_terms);
    const TermRows value = as_terms(s.value, columns, date.rows, hidden, s.value_terms);
    for (int64_t column = 0; date.on && column < columns; column += PANEL) {
        each_block(date.rows, [&](int64_t row, auto rows) {
            star_return_state<rows.value>(s, gate, w.state_weight + column * depth, row, column, columns, depth);
        });
    }
    for (int64_t column = 0; task.x_gradient && column < inputs; column += PANEL) {
        each_block(date.rows, [&](int64_t row, auto rows) {
            float* to = task.x_gradient + (date.t * task.batch + date.first + row) * inputs + column;
            star_return_input<rows.value>(gate, w.gate_weight + column * depth, value, w.value_weight + column * depth,
                                          row, depth, to, inputs, inputs - column);
        });
    }
    const PaddedRows x = padded_rows(date.x, task.x_sample, date.rows, inputs, s.input_rows);
    const TermColumns da = turned_terms(s.gate, columns, date.rows, columns, s.gate_terms);
    const TermColumns dz = turned_terms(s.value, columns, date.rows, columns, s.value_terms);
    TermRows rows = across_terms(x.data, x.step, date.rows, padded(inputs), s.row_terms);
    add_products(s.gate_weight, hidden, padded(inputs), da, rows, date.rows);
    add_products(s.value_weight, hidden, padded(inputs), dz, rows, date.rows);
    if (date.before) {
        const PaddedRows before = padded_rows(date.before, hidden, date.rows, hidden, s.before_rows);
        rows = across_terms(before.data, before.step, date.rows, columns, s.row_terms);
        add_products(s.state_weight, hidden, columns, da, rows, date.rows);
    }
}

static void star_backward(const StarBackward& task, int64_t part, int64_t parts, float* memory) {
    const int64_t hidden = task.hidden, columns = padded(hidden);
    const Multiplier multiplier;
    const StarTransposed w = star_unpack_backward(task.packed, task.inputs, hidden);
    const StarScratch s = star_scratch(task, memory);
    clear(memory, s.total);
    const Tiles tiles = tiles_of(task.batch, part, parts);
    for (int64_t first = tiles.first; first < tiles.last; first += tiles.rows) {
        StarReturn date = {smaller(tiles.rows, tiles.last - first), first};
        clear(s.state, date.rows * columns);
        for (int64_t row = 0; task.final_gradient && row < date.rows; row++) {
            copy(s.state + row * columns, task.final_gradient + (first + row) * hidden, hidden);
        }
        for (date.t = task.length - 1; date.t >= 0; date.t--) {
            date.x = task.x + date.t * task.x_time + first * task.x_sample;
            date.before = date.t ? task.outputs + ((date.t - 1) * task.batch + first) * hidden
                                 : (task.initial ? task.initial + first * hidden : nullptr);
            date.on = date.t || task.initial_gradient;
            star_return_date(task, w, date, s);
        }
        for (int64_t row = 0; task.initial_gradient && row < date.rows; row++) {
            copy(task.initial_gradient + (first + row) * hidden, s.state + row * columns, hidden);
        }
    }
}

// Adds the parts in their order, which keeps the result the same from run to run.
INLINE void add_parts(float* to, int64_t outputs, int64_t width, const float* from, int64_t from_step, int64_t parts,
                      int64_t part_step) {
    for (int64_t output = 0; output < outputs; output++) {
        for (int64_t column = 0; column < width; column++) {
            const float* here = from + output * from_step + column;
            float total = 0.0f;
            for (int64_t part = 0; part < parts; part++) total += here[part * part_step];
            to[output * width + column] = total;
        }
    }
}

static void star_backward_sum(const StarBackward& task, int64_t parts, const float* scratch, int64_t step) {
    const StarScratch s = star_scratch(task, const_cast<float*>(scratch));
    const int64_t hidden = task.hidden, inputs = task.inputs;
    add_parts(task.state_weight_gradient, hidden, hidden, s.state_weight, padded(hidden), parts, step);
    add_parts(task.gate_weight_gradient, hidden, inputs, s.gate_weight, padded(inputs), parts, step);
    add_parts(task.value_weight_gradient, hidden, inputs, s.value_weight, padded(inputs), parts, step);
    add_parts(task.gate_bias_gradient, 1, hidden, s.gate_bias, 0, parts, step);
    add_parts(task.value_bias_gradient, 1, hidden, s.value_bias, 0, parts, step);
}

}  // namespace
