// Any processor: vectors of four floats are SSE on x86-64 and NEON on arm64.
#define LANES 4
#define ROWS 6
#define NAME "portable"
#define FUNCTION portable_kernels

#include "unit.h"
