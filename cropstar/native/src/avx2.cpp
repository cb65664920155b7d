// AVX2 and FMA: 12 of 16 registers hold a block of 6 x 16.
#include "kernels.h"

#if defined(CROPSTAR_X86)
#define LANES 8
#define ROWS 6
#define NAME "avx2"
#define FUNCTION avx2_kernels

#include "unit.h"
#else
const Kernels* avx2_kernels() { return nullptr; }
#endif
