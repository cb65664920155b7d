// The exported functions: they choose the instruction set, hand out memory and share work out among threads.
//
// The threads are those of torch's OpenMP runtime, where it lends them: after each of torch's own parallel loops they
// spin for milliseconds, and threads of ours would have to share the processors with them. Elsewhere threads are
// started for each call and end with it; a call takes milliseconds and a thread some 20 microseconds.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include <unistd.h>

#include "kernels.h"
#include "summaries.h"
#include "trees.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int INTERFACE = 8;  // what library.py expects
constexpr int DONE = 0, NO_MEMORY = 1;
constexpr int64_t CACHE_LINE = 16;  // floats: parts do not share a line

bool runs_here(const Kernels* kernels) {
    if (!kernels) return false;
#if defined(CROPSTAR_X86)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!std::strcmp(kernels->name, "avx2")) return avx2;
#if !defined(CROPSTAR_AVX512_EMULATED)
    if (!std::strcmp(kernels->name, "avx512")) return avx2 && __builtin_cpu_supports("avx512f");
    if (!std::strcmp(kernels->name, "bfloat16") || !std::strcmp(kernels->name, "amx")) {
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl");
    }
#endif
#endif
    return true;
}

// By name, or the fastest; those of bfloat16 must be asked for, since they compute something else.
const Kernels* find(const char* name) {
    const Kernels* const best_first[] = {avx512_kernels(), avx2_kernels(), portable_kernels(), bfloat16_kernels()};
    for (const Kernels* kernels : best_first) {
        if (runs_here(kernels) && (!name || !std::strcmp(kernels->name, name))) return kernels;
    }
    if (!name || std::strcmp(name, "amx")) return nullptr;  // only now: a process must ask for matrix registers
    const Kernels* matrices = amx_kernels();
    return runs_here(matrices) ? matrices : nullptr;
}

std::atomic<const Kernels*> chosen{nullptr};

const Kernels& kernels() {
    const Kernels* found = chosen.load();
    if (!found) chosen.store(found = find(nullptr));
    return *found;
}

// GOMP_parallel of an OpenMP runtime: calls a function in so many threads at once, this one among them.
using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);

std::atomic<Parallel> lent{nullptr};
std::atomic<pid_t> lent_to{0};  // threads do not survive a fork

// Parts are taken in turn: the runtime may give fewer threads than were asked for.
template <class Work>
struct Team {
    std::atomic<int64_t> next;
    const int64_t parts;
    const Work& work;

    static void join(void* team) {
        Team& own = *static_cast<Team*>(team);
        for (int64_t part; (part = own.next++) < own.parts;) own.work(part);
    }
};

// How a call is shared out: `parts` pieces of work among at most `threads`.
struct Share {
    int64_t threads, parts;
};

// The runtime is asked for all threads, also where there are fewer parts: for a smaller team it would end the others,
// and torch's next loop would have to start them again.
template <class Work>
void in_parts(Share share, const Work& work) {
    const int64_t parts = share.parts;
    Team<Work> team = {{0}, parts, work};
    const Parallel parallel = lent.load();
    if (parts > 1 && parallel && lent_to.load() == getpid()) {
        parallel(team.join, &team, (unsigned)share.threads, 0);
        return;
    }
    std::vector<std::thread> threads;
    try {
        threads.reserve(parts - 1);
        while ((int64_t)threads.size() < parts - 1) threads.emplace_back(team.join, &team);
    } catch (const std::exception&) {  // no more threads or no memory for them: those that are there do all of it
    }
    team.join(&team);
    for (std::thread& thread : threads) thread.join();
}

// Memory for all parts, each on cache lines of its own.
struct Scratch {
    float* memory = nullptr;
    int64_t step;

