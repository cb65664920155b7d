// Sums over the valid observations of a batch, as the entry points see them: the same code for every processor.
#pragma once

#include "interface.h"

// Rows that are summed together. Their sums are added in order: who computed which changes no bit.
constexpr int64_t SUMMED_ROWS = 256;

inline int64_t summed_chunks(int64_t rows) { return (rows + SUMMED_ROWS - 1) / SUMMED_ROWS; }

// Batch normalisation: `measure` and `measure_back` fill the sums of their part's chunks, (chunks, 2, channels), which
// `gather` and `gather_back` add up before all parts go on with `apply` and `apply_back`.
void normalise_measure(const Normalise& task, int64_t part, int64_t parts);
void normalise_gather(const Normalise& task);
void normalise_apply(const Normalise& task, int64_t part, int64_t parts);
void normalise_measure_back(const NormaliseBackward& task, int64_t part, int64_t parts);
void normalise_gather_back(const NormaliseBackward& task);
void normalise_apply_back(const NormaliseBackward& task, int64_t part, int64_t parts);

// Means by bins of the season, of the samples of a part. `memory` (1 + bins, hidden) is the part's own.
void season_means(const SeasonMeans& task, int64_t part, int64_t parts, float* memory);
void season_means_back(const SeasonMeans& task, int64_t part, int64_t parts, float* memory);
