// Decision trees as the entry points see them: the same code for every processor.
#pragma once

#include "interface.h"

// Lays nodes out for `trees_sum`; zero where they do not fit the layout or are no trees.
int64_t trees_pack(const TreeArrays& given, TreeNode* nodes, int32_t* leaf);

// Part `part` of `parts` of the rows.
void trees_sum(const TreeSums& task, int64_t part, int64_t parts);