    Scratch(int64_t parts, int64_t floats) : step((floats + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE) {
        if (posix_memalign(reinterpret_cast<void**>(&memory), 4 * CACHE_LINE, 4 * (parts * step + CACHE_LINE)))
            memory = nullptr;
    }
    Scratch(const Scratch&) = delete;
    ~Scratch() { std::free(memory); }
    float* of(int64_t part) const { return memory + part * step; }
};

template <class Task>
using Kernel = void (*)(const Task&, int64_t, int64_t, float*);

// No exception leaves the library.
template <class Work>
int guarded(Work work) {
    try {
        work();
    } catch (const std::bad_alloc&) {
        return NO_MEMORY;
    }
    return DONE;
}

template <class Task>
int run(const Task& task, Kernel<Task> kernel, const Scratch& scratch, Share share) {
    if (!scratch.memory) return NO_MEMORY;
    return guarded([&] { in_parts(share, [&](int64_t part) { kernel(task, part, share.parts, scratch.of(part)); }); });
}

// Calls work(part, t, rows) for `dates` in turn. Where parts have whole images, each runs through the dates by itself;
// otherwise rows need their neighbours', and every date waits for all parts of the one before it.
template <class Work>
void in_dates(Share share, int64_t dates, int64_t images, int64_t height, Work work) {
    const int64_t parts = share.parts, rows = images * ((height + 1) / 2);
    const auto part_of_date = [&](int64_t part, int64_t date) {
        work(part, date, RowRange{rows * part / parts, rows * (part + 1) / parts});
    };
    if (images % parts == 0) {
        in_parts(share, [&](int64_t part) {
            for (int64_t date = 0; date < dates; date++) part_of_date(part, date);
        });
        return;
    }
    for (int64_t date = 0; date < dates; date++) {
        in_parts(share, [&](int64_t part) { part_of_date(part, date); });
    }
}

// No more threads than work for them: a thread costs as much as some hundred thousand multiplications.
Share share_of(int64_t threads, int64_t rows, double multiplications) {
    const int64_t worthwhile = 1 + (int64_t)(multiplications / 1e6);
    int64_t parts = threads < rows ? threads : rows;
    parts = parts < worthwhile ? parts : worthwhile;
    return {threads, parts < 1 ? 1 : parts};
}

double star_work(int64_t length, int64_t batch, int64_t inputs, int64_t hidden) {
    return (double)length * batch * hidden * (2 * inputs + hidden);
}

template <class Task>
double layer_work(const Task& task) {
    return star_work(task.length, task.batch, task.inputs, task.hidden);
}

template <class Task>
Share image_share(const Task& task, int64_t threads) {
    const int64_t rows = task.images * ((task.height + 1) / 2);
    return share_of(threads, rows, 4.0 * star_work(task.height, task.width * task.images, task.inputs, task.hidden));
}

}  // namespace

EXPORT int cropstar_interface() { return INTERFACE; }

EXPORT const char* cropstar_sources() { return CROPSTAR_SOURCES; }

EXPORT int cropstar_runs(const char* name) { return find(name) != nullptr; }

EXPORT const char* cropstar_chosen() { return kernels().name; }

// The kernels of bfloat16 that are faster here than those of float32; empty where none are. Intel's processors multiply
// bfloat16 more slowly than float32 outside of their matrix registers.
EXPORT const char* cropstar_half() {
    if (find("amx")) return "amx";
#if defined(CROPSTAR_X86)
    if (__builtin_cpu_is("intel")) return "";
#endif
    return find("bfloat16") ? "bfloat16" : "";
}

// Zero where this processor lacks it.
EXPORT int cropstar_choose(const char* name) {
    const Kernels* found = find(name);
    if (found) chosen.store(found);
    return found != nullptr;
}

// Work with the threads of an OpenMP runtime from now on, given its GOMP_parallel; null takes threads of our own.
EXPORT void cropstar_lend(void* parallel) {
    lent_to.store(getpid());
    lent.store(reinterpret_cast<Parallel>(parallel));
}

EXPORT int64_t cropstar_star_packed(int64_t inputs, int64_t hidden) {
    return kernels().star_packed_floats(inputs, hidden);
}

EXPORT void cropstar_star_pack(const StarWeights* weights, float* packed) { kernels().star_pack(*weights, packed); }

EXPORT int cropstar_star_forward(const StarForward* task, int64_t threads) {
    const Share share = share_of(threads, task->batch, layer_work(*task));
    return run(*task, kernels().star_forward, Scratch(share.parts, kernels().star_forward_scratch(*task)), share);
}

EXPORT int64_t cropstar_star_packed_backward(int64_t inputs, int64_t hidden) {
    return kernels().star_packed_backward_floats(inputs, hidden);
}

EXPORT void cropstar_star_pack_backward(const StarWeights* weights, float* packed) {
    kernels().star_pack_backward(*weights, packed);
}

EXPORT int cropstar_star_backward(const StarBackward* task, int64_t threads) {
    const Share share = share_of(threads, task->batch, layer_work(*task));
    const Scratch scratch(share.parts, kernels().star_backward_scratch(*task));
    const int status = run(*task, kernels().star_backward, scratch, share);
    if (status == DONE) kernels().star_backward_sum(*task, share.parts, scratch.memory, scratch.step);
    return status;
}

EXPORT int64_t cropstar_stem_packed(int64_t inputs, int64_t outputs) {
    return kernels().stem_packed_floats(inputs, outputs);
}

EXPORT void cropstar_stem_pack(const StarWeights* weights, float* packed) { kernels().stem_pack(*weights, packed); }

EXPORT int cropstar_star_stack(const StarStack* task, int64_t threads) {
    double work = 0;
    for (int64_t layer = 0; layer < task->layers; layer++) {
        const int64_t inputs = layer ? task->hidden[layer - 1] : task->inputs;
        work += star_work(task->length, task->batch, inputs, task->hidden[layer]);
    }
    const Share share = share_of(threads, task->batch, work);
    return run(*task, kernels().star_stack, Scratch(share.parts, kernels().star_stack_scratch(*task)), share);
}

EXPORT int64_t cropstar_convolution_packed(int64_t inputs, int64_t hidden) {
    return kernels().convolution_packed_floats(inputs, hidden);
}

EXPORT void cropstar_convolution_pack(const StarWeights* weights, float* packed) {
    kernels().convolution_pack(*weights, packed);
}

