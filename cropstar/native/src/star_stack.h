// Several STAR layers for inference, in the order of dates: a tile's states stay in the cache for the whole sequence.
#pragma once

#include "star_forward.h"

namespace {

INLINE int64_t star_states(const StarStack& task) {
    int64_t total = 0;
    for (int64_t layer = 0; layer < task.layers; layer++) total += task.hidden[layer];
    return total * TILE_ROWS;
}

static int64_t star_stack_scratch(const StarStack& task) { return 2 * star_states(task); }

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
    for (int64_t t = 0; t < task.length; t++) {
        float* after = scratch + (t & 1) * half;
        const float* before = scratch + (1 - (t & 1)) * half;
        StarDate date = {rows, task.inputs, 0};
        date.x = task.x + t * task.x_time + first * task.x_sample;
        date.x_step = task.x_sample;
        date.valid = task.valid ? task.valid + t * task.valid_time + first * task.valid_sample : nullptr;
        date.valid_step = task.valid_sample;
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
        if (task.outputs) copy(task.outputs + (t * task.batch + first) * date.inputs, date.x, rows * date.inputs);
    }
    place = scratch + ((task.length - 1) & 1) * half;
    for (int64_t layer = 0; layer < task.layers; layer++) {
        const int64_t hidden = task.hidden[layer];
        copy(task.final[layer] + first * hidden, place, rows * hidden);
        place += hidden * TILE_ROWS;
    }
}

static void star_stack(const StarStack& task, int64_t part, int64_t parts, float* scratch) {
    const Tiles tiles = tiles_of(task.batch, part, parts);
    for (int64_t first = tiles.first; first < tiles.last; first += tiles.rows) {
        star_stack_tile(task, first, smaller(tiles.rows, tiles.last - first), scratch);
    }
}

}  // namespace
