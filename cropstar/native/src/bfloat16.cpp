// AVX-512 with products of bfloat16: states, gates, sums and gradients of weights stay float32.
#include "kernels.h"

#if defined(CROPSTAR_X86) && defined(__AVX512BF16__)
#include <cpuid.h>

#define LANES 16
#define ROWS 12
#define NAME "bfloat16"
#define FUNCTION all_bfloat16_kernels
#define BFLOAT16

static const Kernels* all_bfloat16_kernels();
#include "unit.h"

const Kernels* bfloat16_kernels() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool there = __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1);
    return there ? all_bfloat16_kernels() : nullptr;
}
#else
const Kernels* bfloat16_kernels() { return nullptr; }
#endif
