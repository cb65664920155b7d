// The kernels of one instruction set: a unit defines LANES, ROWS, NAME and FUNCTION and includes this.
#include "convolution.h"
#include "convolution_backward.h"
#include "convolution_forward.h"
#include "kernels.h"
#include "nonlinear.h"
#include "star_backward.h"
#include "star_forward.h"
#include "star_stack.h"

namespace {

static int64_t star_floats(int64_t inputs, int64_t hidden) { return star_packed_floats(inputs, hidden); }
static int64_t star_backward_floats(int64_t inputs, int64_t hidden) {
    return star_packed_backward_floats(inputs, hidden);
}
static int64_t convolution_floats(int64_t inputs, int64_t hidden) { return convolution_packed_floats(inputs, hidden); }
static int64_t stem_floats_of(int64_t inputs, int64_t outputs) { return stem_packed_floats(inputs, outputs); }
static void pack_stem(const StarWeights& weights, float* packed) { stem_pack(weights, packed); }
static void pack_star(const StarWeights& weights, float* packed) { star_pack(weights, packed); }
static void pack_star_backward(const StarWeights& weights, float* packed) { star_pack_backward(weights, packed); }

static void many_tanh(const float* x, int64_t count, float* y) {
    apply(x, count, y, [](Vector vector) { return tanh_of(vector); });
}

static void many_sigmoid(const float* x, int64_t count, float* y) {
    apply(x, count, y, [](Vector vector) { return sigmoid_of(vector); });
}

const Kernels KERNELS = {
    NAME,
    star_floats,
    pack_star,
    star_forward_scratch,
    star_forward,
    star_backward_floats,
    pack_star_backward,
    star_backward_scratch,
    star_backward,
    star_backward_sum,
    stem_floats_of,
    pack_stem,
    star_stack_scratch,
    star_stack,
    convolution_floats,
    convolution_pack,
    convolution_scratch,
    convolution_step,
    convolution_forward_scratch,
    convolution_forward,
    convolution_packed_backward_floats,
    convolution_pack_backward,
    convolution_backward_shared,
    convolution_backward_scratch,
    convolution_backward_gates,
    convolution_backward_products,
    convolution_backward_sum,
    many_tanh,
    many_sigmoid,
};

}  // namespace

const Kernels* FUNCTION() { return &KERNELS; }
