// Several STAR layers for inference, in the order of dates: a tile's states stay in the cache for the whole sequence.
#pragma once

#include "star_forward.h"

namespace {

INLINE int64_t star_states(const StarStack& task) {
    int64_t total = 0;
    for (int64_t layer = 0; layer < task.layers; layer++) total += task.hidden[layer];
    return total * TILE_ROWS;
}

INLINE int64_t stem_inputs(const StarStack& task, int64_t stem) {
    return stem ? task.stem_outputs[stem - 1] : task.inputs;
}

// The windows of all stems and their outputs.
INLINE int64_t stem_floats(const StarStack& task) {
    int64_t total = 0;
    for (int64_t stem = 0; stem < task.stems; stem++) {
        total += task.taps[stem] * stem_inputs(task, stem) + task.stem_outputs[stem];
    }
    return total * TILE_ROWS;
}

// Rows of one stem or layer as terms.
INLINE int64_t stack_terms(const StarStack& task) {
    int64_t most = 0, inputs = task.inputs;
    for (int64_t stem = 0; stem < task.stems; stem++) {
        most = larger(most, term_floats(TILE_ROWS, task.taps[stem] * inputs));
        inputs = task.stem_outputs[stem];
    }
    for (int64_t layer = 0; layer < task.layers; layer++) {
        most = larger(most, star_date_floats(inputs, task.hidden[layer]));
        inputs = task.hidden[layer];
    }
    return most;
}

static int64_t star_stack_scratch(const StarStack& task) {
    return 2 * star_states(task) + stem_floats(task) + stack_terms(task);
}

INLINE int64_t stem_packed_floats(int64_t inputs, int64_t outputs) {
    return padded(outputs) * (terms_of(inputs) + 1);
}

INLINE void stem_pack(const StarWeights& w, float* packed) {
    pack(w.value_weight, w.hidden, w.inputs, w.inputs, 1, reinterpret_cast<Term*>(packed));
    pack_bias(w.value_bias, w.hidden, packed + padded(w.hidden) * terms_of(w.inputs));
}

// Copies windows between a batch's memory, whose rows lack the place of the newest date, and a tile's.
INLINE void stem_begin(const StarStack& task, int64_t first, int64_t rows, float* place) {
    for (int64_t stem = 0; stem < task.stems; stem++) {
        const int64_t inputs = stem_inputs(task, stem), kept = (task.taps[stem] - 1) * inputs;
        const float* before = task.windows ? task.windows[stem] : nullptr;
        for (int64_t row = 0; row < rows; row++, place += kept + inputs) {
            if (before) copy(place, before + (first + row) * kept, kept);
            else clear(place, kept);
            clear(place + kept, inputs);
        }
        place += (TILE_ROWS - rows) * (kept + inputs) + TILE_ROWS * task.stem_outputs[stem];
    }
}

INLINE void stem_end(const StarStack& task, int64_t first, int64_t rows, const float* place) {
    for (int64_t stem = 0; stem < task.stems; stem++) {
        const int64_t inputs = stem_inputs(task, stem), kept = (task.taps[stem] - 1) * inputs;
        for (int64_t row = 0; row < rows; row++, place += kept + inputs) {
            copy(task.windows_after[stem] + (first + row) * kept, place, kept);
        }
        place += (TILE_ROWS - rows) * (kept + inputs) + TILE_ROWS * task.stem_outputs[stem];
    }
}

template <int Rows>
static void stem_block(const Term* window, int64_t step, int64_t depth, const float* packed, int64_t panel,
                       int64_t outputs, float* to) {
    const int64_t column = panel * PANEL;
    Block<Rows> block;
    fill(block, packed + padded(outputs) * depth + column);
    multiply_packed(block, window, step, reinterpret_cast<const Term*>(packed) + column * depth, depth);
    finish(block);
    for (int i = 0; i < Rows; i++) {
        block.sums[i][0] = at_least(block.sums[i][0], 0.0f), block.sums[i][1] = at_least(block.sums[i][1], 0.0f);
    }
    write_some(block, to + column, outputs, outputs - column);
}

// One date through all stems; `date` then reads their output. A row that is not valid keeps its window as it was.
INLINE void stem_date(const StarStack& task, StarDate& date, float* place) {
    for (int64_t stem = 0; stem < task.stems; stem++) {
        const int64_t inputs = date.inputs, outputs = task.stem_outputs[stem], depth = task.taps[stem] * inputs;
        float* output = place + TILE_ROWS * depth;
        for (int64_t row = 0; row < date.rows; row++) {
            if (date.valid && !date.valid[row * date.valid_step]) continue;
            copy(place + row * depth + depth - inputs, date.x + row * date.x_step, inputs);
        }
        const TermRows windows = as_terms(place, depth, date.rows, depth, date.memory);
        for (int64_t panel = 0; panel < panels_of(outputs); panel++) {
            each_block(date.rows, [&](int64_t row, auto rows) {
                stem_block<rows.value>(windows.data + row * windows.step, windows.step, terms_of(depth),
                                       task.stem_packed[stem], panel, outputs, output + row * outputs);
            });
        }
        for (int64_t row = 0; row < date.rows; row++) {
            if (date.valid && !date.valid[row * date.valid_step]) continue;
            copy(place + row * depth, place + row * depth + inputs, depth - inputs);
        }
        date.x = output;
        date.x_step = date.inputs = outputs;
        place = output + TILE_ROWS * outputs;
    }
}

// Adds the last layer's states of one date to the sums of their bins; `date` is as that layer left it.
INLINE void star_stack_sums(const StarStack& task, const StarDate& date, int64_t t, int64_t first) {
    const int64_t hidden = date.inputs;
    for (int64_t row = 0; row < date.rows; row++) {
        if (date.valid && !date.valid[row * date.valid_step]) continue;
        float* sum = task.sums[task.bin[t * task.bin_time + (first + row) * task.bin_sample]] + (first + row) * hidden;
        const float* state = date.x + row * hidden;
        for (int64_t j = 0; j < hidden; j++) sum[j] += state[j];
    }
}

static void star_stack_tile(const StarStack& task, int64_t first, int64_t rows, float* scratch) {
    const int64_t half = star_states(task);
    float* place = scratch;
    for (int64_t layer = 0; layer < task.layers; layer++) {
        const int64_t hidden = task.hidden[layer];
        const float* initial = task.initial ? task.initial[layer] : nullptr;
        if (initial) copy(place + half, initial + first * hidden, rows * hidden);
        else clear(place + half, rows * hidden);
        place += hidden * TILE_ROWS;
    }
    float* stems = scratch + 2 * half;
    stem_begin(task, first, rows, stems);
    for (int64_t t = 0; t < task.length; t++) {
        float* after = scratch + (t & 1) * half;
        const float* before = scratch + (1 - (t & 1)) * half;
        StarDate date = {rows, task.inputs, 0};
        date.x = task.x + t * task.x_time + first * task.x_sample;
        date.x_step = task.x_sample;
        date.valid = task.valid ? task.valid + t * task.valid_time + first * task.valid_sample : nullptr;
        date.valid_step = task.valid_sample;
        date.memory = stems + stem_floats(task);
        stem_date(task, date, stems);
        for (int64_t layer = 0; layer < task.layers; layer++) {
            const int64_t hidden = date.hidden = date.before_step = date.after_step = task.hidden[layer];
            date.before = before;
            date.after = after;
            star_date(star_unpack(task.packed[layer], date.inputs, hidden), date);
            date.x = after;
            date.x_step = date.inputs = hidden;
            before += hidden * TILE_ROWS;
            after += hidden * TILE_ROWS;
        }
        if (task.bin) star_stack_sums(task, date, t, first);
        if (task.outputs) copy(task.outputs + (t * task.batch + first) * date.inputs, date.x, rows * date.inputs);
    }
    stem_end(task, first, rows, stems);
    place = scratch + ((task.length - 1) & 1) * half;
    for (int64_t layer = 0; layer < task.layers; layer++) {
        const int64_t hidden = task.hidden[layer];
        copy(task.final[layer] + first * hidden, place, rows * hidden);
        place += hidden * TILE_ROWS;
    }
}

static void star_stack(const StarStack& task, int64_t part, int64_t parts, float* scratch) {
    const Multiplier multiplier;
    const Tiles tiles = tiles_of(task.batch, part, parts);
    for (int64_t first = tiles.first; first < tiles.last; first += tiles.rows) {
        star_stack_tile(task, first, smaller(tiles.rows, tiles.last - first), scratch);
    }
}

}  // namespace
