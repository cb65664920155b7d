// The STAR layer forwards: a part runs the whole sequence on its rows, one tile after the other.
//
// Both products of a block end in registers, where the gate arithmetic is done on them; nothing is written in between.
#pragma once

#include "block.h"
#include "nonlinear.h"

namespace {

struct StarPacked {
    const Term *value_weight, *gate_weight, *state_weight;
    const float *value_bias, *gate_bias;
};

INLINE int64_t star_packed_floats(int64_t inputs, int64_t hidden) {
    return padded(hidden) * (2 * terms_of(inputs) + terms_of(hidden) + 2);
}

INLINE StarPacked star_unpack(const float* packed, int64_t inputs, int64_t hidden) {
    const int64_t columns = padded(hidden);
    const Term* value_weight = reinterpret_cast<const Term*>(packed);
    const Term* gate_weight = value_weight + columns * terms_of(inputs);
    const Term* state_weight = gate_weight + columns * terms_of(inputs);
    const float* value_bias = packed + columns * (2 * terms_of(inputs) + terms_of(hidden));
    return {value_weight, gate_weight, state_weight, value_bias, value_bias + columns};
}

INLINE void star_pack(const StarWeights& w, float* packed) {
    const StarPacked to = star_unpack(packed, w.inputs, w.hidden);
    pack(w.value_weight, w.hidden, w.inputs, w.inputs, 1, const_cast<Term*>(to.value_weight));
    pack(w.gate_weight, w.hidden, w.inputs, w.inputs, 1, const_cast<Term*>(to.gate_weight));
    pack(w.state_weight, w.hidden, w.hidden, w.hidden, 1, const_cast<Term*>(to.state_weight));
    pack_bias(w.value_bias, w.hidden, const_cast<float*>(to.value_bias));
    pack_bias(w.gate_bias, w.hidden, const_cast<float*>(to.gate_bias));
}

// One date of one tile. Rows of `before`, `after`, `gate` and `value` lie `before_step`, `after_step`, ... apart.
struct StarDate {
    int64_t rows, inputs, hidden;
    const float* x;
    int64_t x_step;
    const uint8_t* valid;  // or null
    int64_t valid_step;
    const float* before;  // or null: zeros
    int64_t before_step;
    float* after;
    int64_t after_step;
    float *gate, *value;  // or null; rows `hidden` apart
    float* memory;        // for the rows of x and `before` as terms
};

INLINE int64_t star_date_floats(int64_t inputs, int64_t hidden) {
    return term_floats(TILE_ROWS, inputs) + term_floats(TILE_ROWS, hidden);
}

// h' = tanh(h + k (z - h)) of one panel, or h where the date is not valid.
INLINE void star_update(const StarDate& date, int64_t row, int64_t column, int64_t count, Pair value, Pair logits) {
    const Pair gate = sigmoid_of(logits);
    const Pair before = date.before ? load_pair(date.before + row * date.before_step + column, count) : Pair{};
    const bool valid = !date.valid || date.valid[row * date.valid_step];
    const Pair after = valid ? tanh_of(gate * (value - before) + before) : before;
    store_pair(date.after + row * date.after_step + column, after, count);
    if (date.gate) {
        store_pair(date.gate + row * date.hidden + column, gate, count);
        store_pair(date.value + row * date.hidden + column, value, count);
    }
}

template <int Rows>
static void star_block(const StarPacked& packed, const StarDate& date, TermRows inputs, TermRows before, int64_t row,
                       int64_t panel) {
    const int64_t column = panel * PANEL, count = date.hidden - column;
    const int64_t depth = terms_of(date.inputs), state_depth = terms_of(date.hidden);
    const Term* x = inputs.data + row * inputs.step;
    Block<Rows> value, logits;
    fill(value, packed.value_bias + column);
    multiply_packed(value, x, inputs.step, packed.value_weight + column * depth, depth);
    finish(value);
    for (int i = 0; i < Rows; i++) {
        const Pair bounded = tanh_of(Pair{value.sums[i][0], value.sums[i][1]});
        value.sums[i][0] = bounded.left, value.sums[i][1] = bounded.right;
    }
    fill(logits, packed.gate_bias + column);
    multiply_packed(logits, x, inputs.step, packed.gate_weight + column * depth, depth);
    if (before.data) {
        const Term* state = before.data + row * before.step;
        multiply_packed(logits, state, before.step, packed.state_weight + column * state_depth, state_depth);
    }
    finish(logits);
    for (int i = 0; i < Rows; i++) {
        const Pair own = {value.sums[i][0], value.sums[i][1]}, gate = {logits.sums[i][0], logits.sums[i][1]};
        if (count >= PANEL) star_update(date, row + i, column, PANEL, own, gate);
        else star_update(date, row + i, column, count, own, gate);
    }
}

INLINE void star_date(const StarPacked& packed, const StarDate& date) {
    const TermRows x = as_terms(date.x, date.x_step, date.rows, date.inputs, date.memory);
    TermRows before = {};
    if (date.before) {
        float* memory = date.memory + term_floats(TILE_ROWS, date.inputs);
        before = as_terms(date.before, date.before_step, date.rows, date.hidden, memory);
    }
    for (int64_t panel = 0; panel < panels_of(date.hidden); panel++) {
        each_block(date.rows,
                   [&](int64_t row, auto rows) { star_block<rows.value>(packed, date, x, before, row, panel); });
    }
}

static int64_t star_forward_scratch(const StarForward& task) { return star_date_floats(task.inputs, task.hidden); }

static void star_forward(const StarForward& task, int64_t part, int64_t parts, float* scratch) {
    const Multiplier multiplier;
    const int64_t batch = task.batch, hidden = task.hidden;
    const StarPacked packed = star_unpack(task.packed, task.inputs, hidden);
    const Tiles tiles = tiles_of(batch, part, parts);
    for (int64_t first = tiles.first; first < tiles.last; first += tiles.rows) {
        for (int64_t t = 0; t < task.length; t++) {
            const int64_t place = (t * batch + first) * hidden;
            StarDate date = {smaller(tiles.rows, tiles.last - first), task.inputs, hidden};
            date.x = task.x + t * task.x_time + first * task.x_sample;
            date.x_step = task.x_sample;
            date.valid = task.valid ? task.valid + t * task.valid_time + first * task.valid_sample : nullptr;
            date.valid_step = task.valid_sample;
            date.before = t ? task.outputs + place - batch * hidden
                            : (task.initial ? task.initial + first * hidden : nullptr);
            date.before_step = date.after_step = hidden;
            date.after = task.outputs + place;
            date.gate = task.gate ? task.gate + place : nullptr;
            date.value = task.gate ? task.value + place : nullptr;
            date.memory = scratch;
            star_date(packed, date);
        }
    }
}

}  // namespace
