// AVX-512: 24 of 32 registers hold a block of 12 x 32.
#include "kernels.h"

#if defined(CROPSTAR_X86)
#define LANES 16
#define ROWS 12
#define NAME "avx512"
#define FUNCTION avx512_kernels

#include "unit.h"
#else
const Kernels* avx512_kernels() { return nullptr; }
#endif
