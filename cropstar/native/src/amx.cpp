// Products of bfloat16 by matrix registers (AMX), everything else as in bfloat16.cpp.
#include "kernels.h"

#if defined(CROPSTAR_X86) && defined(__AMX_BF16__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LANES 16
#define ROWS 32
#define NAME "amx"
#define FUNCTION all_amx_kernels
#define BFLOAT16
#define AMX

static const Kernels* all_amx_kernels();
#include "unit.h"

// Whether the processor has matrix registers and the system lets a process use them.
static bool may_use_matrices() {
    constexpr unsigned TILES = 1 << 24, BF16 = 1 << 22, SAVED_BY_SYSTEM = 1 << 27;
    constexpr unsigned long MATRIX_STATE = 3ul << 17, ASK = 0x1023, MATRIX_DATA = 18;
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (TILES | BF16)) != (TILES | BF16)) return false;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & SAVED_BY_SYSTEM)) return false;
    unsigned low = 0, high = 0;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & MATRIX_STATE) == MATRIX_STATE && syscall(SYS_arch_prctl, ASK, MATRIX_DATA) == 0;
}

const Kernels* amx_kernels() { return may_use_matrices() ? all_amx_kernels() : nullptr; }
#else
const Kernels* amx_kernels() { return nullptr; }
#endif
