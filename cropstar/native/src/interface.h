// The plain C interface of the kernels: what Python passes, field by field (cropstar/native/library.py mirrors it).
//
// Tensors are float32 with their innermost axis contiguous; other axes come with strides, counted in elements.
// A pointer that may be null says so. Masks are bytes, zero where a date is not valid.
#pragma once

#include <cstdint>

extern "C" {

// One STAR layer over a whole sequence. `gate` and `value` (T, B, H) keep what the way back needs; null for inference.
struct StarForward {
    int64_t length, batch, inputs, hidden;
    const float* packed;
    const float* x;  // (T, B, C)
    int64_t x_time, x_sample;
    const uint8_t* valid;  // (T, B), or null: all are
    int64_t valid_time, valid_sample;
    const float* initial;  // (B, H), or null: zeros
    float* outputs;        // (T, B, H)
    float* gate;           // (T, B, H), or null
    float* value;          // (T, B, H), or null
};

struct StarBackward {
    int64_t length, batch, inputs, hidden;
    const float* packed;  // of star_pack_backward
    const float* x;
    int64_t x_time, x_sample;
    const uint8_t* valid;
    int64_t valid_time, valid_sample;
    const float* initial;
    const float* outputs;
    const float* gate;
    const float* value;
    const float* outputs_gradient;  // (T, B, H), or null
    int64_t gradient_time, gradient_sample;
    const float* final_gradient;  // (B, H), or null
    float* x_gradient;            // (T, B, C), or null
    float* initial_gradient;      // (B, H), or null
    float* value_weight_gradient;  // W_z (H, C)
    float* gate_weight_gradient;   // W_x (H, C)
    float* state_weight_gradient;  // W_h (H, H)
    float* value_bias_gradient;    // b_z (H)
    float* gate_bias_gradient;     // b_k (H)
};

// Several STAR layers, date after date: nothing but the states leaves the processor's cache.
struct StarStack {
    int64_t length, batch, inputs, layers;
    const int64_t* hidden;        // of each layer
    const float* const* packed;   // of each layer
    const float* x;               // (T, B, C)
    int64_t x_time, x_sample;
    const uint8_t* valid;
    int64_t valid_time, valid_sample;
    const float* const* initial;  // (B, H) of each layer; null, or with null in it: zeros
    float* const* final;          // (B, H) of each layer
    float* outputs;               // (T, B, H) of the last layer, or null
    const int32_t* bin;           // (T, B) or null: the sum that the last layer's state of each valid date is added to
    int64_t bin_time, bin_sample;
    float* const* sums;           // (B, H) of each bin
    // Convolutions in time below the layers: each reads the last `taps` valid dates of what comes before it.
    int64_t stems;
    const int64_t* taps;
    const int64_t* stem_outputs;
    const float* const* stem_packed;
    const float* const* windows;  // (B, (taps - 1) * C) of each, the dates before the first one; null: zeros
    float* const* windows_after;  // the same after the last date
};

// One date of one ConvSTAR layer, images as (N, H, W, C).
struct ConvolutionStep {
    int64_t images, height, width, inputs, hidden;
    const float* packed;
    const float* x;
    int64_t x_image, x_row, x_pixel;
    const float* state;  // null: zeros
    int64_t state_image, state_row, state_pixel;
    const uint8_t* valid;  // (N, H, W), or null
    int64_t valid_image, valid_row, valid_pixel;
    float* after;  // the new state; not the memory of `state`
    int64_t after_image, after_row, after_pixel;
    float* gate;   // (N, H, W, F), or null: what the way back needs, where the pixel is valid
    float* value;  // (N, H, W, F), or null as well
    const float* border;  // (C): what x is outside of the image, or null: zeros
};

// One ConvSTAR layer over a whole sequence. `gate` and `value` keep what the way back needs; null without it.
struct ConvolutionForward {
    int64_t length, images, height, width, inputs, hidden;
    const float* packed;
    const float* x;  // (T, N, H, W, C)
    int64_t x_time, x_image, x_row, x_pixel;
    const uint8_t* valid;  // (T, N, H, W), or null: all are
    int64_t valid_time, valid_image, valid_row, valid_pixel;
    const float* initial;  // (N, H, W, F), or null: zeros
    float* outputs;        // (T, N, H, W, F)
    float* gate;           // (T, N, H, W, F), or null
    float* value;          // (T, N, H, W, F), or null
};

struct ConvolutionBackward {
    int64_t length, images, height, width, inputs, hidden;
    const float* packed;  // of convolution_pack_backward
    const float* x;
    int64_t x_time, x_image, x_row, x_pixel;
    const uint8_t* valid;
    int64_t valid_time, valid_image, valid_row, valid_pixel;
    const float* initial;
    const float* outputs;
    const float* gate;
    const float* value;
    const float* outputs_gradient;  // (T, N, H, W, F), or null
    int64_t gradient_time, gradient_image, gradient_row, gradient_pixel;
    const float* final_gradient;   // (N, H, W, F), or null
    float* x_gradient;             // (T, N, H, W, C), or null
    float* initial_gradient;       // (N, H, W, F), or null
    float* value_weight_gradient;  // W_z (F, C, 3, 3)
    float* gate_weight_gradient;   // W_x (F, C, 3, 3)
    float* state_weight_gradient;  // W_h (F, F, 3, 3)
    float* value_bias_gradient;    // b_z (F)
    float* gate_bias_gradient;     // b_k (F)
    float* shared;                 // the library's own memory, which all parts see
};

// The weights as PyTorch has them: (H, C), (H, H) or (H, C, 3, 3), (H, H, 3, 3), contiguous.
struct StarWeights {
    int64_t inputs, hidden;
    const float *value_weight, *gate_weight, *state_weight, *value_bias, *gate_bias;
};

// Decision trees as the model file has them: the nodes of all trees one after the other.
struct TreeArrays {
    int64_t trees, features;
    const int64_t* offsets;  // (trees + 1)
    const int32_t *left, *right, *feature;  // children within the tree; of a leaf -1 and its row of the leaves
    const float* threshold;
};

// A node sends a row on to its first child, or to the second where the feature is above the threshold.
struct TreeNode {
    float threshold;
    uint32_t way;  // place of the first child within the tree, and the feature
};

struct TreeSums {
    int64_t rows, features, trees, width, columns;
    const int64_t* offsets;
    const TreeNode* nodes;
    const int32_t* leaf;      // the row of `leaves` of each node that is one
    const float* leaves;      // (kinds of leaves, width)
    const int64_t* adds_to;   // (trees): the column that each tree adds to, or null: all of them
    const float* x;           // (rows, features)
    double* sums;             // (rows, columns), added to
};

// Batch normalisation over the valid ones of many rows of channels.
struct Normalise {
    int64_t rows, channels;
    const float* x;        // (rows, channels)
    const uint8_t* valid;  // (rows), or null: all are
    const float *scale, *shift, *epsilon, *momentum;
    float* running_mean;      // learnt of every batch, by the momentum
    float* running_variance;
    float* sums;              // (chunks, 2, channels): the library's own
    float *mean, *inverse, *count, *y;
};

struct NormaliseBackward {
    int64_t rows, channels;
    const float* x;
    const uint8_t* valid;
    const float *gradient, *scale, *mean, *inverse, *count;
    float *sums, *scale_gradient, *shift_gradient, *x_gradient;
};

// Means of states by bins of the season, and the way back.
struct SeasonMeans {
    int64_t length, batch, hidden, bins;
    const int32_t* bin;  // (T, B)
    int64_t bin_time, bin_sample;
    const uint8_t* valid;  // (T, B)
    int64_t valid_time, valid_sample;
    const float* outputs;     // (T, B, H)
    float *features, *counts;  // (B, bins, H), (B, bins)
    float* outputs_gradient;  // (T, B, H), of the way back
};
}
