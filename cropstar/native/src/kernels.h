// What every instruction set offers to the entry points.
#pragma once

#include "interface.h"

// CROPSTAR_PORTABLE_ONLY builds on x86-64 what another processor would get.
#if defined(__x86_64__) && !defined(CROPSTAR_PORTABLE_ONLY)
#define CROPSTAR_X86
#endif

// Rows of tiles, two pixels high, counted through all images.
struct RowRange {
    int64_t first, last;
};

// A kernel computes part `part` of `parts`; parts share nothing but what they read. `scratch` is the part's own.
struct Kernels {
    const char* name;

    int64_t (*star_packed_floats)(int64_t inputs, int64_t hidden);
    void (*star_pack)(const StarWeights& weights, float* packed);
    int64_t (*star_forward_scratch)(const StarForward& task);
    void (*star_forward)(const StarForward& task, int64_t part, int64_t parts, float* scratch);

    int64_t (*star_packed_backward_floats)(int64_t inputs, int64_t hidden);
    void (*star_pack_backward)(const StarWeights& weights, float* packed);
    int64_t (*star_backward_scratch)(const StarBackward& task);
    void (*star_backward)(const StarBackward& task, int64_t part, int64_t parts, float* scratch);
    void (*star_backward_sum)(const StarBackward& task, int64_t parts, const float* scratch, int64_t scratch_floats);

    int64_t (*stem_packed_floats)(int64_t inputs, int64_t outputs);
    void (*stem_pack)(const StarWeights& weights, float* packed);
    int64_t (*star_stack_scratch)(const StarStack& task);
    void (*star_stack)(const StarStack& task, int64_t part, int64_t parts, float* scratch);

    int64_t (*convolution_packed_floats)(int64_t inputs, int64_t hidden);
    void (*convolution_pack)(const StarWeights& weights, float* packed);
    int64_t (*convolution_scratch)(const ConvolutionStep& task);
    void (*convolution_step)(const ConvolutionStep& task, int64_t part, int64_t parts, float* scratch);

    // One date of some rows.
    int64_t (*convolution_forward_scratch)(const ConvolutionForward& task);
    void (*convolution_forward)(const ConvolutionForward& task, int64_t t, RowRange rows, float* scratch);

    // The way back: `shared` is seen by all parts; of a date, all gates come before the first product.
    int64_t (*convolution_packed_backward_floats)(int64_t inputs, int64_t hidden);
    void (*convolution_pack_backward)(const StarWeights& weights, float* packed);
    int64_t (*convolution_backward_shared)(const ConvolutionBackward& task);
    int64_t (*convolution_backward_scratch)(const ConvolutionBackward& task);
    void (*convolution_backward_gates)(const ConvolutionBackward& task, int64_t t, RowRange rows, float* scratch);
    void (*convolution_backward_products)(const ConvolutionBackward& task, int64_t t, RowRange rows, float* scratch);
    void (*convolution_backward_sum)(const ConvolutionBackward& task, int64_t parts, const float* scratch,
                                     int64_t scratch_floats);

    void (*tanh_of)(const float* x, int64_t count, float* y);
    void (*sigmoid_of)(const float* x, int64_t count, float* y);
};

const Kernels* portable_kernels();
const Kernels* avx2_kernels();    // null where not built
const Kernels* avx512_kernels();  // null where not built
const Kernels* amx_kernels();       // null where not built, or where processor or system lack matrix registers
const Kernels* bfloat16_kernels();  // null where not built, or where the processor lacks its instructions
