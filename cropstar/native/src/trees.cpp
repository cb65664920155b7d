// Decision trees: the sum of the leaves that each row of features comes to, tree after tree.
//
// Nodes are laid out anew, level by level with siblings side by side, in eight bytes: what is walked most lies together,
// and the way on is an addition instead of a branch. Sixteen rows walk a tree at a time, so that their loads overlap.
#include "trees.h"

namespace {

constexpr int FEATURE_BITS = 12;
constexpr uint32_t FEATURE = (1u << FEATURE_BITS) - 1;
constexpr int64_t MOST_NODES = 1 << (32 - FEATURE_BITS);  // of one tree
constexpr int WALKERS = 16;
constexpr int64_t BLOCK = 128;  // rows whose features stay in the cache while all trees are asked

// A leaf leads to itself: nothing is above its threshold.
inline uint32_t next_of(const TreeNode& node, const float* features) {
    return (node.way >> FEATURE_BITS) + (features[node.way & FEATURE] > node.threshold);
}

template <int Rows>
inline void walk(const TreeNode* tree, const float* x, int64_t features, uint32_t* arrived) {
    uint32_t at[Rows] = {};
    for (uint32_t moved = 1; moved;) {
        moved = 0;
        for (int row = 0; row < Rows; row++) {
            const uint32_t next = next_of(tree[at[row]], x + row * features);
            moved |= next ^ at[row];
            at[row] = next;
        }
    }
    for (int row = 0; row < Rows; row++) arrived[row] = at[row];
}

template <int Rows>
inline void add_leaves(const TreeSums& task, int64_t tree, int64_t first) {
    uint32_t arrived[Rows];
    walk<Rows>(task.nodes + task.offsets[tree], task.x + first * task.features, task.features, arrived);
    const int32_t* rows = task.leaf + task.offsets[tree];
    const int64_t column = task.adds_to ? task.adds_to[tree] : 0;
    for (int row = 0; row < Rows; row++) {
        const float* leaf = task.leaves + rows[arrived[row]] * task.width;
        double* sums = task.sums + (first + row) * task.columns + column;
        for (int64_t j = 0; j < task.width; j++) sums[j] += leaf[j];
    }
}

}  // namespace

int64_t trees_pack(const TreeArrays& given, TreeNode* nodes, int32_t* leaf) {
    if (given.features > FEATURE + 1) return 0;
    for (int64_t tree = 0; tree < given.trees; tree++) {
        const int64_t start = given.offsets[tree], size = given.offsets[tree + 1] - start;
        if (size > MOST_NODES) return 0;
        int32_t* order = leaf + start;  // the node, as it was given, that stands at each place; a leaf's row in the end
        order[0] = 0;
        int64_t placed = 1;
        for (int64_t place = 0; place < size; place++) {
            if (place >= placed) return 0;  // a node that no other leads to
            const int64_t old = start + order[place];
            const bool fork = given.left[old] >= 0;
            if (fork && placed + 2 > size) return 0;  // a node that two others lead to
            nodes[start + place] = {
                fork ? given.threshold[old] : __builtin_inff(),
                (uint32_t)(fork ? placed : place) << FEATURE_BITS | (uint32_t)(fork ? given.feature[old] : 0),
            };
            if (fork) {
                order[placed++] = given.left[old];
                order[placed++] = given.right[old];
            }
            order[place] = fork ? 0 : given.right[old];
        }
    }
    return 1;
}

void trees_sum(const TreeSums& task, int64_t part, int64_t parts) {
    const int64_t end = task.rows * (part + 1) / parts;
    for (int64_t first = task.rows * part / parts; first < end; first += BLOCK) {
        const int64_t last = first + BLOCK < end ? first + BLOCK : end;
        for (int64_t tree = 0; tree < task.trees; tree++) {
            int64_t row = first;
            for (; row + WALKERS <= last; row += WALKERS) add_leaves<WALKERS>(task, tree, row);
            for (; row < last; row++) add_leaves<1>(task, tree, row);
        }
    }
}
