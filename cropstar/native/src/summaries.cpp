// Batch normalisation over valid rows, and means of states by bins of the season, forwards and backwards.
//
// PyTorch would write a buffer for every step of these formulas; here a chunk of rows is read once for its statistics,
// and once more for the result.
#include "summaries.h"

#include <cmath>
#include <vector>

namespace {

template <class Work>
void each_chunk(int64_t rows, int64_t part, int64_t parts, Work work) {
    const int64_t chunks = summed_chunks(rows);
    for (int64_t chunk = chunks * part / parts; chunk < chunks * (part + 1) / parts; chunk++) {
        const int64_t first = chunk * SUMMED_ROWS, last = first + SUMMED_ROWS < rows ? first + SUMMED_ROWS : rows;
        work(chunk, first, last);
    }
}

typedef float* __restrict To;  // nothing else is read or written through another pointer
typedef const float* __restrict From;

void clear(To to, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = 0.0f;
}

void add(To to, From from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] += from[i];
}

void add_squares(To to, From from, From mean, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] += (from[i] - mean[i]) * (from[i] - mean[i]);
}

int64_t count_valid(const uint8_t* valid, int64_t first, int64_t last) {
    if (!valid) return last - first;
    int64_t count = 0;
    for (int64_t row = first; row < last; row++) count += valid[row] != 0;
    return count;
}

}  // namespace

// Of each chunk the mean, and the sum of squared differences from it.
void normalise_measure(const Normalise& task, int64_t part, int64_t parts) {
    const int64_t channels = task.channels;
    each_chunk(task.rows, part, parts, [&](int64_t chunk, int64_t first, int64_t last) {
        float *mean = task.sums + 2 * chunk * channels, *spread = mean + channels;
        clear(mean, 2 * channels);
        for (int64_t row = first; row < last; row++) {
            if (!task.valid || task.valid[row]) add(mean, task.x + row * channels, channels);
        }
        const int64_t count = count_valid(task.valid, first, last);
        const float share = count ? 1.0f / (float)count : 0.0f;
        for (int64_t j = 0; j < channels; j++) mean[j] *= share;
        for (int64_t row = first; row < last; row++) {
            if (!task.valid || task.valid[row]) add_squares(spread, task.x + row * channels, mean, channels);
        }
    });
}

// Mean and variance of all chunks together (Chan et al. 1979), the factor that channels get, and what is learnt of it
// for inference. A batch without a valid row teaches nothing.
void normalise_gather(const Normalise& task) {
    const int64_t channels = task.channels, chunks = summed_chunks(task.rows);
    std::vector<double> counts(chunks);
    each_chunk(task.rows, 0, 1, [&](int64_t chunk, int64_t first, int64_t last) {
        counts[chunk] = (double)count_valid(task.valid, first, last);
    });
    const double total = (double)count_valid(task.valid, 0, task.rows);
    *task.count = (float)total;
    const float momentum = total > 0 ? *task.momentum : 0.0f;
    const double unbiased = total > 1 ? total / (total - 1) : total;
    for (int64_t j = 0; j < channels; j++) {
        double mean = 0, spread = 0, count = 0;
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            const double own = counts[chunk];
            if (own == 0) continue;
            const float* sums = task.sums + 2 * chunk * channels + j;
            const double apart = sums[0] - mean, together = count + own;
            mean += apart * own / together;
            spread += sums[channels] + apart * apart * count * own / together;
            count = together;
        }
        const double variance = count > 0 ? spread / count : 0;
        task.mean[j] = (float)mean;
        task.inverse[j] = (float)(1.0 / std::sqrt(variance + *task.epsilon));
        task.running_mean[j] += momentum * ((float)mean - task.running_mean[j]);
        task.running_variance[j] += momentum * ((float)(variance * unbiased) - task.running_variance[j]);
    }
}

void normalise_apply(const Normalise& task, int64_t part, int64_t parts) {
    const int64_t channels = task.channels;
    each_chunk(task.rows, part, parts, [&](int64_t, int64_t first, int64_t last) {
        for (int64_t row = first; row < last; row++) {
            From x = task.x + row * channels, mean = task.mean, scale = task.scale, shift = task.shift;
            From inverse = task.inverse;
            To y = task.y + row * channels;
            for (int64_t j = 0; j < channels; j++) y[j] = (x[j] - mean[j]) * (scale[j] * inverse[j]) + shift[j];
        }
    });
}

// With n = (x - mean) / deviation: sums of g and of g n.
void normalise_measure_back(const NormaliseBackward& task, int64_t part, int64_t parts) {
    const int64_t channels = task.channels;
    each_chunk(task.rows, part, parts, [&](int64_t chunk, int64_t first, int64_t last) {
        To plain = task.sums + 2 * chunk * channels, weighted = plain + channels;
        clear(plain, channels);
        clear(weighted, channels);
        for (int64_t row = first; row < last; row++) {
            From x = task.x + row * channels, g = task.gradient + row * channels;
            From mean = task.mean, inverse = task.inverse;
            for (int64_t j = 0; j < channels; j++) {
                plain[j] += g[j];
                weighted[j] += g[j] * ((x[j] - mean[j]) * inverse[j]);
            }
        }
    });
}

