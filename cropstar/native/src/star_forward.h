// The STAR layer forwards: a part runs the whole sequence on its rows, one tile after the other.
//
// Both products of a block end in registers, where the gate arithmetic is done on them; nothing is written in between.
#pragma once

#include "block.h"
#include "nonlinear.h"

namespace {

struct StarPacked {
    const float *value_weight, *gate_weight, *state_weight, *value_bias, *gate_bias;
};

INLINE int64_t star_packed_floats(int64_t inputs, int64_t hidden) {
    return padded(hidden) * (2 * inputs + hidden + 2);
}

INLINE StarPacked star_unpack(const float* packed, int64_t inputs, int64_t hidden) {
    const int64_t columns = padded(hidden);
    const float* gate_weight = packed + columns * inputs;
    const float* state_weight = gate_weight + columns * inputs;
    const float* value_bias = state_weight + columns * hidden;
    return {packed, gate_weight, state_weight, value_bias, value_bias + columns};
}

INLINE void star_pack(const StarWeights& w, float* packed) {
    const StarPacked to = star_unpack(packed, w.inputs, w.hidden);
    pack(w.value_weight, w.hidden, w.inputs, w.inputs, 1, const_cast<float*>(to.value_weight));
    pack(w.gate_weight, w.hidden, w.inputs, w.inputs, 1, const_cast<float*>(to.gate_weight));
    pack(w.state_weight, w.hidden, w.hidden, w.hidden, 1, const_cast<float*>(to.state_weight));
    pack(w.value_bias, w.hidden, 1, 1, 1, const_cast<float*>(to.value_bias));
    pack(w.gate_bias, w.hidden, 1, 1, 1, const_cast<float*>(to.gate_bias));
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
};

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
static void star_block(const StarPacked& packed, const StarDate& date, int64_t row, int64_t panel) {
    const int64_t column = panel * PANEL, count = date.hidden - column;
    const float* x = date.x + row * date.x_step;
    Block<Rows> value, logits;
    fill(value, packed.value_bias + column);
    multiply_packed(value, x, date.x_step, packed.value_weight + column * date.inputs, date.inputs);
    for (int i = 0; i < Rows; i++) {
        const Pair bounded = tanh_of(Pair{value.sums[i][0], value.sums[i][1]});
        value.sums[i][0] = bounded.left, value.sums[i][1] = bounded.right;
    }
    fill(logits, packed.gate_bias + column);
    multiply_packed(logits, x, date.x_step, packed.gate_weight + column * date.inputs, date.inputs);
    if (date.before) {
        const float* before = date.before + row * date.before_step;
        multiply_packed(logits, before, date.before_step, packed.state_weight + column * date.hidden, date.hidden);
    }
    for (int i = 0; i < Rows; i++) {
        const Pair own = {value.sums[i][0], value.sums[i][1]}, gate = {logits.sums[i][0], logits.sums[i][1]};
        if (count >= PANEL) star_update(date, row + i, column, PANEL, own, gate);
        else star_update(date, row + i, column, count, own, gate);
    }
}

INLINE void star_date(const StarPacked& packed, const StarDate& date) {
    for (int64_t panel = 0; panel < panels_of(date.hidden); panel++) {
        each_block(date.rows, [&](int64_t row, auto rows) { star_block<rows.value>(packed, date, row, panel); });
    }
}

static int64_t star_forward_scratch(const StarForward&) { return 0; }

static void star_forward(const StarForward& task, int64_t part, int64_t parts, float*) {
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
            star_date(packed, date);
        }
    }
}

}  // namespace