EXPORT int cropstar_convolution_step(const ConvolutionStep* task, int64_t threads) {
    const Share share = image_share(*task, threads);
    return run(*task, kernels().convolution_step, Scratch(share.parts, kernels().convolution_scratch(*task)), share);
}

EXPORT int cropstar_convolution_forward(const ConvolutionForward* task, int64_t threads) {
    const Kernels& used = kernels();
    const Share share = image_share(*task, threads);
    const Scratch scratch(share.parts, used.convolution_forward_scratch(*task));
    if (!scratch.memory) return NO_MEMORY;
    return guarded([&] {
        in_dates(share, task->length, task->images, task->height, [&](int64_t part, int64_t t, RowRange rows) {
            used.convolution_forward(*task, t, rows, scratch.of(part));
        });
    });
}

EXPORT int64_t cropstar_convolution_packed_backward(int64_t inputs, int64_t hidden) {
    return kernels().convolution_packed_backward_floats(inputs, hidden);
}

EXPORT void cropstar_convolution_pack_backward(const StarWeights* weights, float* packed) {
    kernels().convolution_pack_backward(*weights, packed);
}

EXPORT int cropstar_convolution_backward(const ConvolutionBackward* given, int64_t threads) {
    const Kernels& used = kernels();
    ConvolutionBackward task = *given;
    const Share share = image_share(task, threads);
    const Scratch shared(1, used.convolution_backward_shared(task));
    const Scratch scratch(share.parts, used.convolution_backward_scratch(task));
    if (!shared.memory || !scratch.memory) return NO_MEMORY;
    std::memset(scratch.memory, 0, 4 * share.parts * scratch.step);  // sums begin with nothing
    task.shared = shared.memory;
    return guarded([&] {
        // Two rounds a date: gates, and the products that look at the neighbours' gates.
        in_dates(share, 2 * task.length, task.images, task.height, [&](int64_t part, int64_t round, RowRange rows) {
            const int64_t t = task.length - 1 - round / 2;
            const auto kernel = round % 2 ? used.convolution_backward_products : used.convolution_backward_gates;
            kernel(task, t, rows, scratch.of(part));
        });
        used.convolution_backward_sum(task, share.parts, scratch.memory, scratch.step);
    });
}

// Zero where the trees cannot be laid out.
EXPORT int64_t cropstar_trees_pack(const TreeArrays* given, TreeNode* nodes, int32_t* leaf) {
    return trees_pack(*given, nodes, leaf);
}

EXPORT int cropstar_trees_sum(const TreeSums* task, int64_t threads) {
    const Share share = share_of(threads, task->rows, 10.0 * task->rows * task->trees);
    return guarded([&] { in_parts(share, [&](int64_t part) { trees_sum(*task, part, share.parts); }); });
}

EXPORT int cropstar_normalise(const Normalise* given, int64_t threads) {
    Normalise task = *given;
    const Share share = share_of(threads, summed_chunks(task.rows), 2.0 * task.rows * task.channels);
    const Scratch sums(1, 2 * summed_chunks(task.rows) * task.channels);
    if (!sums.memory) return NO_MEMORY;
    task.sums = sums.memory;
    return guarded([&] {
        in_parts(share, [&](int64_t part) { normalise_measure(task, part, share.parts); });
        normalise_gather(task);
        in_parts(share, [&](int64_t part) { normalise_apply(task, part, share.parts); });
    });
}

EXPORT int cropstar_normalise_backward(const NormaliseBackward* given, int64_t threads) {
    NormaliseBackward task = *given;
    const Share share = share_of(threads, summed_chunks(task.rows), 2.0 * task.rows * task.channels);
    const Scratch sums(1, 2 * summed_chunks(task.rows) * task.channels);
    if (!sums.memory) return NO_MEMORY;
    task.sums = sums.memory;
    return guarded([&] {
        in_parts(share, [&](int64_t part) { normalise_measure_back(task, part, share.parts); });
        normalise_gather_back(task);
        in_parts(share, [&](int64_t part) { normalise_apply_back(task, part, share.parts); });
    });
}

EXPORT int cropstar_season_means(const SeasonMeans* task, int64_t threads) {
    const Share share = share_of(threads, task->batch, 2.0 * task->length * task->batch * task->hidden);
    const Scratch scratch(share.parts, (1 + task->bins) * task->hidden);
    return run(*task, season_means, scratch, share);
}

EXPORT int cropstar_season_means_backward(const SeasonMeans* task, int64_t threads) {
    const Share share = share_of(threads, task->batch, 2.0 * task->length * task->batch * task->hidden);
    const Scratch scratch(share.parts, (1 + task->bins) * task->hidden);
    return run(*task, season_means_back, scratch, share);
}

EXPORT void cropstar_tanh(const float* x, int64_t count, float* y) { kernels().tanh_of(x, count, y); }

EXPORT void cropstar_sigmoid(const float* x, int64_t count, float* y) { kernels().sigmoid_of(x, count, y); }