void normalise_gather_back(const NormaliseBackward& task) {
    const int64_t channels = task.channels;
    for (int64_t j = 0; j < channels; j++) {
        double plain = 0, weighted = 0;
        for (int64_t chunk = 0; chunk < summed_chunks(task.rows); chunk++) {
            const float* sums = task.sums + 2 * chunk * channels + j;
            plain += sums[0], weighted += sums[channels];
        }
        task.shift_gradient[j] = (float)plain;
        task.scale_gradient[j] = (float)weighted;
    }
}

// dx = scale / deviation (g - (sum g + n sum g n) / count): the last part where the row is valid, as it was measured.
void normalise_apply_back(const NormaliseBackward& task, int64_t part, int64_t parts) {
    const int64_t channels = task.channels;
    const float share = *task.count > 0 ? 1.0f / *task.count : 0.0f;
    each_chunk(task.rows, part, parts, [&](int64_t, int64_t first, int64_t last) {
        for (int64_t row = first; row < last; row++) {
            From x = task.x + row * channels, g = task.gradient + row * channels;
            From mean = task.mean, inverse = task.inverse, scale = task.scale;
            From plain = task.shift_gradient, weighted = task.scale_gradient;
            To to = task.x_gradient + row * channels;
            const float own = !task.valid || task.valid[row] ? share : 0.0f;
            for (int64_t j = 0; j < channels; j++) {
                const float normal = (x[j] - mean[j]) * inverse[j];
                to[j] = scale[j] * inverse[j] * (g[j] - own * (plain[j] + normal * weighted[j]));
            }
        }
    });
}

namespace {

struct Dates {
    const SeasonMeans& task;
    int64_t sample;
    // The bin of a date; -1 where it is not valid.
    int64_t operator()(int64_t t) const {
        if (!task.valid[t * task.valid_time + sample * task.valid_sample]) return -1;
        return task.bin[t * task.bin_time + sample * task.bin_sample];
    }
};

float total_of(const float* counts, int64_t bins) {
    float total = 0;
    for (int64_t n = 0; n < bins; n++) total += counts[n];
    return total > 1 ? total : 1;
}

}  // namespace

// A bin without a valid date has the mean of all. `memory` (hidden) holds that.
void season_means(const SeasonMeans& task, int64_t part, int64_t parts, float* memory) {
    const int64_t hidden = task.hidden, bins = task.bins;
    for (int64_t b = task.batch * part / parts; b < task.batch * (part + 1) / parts; b++) {
        const Dates bin_of = {task, b};
        float *features = task.features + b * bins * hidden, *counts = task.counts + b * bins;
        clear(features, bins * hidden);
        clear(counts, bins);
        for (int64_t t = 0; t < task.length; t++) {
            const int64_t bin = bin_of(t);
            if (bin < 0) continue;
            add(features + bin * hidden, task.outputs + (t * task.batch + b) * hidden, hidden);
            counts[bin] += 1;
        }
        clear(memory, hidden);
        for (int64_t n = 0; n < bins; n++) add(memory, features + n * hidden, hidden);
        for (int64_t n = 0; n < bins; n++) {
            const float count = counts[n] > 0 ? counts[n] : total_of(counts, bins);
            const float* from = counts[n] > 0 ? features + n * hidden : memory;
            float* to = features + n * hidden;
            for (int64_t j = 0; j < hidden; j++) to[j] = from[j] / count;
        }
    }
}

// `features` are their gradients here, and `outputs_gradient` is what comes of it. `memory` (1 + bins, hidden).
void season_means_back(const SeasonMeans& task, int64_t part, int64_t parts, float* memory) {
    const int64_t hidden = task.hidden, bins = task.bins;
    for (int64_t b = task.batch * part / parts; b < task.batch * (part + 1) / parts; b++) {
        const Dates bin_of = {task, b};
        const float *gradient = task.features + b * bins * hidden, *counts = task.counts + b * bins;
        const float total = total_of(counts, bins);
        clear(memory, hidden);
        for (int64_t n = 0; n < bins; n++) {
            if (counts[n] == 0) add(memory, gradient + n * hidden, hidden);
        }
        for (int64_t n = 0; n < bins; n++) {
            if (counts[n] == 0) continue;
            From g = gradient + n * hidden, shared = memory;
            To to = memory + (1 + n) * hidden;
            for (int64_t j = 0; j < hidden; j++) to[j] = g[j] / counts[n] + shared[j] / total;
        }
        for (int64_t t = 0; t < task.length; t++) {
            const int64_t bin = bin_of(t);
            float* to = task.outputs_gradient + (t * task.batch + b) * hidden;
            clear(to, hidden);
            if (bin >= 0) add(to, memory + (1 + bin) * hidden, hidden);
        }
    }
}
