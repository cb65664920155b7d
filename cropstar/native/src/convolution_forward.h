// The ConvSTAR layer forwards over a sequence: the step of inference, date after date, which keeps gates and values.
#pragma once

#include "convolution.h"
#include "kernels.h"

namespace {

INLINE ConvolutionStep convolution_date(const ConvolutionForward& task, int64_t t) {
    const int64_t row = task.width * task.hidden, image = task.height * row, date = task.images * image;
    ConvolutionStep step = {task.images, task.height, task.width, task.inputs, task.hidden, task.packed};
    step.x = task.x + t * task.x_time;
    step.x_image = task.x_image, step.x_row = task.x_row, step.x_pixel = task.x_pixel;
    step.state = t ? task.outputs + (t - 1) * date : task.initial;
    step.state_image = step.after_image = image;
    step.state_row = step.after_row = row;
    step.state_pixel = step.after_pixel = task.hidden;
    step.valid = task.valid ? task.valid + t * task.valid_time : nullptr;
    step.valid_image = task.valid_image, step.valid_row = task.valid_row, step.valid_pixel = task.valid_pixel;
    step.after = task.outputs + t * date;
    step.gate = task.gate ? task.gate + t * date : nullptr;
    step.value = task.gate ? task.value + t * date : nullptr;
    return step;
}

static int64_t convolution_forward_scratch(const ConvolutionForward& task) {
    return convolution_scratch(convolution_date(task, 0));
}

static void convolution_forward(const ConvolutionForward& task, int64_t t, RowRange rows, float* scratch) {
    convolution_rows(convolution_date(task, t), rows.first, rows.last, scratch);
}

}  // namespace
